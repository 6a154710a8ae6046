//! Inspecting and listing locks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Value as Answer;
use tenure_table::{LockName, Mode, Value};

use super::entry::{self, Held};
use super::fault::Fault;
use super::link::{Link, Repeat};
use super::scripts::{self, Call};
use crate::info::{LockInfo, Member};

/// The number of keys in one step of a listing.
const STEP: usize = 500;

/// The state of a lock in one Redis.
pub(in crate::engines) struct Seen {
    pub(in crate::engines) info: LockInfo,
    /// Whether the token is not yet recorded.
    pub(super) is_young: bool,
}

pub(in crate::engines) async fn inspect(
    link: &Arc<Link>,
    limit: Duration,
    key: &str,
    name: LockName,
) -> Result<Seen, Fault> {
    let answer: Vec<Answer> = link.script(limit, Repeat::Harmless, &Call::new(&scripts::LOOK, key)).await?;
    let mut info = LockInfo::free(name);
    let mut is_young = false;
    let [kind, held, value, members, waiting] = answer.as_slice() else {
        return Ok(Seen { info, is_young });
    };
    let mut written_to = false;
    match (kind, held) {
        (_, Answer::BulkString(text)) => match Held::parse(text) {
            Held::One(member) => {
                written_to = true;
                info.holders.push(member);
            }
            Held::Young(member) => {
                (written_to, is_young) = (true, true);
                info.holders.push(member);
            }
            Held::Many { mode } => {
                written_to = mode == Mode::Ex;
                info.holders = pairs(members, entry::holder);
            }
            Held::Another(member) => info.holders.push(member),
        },
        (Answer::SimpleString(kind), _) if kind != "none" => {
            info.holders.push(not_a_lock(kind));
        }
        (Answer::BulkString(kind), _) if kind != b"none" => {
            info.holders.push(not_a_lock(&String::from_utf8_lossy(kind)));
        }
        _ => {}
    }
    info.holders.sort_by_key(|member| member.since);
    info.waiters = pairs(waiting, entry::waiter);
    info.last_token = info.holders.iter().filter_map(|member| member.token).max();
    if let Answer::BulkString(value) = value
        && let Some((state, bytes)) = value.split_first()
    {
        let in_doubt = matches!(state, b'd' | b'D') || (*state == b'o' && !written_to);
        info.value = Value { bytes: Bytes::copy_from_slice(bytes), in_doubt };
    }
    Ok(Seen { info, is_young })
}

fn pairs(answer: &Answer, read: impl Fn(crate::GrantId, &str) -> Option<Member>) -> Vec<Member> {
    match answer {
        Answer::Array(pairs) => entry::all(pairs, read),
        _ => Vec::new(),
    }
}

/// Returns a holder for a key that is not a lock.
fn not_a_lock(kind: &str) -> Member {
    let Held::Another(mut member) = Held::parse(kind.as_bytes()) else { unreachable!("a type is no lock") };
    member.label = Some(format!("no lock, but a {kind} of another program"));
    member
}

/// Returns the names of the locks below a prefix that are held or waited for. The scan visits all keys of the database, in steps.
pub(in crate::engines) async fn names(
    link: &Arc<Link>,
    limit: Duration,
    key_prefix: &str,
    prefix: &str,
) -> Result<BTreeSet<LockName>, Fault> {
    let mut names = BTreeSet::new();
    for (before, is_lock_itself) in [("", true), ("tenure:queue:", false)] {
        let start = format!("{before}{key_prefix}");
        let pattern = format!("{}*", escaped(&format!("{start}{prefix}")));
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let (next, keys): (u64, Vec<Vec<u8>>) = link.command(limit, &scan).await?;
            let found = if is_lock_itself { locks_among(link, limit, keys).await? } else { keys };
            let name =
                |key: Vec<u8>| LockName::parse(String::from_utf8(key).ok()?.strip_prefix(&start)?).ok();
            names.extend(found.into_iter().filter_map(name));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(names)
}

/// Returns the keys that are locks of this engine. Other keys may be of any type and size, so they are not read.
async fn locks_among(link: &Arc<Link>, limit: Duration, keys: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Fault> {
    if keys.is_empty() {
        return Ok(keys);
    }
    let mut types = redis::pipe();
    for key in &keys {
        types.cmd("TYPE").arg(key);
    }
    let types: Vec<String> = link.commands(limit, &types).await?;
    let texts: Vec<Vec<u8>> =
        keys.into_iter().zip(types).filter(|(_, kind)| kind == "string").map(|(key, _)| key).collect();
    if texts.is_empty() {
        return Ok(texts);
    }
    let mut beginnings = redis::pipe();
    for key in &texts {
        beginnings.cmd("GETRANGE").arg(key).arg(0).arg(7);
    }
    let beginnings: Vec<Vec<u8>> = link.commands(limit, &beginnings).await?;
    Ok(texts
        .into_iter()
        .zip(beginnings)
        .filter(|(_, start)| Held::is_ours(start))
        .map(|(key, _)| key)
        .collect())
}

/// Returns a pattern that matches only this text.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
        escaped
    })
}
