//! A network that fails on command, seen by a client of Redis.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use tenure_testkit::{Proxy, Redis, RedisConnection, eventually};

use common::is_silent;

#[test]
fn a_proxy_passes_requests_and_answers() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut first = connect(&proxy);
    let mut second = connect(&proxy);
    assert_eq!(first.command(&["SET", "a", "1"]).unwrap(), "OK");
    assert_eq!(second.command(&["GET", "a"]).unwrap(), "1");
}

#[test]
fn a_cut_holds_requests_back_and_healing_delivers_them() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut connection = connect(&proxy);
    assert_eq!(connection.command(&["SET", "a", "before"]).unwrap(), "OK");

    proxy.cut();
    connection.send(&["SET", "a", "after"]).unwrap();
    assert!(is_silent(&mut connection));
    assert_eq!(redis.command(&["GET", "a"]), "before");

    proxy.heal();
    assert_eq!(connection.receive().unwrap(), "OK");
    assert_eq!(redis.command(&["GET", "a"]), "after");
}

#[test]
fn a_cut_holds_answers_back_too() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut waiter = connect(&proxy);
    let id = waiter.command(&["CLIENT", "ID"]).unwrap();
    waiter.send(&["BLPOP", "queue", "0"]).unwrap();
    eventually("the waiter to block", || redis.command(&["CLIENT", "LIST", "ID", &id]).contains("cmd=blpop"));

    proxy.cut();
    redis.command(&["RPUSH", "queue", "work"]);
    assert_eq!(redis.command(&["LLEN", "queue"]), "0", "Redis has answered the waiter");
    assert!(is_silent(&mut waiter));

    proxy.heal();
    assert_eq!(waiter.receive().unwrap(), "queue\nwork");
}

#[test]
fn a_connection_made_during_a_cut_hangs_and_works_after_it() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    proxy.cut();
    let mut connection = connect(&proxy);
    connection.send(&["PING"]).unwrap();
    assert!(is_silent(&mut connection));
    proxy.heal();
    assert_eq!(connection.receive().unwrap(), "PONG");
}

#[test]
fn those_who_come_after_the_present_ones_were_cut_are_not() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut present = connect(&proxy);
    present.command(&["PING"]).unwrap();
    proxy.cut_present();
    present.send(&["SET", "a", "late"]).unwrap();
    assert_eq!(connect(&proxy).command(&["SET", "a", "early"]).unwrap(), "OK");
    assert!(is_silent(&mut present));
    proxy.heal();
    assert_eq!(present.receive().unwrap(), "OK");
    assert_eq!(redis.command(&["GET", "a"]), "late");
}

#[test]
fn a_cut_hides_the_death_of_the_server_until_it_is_healed() {
    let mut redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut connection = connect(&proxy);
    connection.command(&["PING"]).unwrap();
    proxy.cut();
    redis.kill();
    assert!(is_silent(&mut connection));
    proxy.heal();
    assert_ended(&mut connection);
}

#[test]
fn a_cut_hides_the_end_of_a_client_until_it_is_healed() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut connection = connect(&proxy);
    let id = connection.command(&["CLIENT", "ID"]).unwrap();
    proxy.cut();
    drop(connection);
    assert!(redis.command(&["CLIENT", "LIST", "ID", &id]).contains(&format!("id={id} ")));
    proxy.heal();
    eventually("Redis to hear of it", || redis.command(&["CLIENT", "LIST", "ID", &id]).is_empty());
}

#[test]
fn severing_closes_every_connection_and_welcomes_new_ones() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut used = connect(&proxy);
    used.command(&["PING"]).unwrap();
    let mut just_connected = connect(&proxy);
    proxy.sever();
    assert_ended(&mut used);
    assert_ended(&mut just_connected);
    assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn severing_reaches_a_connection_that_hangs_in_a_cut() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    proxy.cut();
    let mut connection = connect(&proxy);
    connection.send(&["SET", "a", "lost for good"]).unwrap();
    proxy.sever();
    assert_ended(&mut connection);
    proxy.heal();
    assert_eq!(connect(&proxy).command(&["GET", "a"]).unwrap(), "(nil)");
}

#[test]
fn a_dropped_answer_is_lost_although_the_request_was_done() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let mut robbed = connect(&proxy);
    let mut idle = connect(&proxy);
    robbed.command(&["PING"]).unwrap();
    idle.command(&["PING"]).unwrap();

    proxy.drop_answers(true);
    robbed.send(&["SET", "a", "done"]).unwrap();
    eventually("the request to be done", || redis.command(&["GET", "a"]) == "done");
    assert!(is_silent(&mut robbed));

    proxy.drop_answers(false);
    // Nothing can follow a hole in a stream of bytes, so the one is closed. The other lost nothing.
    assert_ended(&mut robbed);
    assert_eq!(idle.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn a_refused_connection_shows_as_an_ended_one() {
    let mut redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    redis.kill();
    assert_ended(&mut connect(&proxy));
    redis.restart();
    assert_eq!(connect(&proxy).command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn a_cut_in_the_middle_of_a_large_transfer_loses_and_reorders_nothing() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(server.local_addr().unwrap());
    let sent: Vec<u8> = (0..8_000_000_u32).map(|n| n.to_le_bytes()[(n % 3) as usize]).collect();
    let mut client = TcpStream::connect(proxy.addr()).unwrap();
    let writer = thread::spawn({
        let sent = sent.clone();
        move || client.write_all(&sent)
    });
    let (mut accepted, _) = server.accept().unwrap();
    let mut received = vec![0; 1_000_000];
    accepted.read_exact(&mut received).unwrap();
    // Nobody reads now, so the proxy stands in the gate with a write that cannot end: the cut must not wait
    // for it.
    proxy.cut();
    proxy.heal();
    accepted.read_to_end(&mut received).unwrap();
    writer.join().unwrap().unwrap();
    assert!(received == sent, "{} of {} bytes, or others", received.len(), sent.len());
}

#[test]
fn a_dropped_proxy_ends_its_connections_and_listens_no_more() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.addr());
    let addr: SocketAddr = proxy.addr();
    let mut flowing = connect(&proxy);
    flowing.command(&["PING"]).unwrap();
    proxy.cut();
    let mut hanging = connect(&proxy);
    drop(proxy);
    assert_ended(&mut flowing);
    assert_ended(&mut hanging);
    assert!(TcpStream::connect(addr).is_err());
}

fn connect(proxy: &Proxy) -> RedisConnection {
    RedisConnection::open(proxy.addr()).unwrap()
}

#[track_caller]
fn assert_ended(connection: &mut RedisConnection) {
    let error = connection.receive().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{error:?}");
}
