//! Locks as tables, for people at a terminal.

use std::fmt::Write;
use std::time::SystemTime;

use comfy_table::{Table, presets};
use tenure::{LockInfo, Member, Presence};

use super::lines::{clean, hex, or_nothing};
use super::{describe, present};
use crate::say::short;

pub(super) fn locks(locks: &[LockInfo], now: SystemTime) -> String {
    let mut table = new_table(&["LOCK", "MODE", "HELD BY", "TOKEN", "WAITING"]);
    for lock in locks {
        let holders: Vec<_> = lock.holders.iter().map(|holder| who(holder, now)).collect();
        let first = lock.holders.first();
        table.add_row([
            lock.name.to_string(),
            or_nothing(first.map(|holder| holder.mode)),
            if holders.is_empty() { "nobody".to_owned() } else { holders.join("\n") },
            or_nothing(first.and_then(|holder| holder.token)),
            present(&lock.waiters).to_string(),
        ]);
    }
    format!("{table}\n")
}

pub(super) fn lock(lock: &LockInfo, now: SystemTime) -> String {
    let mut text = String::new();
    if lock.holders.is_empty() && lock.waiters.is_empty() {
        let _ = writeln!(text, "`{}` is free", short(&lock.name));
    } else {
        let mut table = new_table(&["", "MODE", "WHO", "TOKEN"]);
        for (role, members) in [("holds", &lock.holders), ("waits", &lock.waiters)] {
            for member in members {
                let mode = member.mode.to_string();
                table.add_row([role.to_owned(), mode, who(member, now), or_nothing(member.token)]);
            }
        }
        let _ = writeln!(text, "{table}");
    }
    if !lock.value.bytes.is_empty() {
        let value = std::str::from_utf8(&lock.value.bytes).map_or_else(|_| hex(&lock.value.bytes), clean);
        let doubt = if lock.value.in_doubt { " (in doubt: a holder that could write it died)" } else { "" };
        let _ = writeln!(text, "value: {value}{doubt}");
    }
    text
}

fn who(member: &Member, now: SystemTime) -> String {
    let died = if member.presence == Presence::Gone { "(died) " } else { "" };
    format!("{died}{}", describe(member, now))
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    table
}

#[cfg(test)]
mod tests {
    use tenure::{GrantId, LockName, Mode, OwnerId, Value};

    use super::*;

    #[test]
    fn a_lock_is_shown_with_all_that_is_known_of_it() {
        let now = SystemTime::UNIX_EPOCH;
        let mut free = LockInfo::free(LockName::parse("a").unwrap());
        assert_eq!(lock(&free, now), "`a` is free\n");
        free.value = Value { bytes: "page 7".into(), in_doubt: true };
        assert!(lock(&free, now).ends_with("value: page 7 (in doubt: a holder that could write it died)\n"));
        let mut member = Member::new(GrantId::from_u128(1), OwnerId::from_u128(2), Mode::Ex);
        member.label = Some("backup".into());
        free.waiters.push(member.clone());
        member.presence = Presence::Gone;
        free.holders.push(member);
        let shown = lock(&free, now);
        assert!(
            shown.contains("holds") && shown.contains("(died) backup") && shown.contains("waits"),
            "{shown}"
        );
        assert!(locks(&[free], now).contains("(died) backup"));
    }
}
