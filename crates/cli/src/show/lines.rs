//! Locks as tab-separated lines for scripts. The format is stable.

use std::fmt::Write;
use std::time::SystemTime;

use tenure::{LockInfo, Member, Presence};

use super::present;
use crate::duration;

/// An unknown value.
const NOTHING: &str = "-";

/// Escapes characters of a foreign text that would break a line or move the cursor.
pub(super) fn clean(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

pub(super) fn date(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Formats how long ago a time was, for people.
pub(super) fn ago(since: SystemTime, now: SystemTime) -> String {
    duration::text(now.duration_since(since).unwrap_or_default())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn or_nothing(known: Option<impl ToString>) -> String {
    known.map_or_else(|| NOTHING.to_owned(), |known| known.to_string())
}

/// Returns a line for each lock: `name mode token holders since waiters`.
pub(super) fn locks(locks: &[LockInfo]) -> String {
    let line = |lock: &LockInfo| {
        let first = lock.holders.first();
        let holders: Vec<_> = lock.holders.iter().map(short).collect();
        let fields = [
            lock.name.to_string(),
            or_nothing(first.map(|holder| holder.mode)),
            or_nothing(first.and_then(|holder| holder.token)),
            or_nothing(first.map(|_| holders.join(","))),
            or_nothing(first.and_then(|holder| holder.since).map(date)),
            present(&lock.waiters).to_string(),
        ];
        fields.join("\t") + "\n"
    };
    locks.iter().map(line).collect()
}

/// Returns a line for each holder and each waiter.
pub(super) fn members(lock: &LockInfo) -> String {
    let holders = lock.holders.iter().map(|holder| member("holder", holder));
    holders.chain(lock.waiters.iter().map(|waiter| member("waiter", waiter))).collect()
}

/// Returns `role mode token label host pid since presence`.
pub(super) fn member(role: &str, member: &Member) -> String {
    let fields = [
        role.to_owned(),
        member.mode.to_string(),
        or_nothing(member.token),
        part(member.label.as_deref()),
        part(member.host.as_deref()),
        or_nothing(member.pid),
        or_nothing(member.since.map(date)),
        if member.presence == Presence::Present { "present" } else { "gone" }.to_owned(),
    ];
    fields.join("\t") + "\n"
}

/// Returns the state of a lock: `when state token waiting`.
pub(super) fn change(lock: &LockInfo, now: SystemTime) -> String {
    let holders: Vec<_> = lock.present_holders().map(short).collect();
    let state = if holders.is_empty() { "free".to_owned() } else { format!("held by {}", holders.join(",")) };
    let token = or_nothing(lock.last_token);
    format!("{}\t{state}\ttoken {token}\t{} waiting\n", date(now), present(&lock.waiters))
}

/// Returns `label@host:pid`.
fn short(member: &Member) -> String {
    let (label, host) = (part(member.label.as_deref()), part(member.host.as_deref()));
    format!("{label}@{host}:{}", or_nothing(member.pid))
}

/// Formats a label or a host in the same way in every line. A comma is escaped, because it separates holders.
fn part(text: Option<&str>) -> String {
    or_nothing(text.map(|text| clean(text).replace(',', "\\,")))
}

#[cfg(test)]
mod tests {
    use tenure::{FencingToken, GrantId, LockName, Mode, OwnerId};

    use super::*;

    fn lock(token: u64, held: bool) -> LockInfo {
        let mut lock = LockInfo::free(LockName::parse("a").unwrap());
        lock.last_token = Some(FencingToken::new(token));
        if held {
            lock.holders.push(Member::new(GrantId::from_u128(1), OwnerId::from_u128(2), Mode::Ex));
        }
        lock
    }

    #[test]
    fn nobody_else_moves_our_cursor() {
        assert_eq!(clean("a\tb\u{1b}[2J\nü"), "a\\tb\\u{1b}[2J\\nü");
    }

    #[test]
    fn a_label_is_the_same_in_every_line() {
        let mut held = lock(7, true);
        held.holders[0].label = Some("night shift, db1".into());
        assert!(members(&held).contains("\tnight shift\\, db1\t"));
        assert!(locks(&[held.clone()]).contains("\tnight shift\\, db1@-:-\t"));
        assert!(change(&held, SystemTime::UNIX_EPOCH).contains("\theld by night shift\\, db1@-:-\t"));
    }

    #[test]
    fn a_free_lock_is_no_line() {
        assert_eq!(members(&lock(1, false)), "");
    }

    #[test]
    fn a_change_says_how_it_is_now() {
        let text = |lock: LockInfo| change(&lock, SystemTime::UNIX_EPOCH);
        assert_eq!(text(lock(7, true)), "1970-01-01T00:00:00Z\theld by -@-:-\ttoken 7\t0 waiting\n");
        assert_eq!(text(lock(7, false)), "1970-01-01T00:00:00Z\tfree\ttoken 7\t0 waiting\n");
    }
}
