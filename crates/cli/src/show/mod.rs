//! What can be seen of locks: `ls`, `who`, `watch`, and `break`, which says whom it asked.
//!
//! A table on a terminal; elsewhere lines with tabs, which stay as they are; JSON for whoever asks for it.

mod json;
mod lines;
mod table;

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tenure::blocking::Client;
use tenure::{Break, LockInfo, Member, Presence};
use tracing_subscriber::filter::LevelFilter;

use self::lines::{ago, clean, date};
use crate::args::{BreakArgs, LsArgs, WatchArgs, WhoArgs};
use crate::exit::{Failure, OK};
use crate::say::{log, print, print_json, say};

pub(crate) fn ls(url: &str, args: &LsArgs) -> Result<u8, Failure> {
    let client = connect(url)?;
    let locks = client.list(&args.prefix)?;
    if args.json {
        print_json(&locks.iter().map(json::lock).collect())
    } else if !on_terminal() {
        print(&lines::locks(&locks))
    } else if locks.is_empty() {
        print("no lock is held or waited for\n")
    } else {
        print(&table::locks(&locks, now(&client)))
    }
}

pub(crate) fn who(url: &str, args: &WhoArgs) -> Result<u8, Failure> {
    let client = connect(url)?;
    let lock = client.inspect(&args.name)?;
    if args.json {
        print_json(&json::lock(&lock))
    } else if on_terminal() {
        print(&table::lock(&lock, now(&client)))
    } else {
        print(&lines::members(&lock))
    }
}

pub(crate) fn watch(url: &str, args: &WatchArgs) -> Result<u8, Failure> {
    let client = connect(url)?;
    let clock = client.as_async().clock().clone();
    let until = args.limit.map(|limit| clock.now() + limit);
    let mut before: Option<LockInfo> = None;
    loop {
        let lock = client.inspect(&args.name)?;
        if before.as_ref() != Some(&lock) {
            if args.json {
                let mut seen = json::lock(&lock);
                seen["seen"] = json!(date(clock.wall()));
                print_json(&seen)?;
            } else {
                print(&lines::change(&lock, clock.wall()))?;
            }
            before = Some(lock);
        }
        let left = until.map_or(args.every, |until| until.since(clock.now()).min(args.every));
        if until.is_some() && left.is_zero() {
            return Ok(OK);
        }
        // A pause of nothing would keep a processor busy.
        std::thread::sleep(left.max(Duration::from_millis(1)));
    }
}

pub(crate) fn break_lock(url: &str, args: &BreakArgs) -> Result<u8, Failure> {
    let client = connect(url)?;
    let how = if args.force { Break::Force } else { Break::Ask };
    let holders = client.break_lock(&args.name, how)?;
    if args.json {
        let holders: Vec<_> = holders.iter().map(json::member).collect();
        return print_json(&json!({ "name": args.name.as_str(), "forced": args.force, "holders": holders }));
    }
    if args.force {
        let warning =
            "is free, and its holder may still believe that it is not: only tokens protect the data";
        say(format!("`{}` {warning}", args.name));
    }
    let did = if args.force { "taken from" } else { "asked to let go" };
    let now = now(&client);
    let line = |holder: &Member| {
        if on_terminal() {
            format!("{did}: {}\n", describe(holder, now))
        } else {
            lines::member("holder", holder)
        }
    };
    print(&holders.iter().map(line).collect::<String>())
}

/// One holder or waiter, in words.
pub(crate) fn describe(member: &Member, now: SystemTime) -> String {
    let name = member.label.as_deref().map(clean);
    let place = match (member.pid, member.host.as_deref().map(clean)) {
        (Some(pid), Some(host)) => Some(format!("pid {pid} on {host}")),
        (Some(pid), None) => Some(format!("pid {pid}")),
        (None, host) => host,
    };
    let who = match (name, place) {
        (Some(name), Some(place)) => format!("{name} ({place})"),
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => format!("owner {}", member.owner),
    };
    let since = member.since.map(|since| format!(" for {}", ago(since, now)));
    who + &since.unwrap_or_default()
}

fn connect(url: &str) -> Result<Client, Failure> {
    log(LevelFilter::WARN);
    Ok(Client::connect(url)?)
}

/// Those who are still there.
fn present(members: &[Member]) -> usize {
    members.iter().filter(|member| member.presence == Presence::Present).count()
}

fn on_terminal() -> bool {
    std::io::stdout().is_terminal()
}

fn now(client: &Client) -> SystemTime {
    client.as_async().clock().wall()
}

#[cfg(test)]
mod tests {
    use tenure::{GrantId, Mode, OwnerId};

    use super::*;

    #[test]
    fn a_holder_is_described_by_what_is_known_of_it() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let mut member = Member::new(GrantId::from_u128(1), OwnerId::from_u128(2), Mode::Ex);
        assert_eq!(describe(&member, now), format!("owner {:032x}", 2));
        member.pid = Some(42);
        assert_eq!(describe(&member, now), "pid 42");
        member.host = Some("db1".into());
        member.label = Some("back\nup".into());
        member.since = Some(now - Duration::from_secs(90));
        assert_eq!(describe(&member, now), "back\\nup (pid 42 on db1) for 1m 30s");
    }
}
