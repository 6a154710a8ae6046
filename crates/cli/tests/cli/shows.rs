//! What is seen of locks: lines and JSON that scripts can rely on.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use tenure_testkit::{Etcd, MariaDb, Postgres, Redis, ZooKeeper, eventually};

use crate::place::{Pids, Place, code_of};

#[test]
fn lists_are_lines_with_tabs() {
    let place = Place::new();
    assert_eq!(place.run(&["ls"]).expect(0, "").out, "");
    let holder = place.hold("orders/42");
    let _other = place.hold("users/7");
    let listed = place.run(&["ls", "orders/"]).expect(0, "").out;
    let fields: Vec<_> = listed.trim_end().split('\t').collect();
    let [name, mode, token, who, since, waiters] = fields.as_slice() else { panic!("{listed}") };
    assert_eq!((*name, *mode, *waiters), ("orders/42", "EX", "0"));
    assert!(token.parse::<u64>().is_ok() && since.ends_with('Z') && who.starts_with("sleep@"), "{listed}");
    assert!(who.ends_with(&format!(":{}", holder.pid())));
    assert_eq!(place.run(&["ls"]).out.lines().count(), 2);
}

#[test]
fn who_holds_and_who_waits_are_lines_with_tabs() {
    let place = Place::new();
    assert_eq!(place.run(&["who", "job"]).expect(1, "`job` is free").out, "");
    let holder = place.hold("job");
    let waiter = place.start(&["run", "--label", "the\tnext", "--shared", "job", "--", "true"]);
    eventually("it to wait", || place.waiters("job") == 1);
    let shown = place.run(&["who", "job"]).expect(0, "").out;
    let lines: Vec<Vec<_>> = shown.lines().map(|line| line.split('\t').collect()).collect();
    let (holds, waits) = (&lines[0], &lines[1]);
    assert_eq!((holds[0], holds[1], holds[3], holds[7]), ("holder", "EX", "sleep", "present"));
    assert_eq!(holds[5], holder.pid().to_string());
    assert_eq!((waits[0], waits[1], waits[2], waits[3]), ("waiter", "PR", "-", "the\\tnext"), "{shown}");
    assert_eq!(waits[5], waiter.pid().to_string());
    assert!(lines.iter().all(|line| line.len() == 8), "{shown}");
}

#[test]
fn all_of_it_is_json_for_those_who_ask() {
    let place = Place::new();
    let with_code = |code: i32, arguments: &[&str]| -> Value {
        serde_json::from_str(&place.run(arguments).expect(code, "").out).unwrap()
    };
    let json = |arguments: &[&str]| with_code(0, arguments);
    assert_eq!(json(&["ls", "--json"]), serde_json::json!([]));
    assert_eq!(with_code(1, &["who", "--json", "job"])["held"], false);
    let mut holder = place.hold("job");
    let listed = json(&["ls", "--json"]);
    assert_eq!((&listed[0]["name"], &listed[0]["held"]), (&Value::from("job"), &Value::from(true)));
    let who = json(&["who", "--json", "job"]);
    let member = &who["holders"][0];
    assert_eq!(
        (&member["label"], &member["mode"], &member["present"]),
        (&"sleep".into(), &"EX".into(), &true.into())
    );
    assert_eq!((&member["pid"], &member["token"]), (&holder.pid().into(), &who["last_token"]));
    let broken = json(&["break", "--json", "job"]);
    assert_eq!((&broken["forced"], &broken["holders"][0]["pid"]), (&false.into(), &holder.pid().into()));
    assert_eq!(code_of(&mut holder), Some(76));
}

#[test]
fn a_lock_is_broken_if_somebody_holds_it() {
    let place = Place::new();
    place.run(&["break", "job"]).expect(1, "`job` is not held by anybody");
    let mut holder = place.hold("job");
    place.run(&["break", "--force", "job"]).expect(73, &format!("end process {}", holder.pid()));
    assert!(place.is_held("job"));
    let broken = place.run(&["break", "job"]).expect(0, "with --wait, this command waits for that");
    assert!(broken.out.starts_with("holder\tEX\t"), "{}", broken.out);
    assert_eq!(code_of(&mut holder), Some(76));
    place.run(&["run", "--no-wait", "job", "--", "true"]).expect(0, "");
}

