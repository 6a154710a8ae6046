//! The commands that show locks: `ls`, `who`, `watch`, and `break`, which shows the affected holders.
//!
//! The output is a table on a terminal, stable tab-separated lines elsewhere, and JSON on request.

mod json;
mod lines;
mod table;

use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tenure::blocking::Client;
use tenure::{Break, LockInfo, LockName, Member, Presence};

use self::lines::{ago, clean, date};
use crate::args::{BreakArgs, LsArgs, WatchArgs, WhoArgs};
use crate::connection::with_client;
use crate::exit::{self, Failure, NOT_HELD, OK};
use crate::say::{print, print_json, say, short};

pub(crate) fn ls(url: &str, args: &LsArgs) -> Result<u8, Failure> {
    with_client(url, |client| {
        let locks = client.list(&args.prefix)?;
        if args.json {
            print_json(&locks.iter().map(json::lock).collect())
        } else if !on_terminal() {
            print(&lines::locks(&locks))
        } else if locks.is_empty() {
            print("no lock is held or waited for\n")
        } else {
            print(&table::locks(&locks, now(client)))
        }
    })
}

pub(crate) fn who(url: &str, args: &WhoArgs) -> Result<u8, Failure> {
    with_client(url, |client| {
        let lock = client.inspect(&args.name)?;
        let is_free = lock.present_holders().next().is_none();
        if args.json {
            print_json(&json::lock(&lock))?;
        } else if on_terminal() {
            print(&table::lock(&lock, now(client)))?;
        } else {
            print(&lines::members(&lock))?;
            if is_free {
                say(format!("`{}` is free", short(&args.name)));
            }
        }
        Ok(if is_free { NOT_HELD } else { OK })
    })
}

pub(crate) fn watch(url: &str, args: &WatchArgs) -> Result<u8, Failure> {
    with_client(url, |client| {
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
            if left.is_zero() {
                return Ok(OK);
            }
            std::thread::sleep(left);
        }
    })
}

pub(crate) fn break_lock(url: &str, args: &BreakArgs) -> Result<u8, Failure> {
    with_client(url, |client| {
        let how = if args.force { Break::Force } else { Break::Ask };
        let holders = client.break_lock(&args.name, how)?;
        if !args.json {
            tell_broken(client, args, &holders)?;
        }
        let left = match args.wait {
            Some(limit) => Some(wait_for_release(client, &args.name, &holders, limit)?),
            None => None,
        };
        if args.json {
            let holders: Vec<_> = holders.iter().map(json::member).collect();
            let gone = left.as_ref().map(Vec::is_empty);
            let (name, forced) = (args.name.as_str(), args.force);
            print_json(&json!({ "name": name, "forced": forced, "holders": holders, "gone": gone }))?;
        }
        match left.as_deref() {
            Some([first, ..]) => Err(Failure::new(
                exit::NOT_GOT,
                format!(
                    "`{}` is still held by {}: wait longer, or end that process",
                    short(&args.name),
                    describe(first, now(client))
                ),
            )),
            _ => Ok(OK),
        }
    })
}

/// Prints the holders that lost the lock or were asked to release it.
fn tell_broken(client: &Client, args: &BreakArgs, holders: &[Member]) -> Result<(), Failure> {
    let (name, now) = (short(&args.name), now(client));
    let did = if args.force { "taken from" } else { "asked to release it" };
    let line = |holder: &Member| {
        if on_terminal() {
            format!("{did}: {}\n", describe(holder, now))
        } else {
            lines::member("holder", holder)
        }
    };
    print(&holders.iter().map(line).collect::<String>())?;
    if args.force {
        let warning =
            "is free, and its holder may still act as the holder: only fencing tokens protect the data";
        say(format!("`{name}` {warning}"));
    } else if args.wait.is_none() {
        let hint = "is held until its holder has noticed and ended its work";
        say(format!("`{name}` {hint}: with --wait, this command waits for that"));
    }
    Ok(())
}

/// Waits until these holders have released, and returns those that have not within the limit.
fn wait_for_release(
    client: &Client,
    name: &LockName,
    holders: &[Member],
    limit: Option<Duration>,
) -> Result<Vec<Member>, Failure> {
    const PAUSE: Duration = Duration::from_millis(100);
    let clock = client.as_async().clock();
    let until = limit.map(|limit| clock.now() + limit);
    loop {
        let mut left: Vec<_> = client.inspect(name)?.present_holders().cloned().collect();
        left.retain(|member| holders.iter().any(|holder| holder.grant == member.grant));
        let pause = until.map_or(PAUSE, |until| until.since(clock.now()).min(PAUSE));
        if left.is_empty() || pause.is_zero() {
            return Ok(left);
        }
        std::thread::sleep(pause);
    }
}

/// Describes a holder or waiter in words.
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

/// Counts the members that are still present.
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
