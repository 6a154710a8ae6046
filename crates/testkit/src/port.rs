//! Free ports on loopback.
//!
//! A port is handed out once in the life of this process, and not to another process that lives at the same time:
//! parallel tests and parallel test programs do not meet on one, also while its server is killed. And it lies *below* the range from which the kernel takes the ports of outgoing connections. Were it inside,
//! then a client that keeps connecting to a killed server could be given the server's own port, connect
//! to itself, and keep the server from coming back.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener};
use std::process;
use std::sync::{Mutex, PoisonError};

use rustix::net::{Shutdown, shutdown};

/// Above the ports of well-known services.
const LOWEST: u16 = 10_240;
/// Where Linux starts with outgoing connections, unless it was told otherwise.
const USUAL_EPHEMERAL_START: u16 = 32_768;

static HANDED_OUT: Mutex<Option<Ports>> = Mutex::new(None);

struct Ports {
    range: Range<u16>,
    next: u16,
    /// Of the ports that were handed out, for as long as this process lives.
    claims: Vec<UnixListener>,
}

/// A port on 127.0.0.1 that nobody listens on, and that no other caller was given, in this process or in another one that lives.
///
/// # Panics
///
/// If there is none.
pub fn free_port() -> u16 {
    let (listener, port) = listen_on_free_port(Ipv4Addr::LOCALHOST.into());
    stop_listening(&listener);
    port
}

/// A listener on a free port of this address, for those who listen themselves.
pub(crate) fn listener_on(addr: IpAddr) -> TcpListener {
    listen_on_free_port(addr).0
}

/// Ends the listening at once, for everybody who holds the socket.
///
/// Dropping it would not do: a child that another thread is starting right now has a copy of each open file
/// until its `exec`, and for that long the port would still be taken.
pub(crate) fn stop_listening(listener: &TcpListener) {
    shutdown(listener, Shutdown::Both).expect("a socket that listens can be told to end");
}

fn listen_on_free_port(addr: IpAddr) -> (TcpListener, u16) {
    // A thread that panicked in here left one claim too many, at worst.
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    handed_out.get_or_insert_with(Ports::new).listen(addr)
}

/// A socket whose name says that the port is taken. Its name is free again when the last process that has it ends, in whatever way.
fn claim(port: u16) -> io::Result<UnixListener> {
    let name = net::SocketAddr::from_abstract_name(format!("tenure-test-port-{port}"))?;
    UnixListener::bind_addr(&name)
}

/// `port` on 127.0.0.1.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl Ports {
    fn new() -> Self {
        let settings = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let range = below_ephemeral(&settings);
        // Test programs that run side by side start at different places, and so seldom find a port taken.
        let offset = process::id().wrapping_mul(101) % u32::from(range.end - range.start);
        let next = range.start + u16::try_from(offset).expect("smaller than a range of u16");
        Self { range, next, claims: Vec::new() }
    }

    fn listen(&mut self, addr: IpAddr) -> (TcpListener, u16) {
        for _ in 0..self.range.len() {
            let port = self.step();
            if let (Ok(claim), Ok(listener)) = (claim(port), TcpListener::bind((addr, port))) {
                self.claims.push(claim);
                return (listener, port);
            }
        }
        panic!("no port is free on {addr} between {} and {}", self.range.start, self.range.end);
    }

    fn step(&mut self) -> u16 {
        let port = self.next;
        self.next = if port + 1 == self.range.end { self.range.start } else { port + 1 };
        port
    }
}

/// The ports to choose from, given the text of `ip_local_port_range` ("32768\t60999").
///
/// Where the kernel takes nearly everything for outgoing connections, there is nothing below: then the
/// usual range serves, and the risk that the module's first lines describe is back.
fn below_ephemeral(settings: &str) -> Range<u16> {
    let start = settings.split_whitespace().next().and_then(|low| low.parse().ok());
    match start {
        Some(start) if start >= LOWEST + 1_000 => LOWEST..start,
        _ => LOWEST..USUAL_EPHEMERAL_START,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::TcpStream;
    use std::thread;

    use super::*;

    #[test]
    fn no_port_is_handed_out_twice_even_to_parallel_callers() {
        let callers: Vec<_> =
            (0..8).map(|_| thread::spawn(|| [free_port(), free_port(), free_port()])).collect();
        let ports: Vec<u16> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        let distinct: HashSet<u16> = ports.iter().copied().collect();
        assert_eq!(distinct.len(), ports.len(), "{ports:?}");
    }

    #[test]
    fn a_port_that_another_process_was_given_is_not_handed_out() {
        // Of two processes that start at the same place.
        let (mut ours, mut theirs) = (Ports::new(), Ports::new());
        let (listener, port) = theirs.listen(Ipv4Addr::LOCALHOST.into());
        stop_listening(&listener);
        assert_ne!(ours.listen(Ipv4Addr::LOCALHOST.into()).1, port);
        drop(theirs);
        claim(port).expect("its process has ended");
    }

    #[test]
    fn ports_lie_below_those_of_outgoing_connections_where_there_is_room() {
        assert_eq!(below_ephemeral("32768\t60999\n"), LOWEST..32_768);
        assert_eq!(below_ephemeral("20000 65535"), LOWEST..20_000);
        assert_eq!(below_ephemeral("1024\t65535\n"), LOWEST..USUAL_EPHEMERAL_START);
        assert_eq!(below_ephemeral(""), LOWEST..USUAL_EPHEMERAL_START);
    }

    #[test]
    fn who_stops_listening_is_not_kept_by_a_copy_of_the_socket() {
        let listener = listener_on(Ipv4Addr::LOCALHOST.into());
        let addr = listener.local_addr().unwrap();
        let copy = listener.try_clone().unwrap();
        stop_listening(&listener);
        drop(listener);
        assert!(TcpStream::connect(addr).is_err());
        TcpListener::bind(addr).expect("the port is free for the server that it was found for");
        drop(copy);
    }
}