/// The holder is stopped: it does not hear that it is to let go before it is continued.
#[test]
fn a_break_waits_for_the_holders_if_it_is_asked_to() {
    let place = Place::new();
    let mut holder = place.hold("job");
    holder.pause();
    let late =
        place.run(&["break", "job", "--wait", "50ms"]).expect(75, "`job` is still held by sleep (pid ");
    assert!(late.out.starts_with("holder\tEX\t") && !late.err.contains("with --wait"), "{late:#?}");
    let late = place.run(&["break", "--json", "--wait=50ms", "job"]).expect(75, "");
    assert_eq!(serde_json::from_str::<Value>(&late.out).unwrap()["gone"], false);
    let mut waiting = place.start(&["break", "job", "--wait"]);
    eventually("it to wait", || waiting.log().contains("holder\tEX\t"));
    assert!(waiting.exit_status().is_none());
    holder.resume();
    assert_eq!(code_of(&mut waiting), Some(0), "{}", waiting.log());
    assert!(!place.is_held("job"));
    place.run(&["break", "--wait", "10s", "job"]).expect(1, "`job` is not held by anybody");
}

/// What `break` was told of the holders is what is seen of them later, on every engine whose holders can be asked.
#[test]
fn a_break_waits_for_the_holders_on_every_engine() {
    let urls = [
        Redis::shared().url(),
        Postgres::shared().url(),
        MariaDb::shared().url(),
        ZooKeeper::shared().url(),
        Etcd::shared().url(),
    ];
    std::thread::scope(|scope| {
        for url in urls {
            scope.spawn(move || {
                let place = Place::with_locks_at(&url);
                let mut holder = place.start(&["run", "--ttl", "6s", "broken", "--", "sleep", "1000"]);
                eventually("the lock to be held", || place.is_held("broken"));
                place.run(&["break", "broken", "--wait"]).expect(0, "");
                assert!(!place.is_held("broken"), "{url}");
                assert_eq!(code_of(&mut holder), Some(76), "{url}: {}", holder.log());
            });
        }
    });
}

/// The next holder is not one of those that were asked.
#[test]
fn a_break_does_not_wait_for_the_next_holder() {
    let place = Place::new();
    let _holder = place.hold("job");
    let mut next = place.start(&["run", "job", "--", "sleep", "1000"]);
    eventually("it to wait", || place.waiters("job") == 1);
    place.run(&["break", "job", "--wait"]).expect(0, "");
    eventually("the next one to hold it", || place.is_held("job"));
    assert!(next.exit_status().is_none(), "{}", next.log());
}

#[test]
fn each_change_is_seen_as_it_comes() {
    let place = Place::new();
    for json in [false, true] {
        let mut command = place.tenure(&["watch", "--every", "10ms", "job"]);
        if json {
            command.arg("--json");
        }
        let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
        let _pid = Pids(vec![watch.id().cast_signed()]);
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut until = |text: &str| lines.find(|line| line.contains(text)).unwrap();
        until(if json { "\"held\":false" } else { "\tfree\t" });
        let holder = place.hold("job");
        until(
            &(if json { format!("\"pid\":{}", holder.pid()) } else { format!(":{}\ttoken ", holder.pid()) }),
        );
        drop(holder);
        until(if json { "\"held\":false" } else { "\tfree\t" });
        watch.kill().unwrap();
        watch.wait().unwrap();
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    let _holder = place.hold("job");
    let mut shell = place.program("bash");
    shell.args([
        "-c",
        "set -o pipefail; tenure completions bash | head -1 > /dev/null; tenure ls | true; echo $?",
    ]);
    let output = shell.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_watch_ends_when_nobody_reads_it() {
    let place = Place::new();
    let mut command = place.tenure(&["watch", "--every", "10ms", "job"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let _pid = Pids(vec![watch.id().cast_signed()]);
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    let _holder = place.hold("job");
    let ended = eventually("it to end", || watch.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
}

#[test]
fn a_dead_holder_is_shown_as_gone() {
    let place = Place::new();
    let mut holder = place.hold("job");
    holder.kill();
    eventually("it to be gone", || place.run(&["who", "job"]).out.trim_end().ends_with("\tgone"));
    assert_eq!(place.run(&["ls"]).out, "", "nobody holds it or waits for it");
}
