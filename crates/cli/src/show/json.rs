//! Locks as JSON. Unknown values are `null`. Fields may be added, and are never removed.

use serde_json::{Value, json};
use tenure::{LockInfo, Member, Presence};

use super::lines::{date, hex};

pub(super) fn lock(lock: &LockInfo) -> Value {
    let value = (!lock.value.bytes.is_empty()).then(|| {
        json!({
            "text": std::str::from_utf8(&lock.value.bytes).ok(),
            "hex": hex(&lock.value.bytes),
            "in_doubt": lock.value.in_doubt,
        })
    });
    json!({
        "name": lock.name.as_str(),
        "held": lock.present_holders().next().is_some(),
        "holders": lock.holders.iter().map(member).collect::<Vec<_>>(),
        "waiters": lock.waiters.iter().map(member).collect::<Vec<_>>(),
        "last_token": lock.last_token,
        "value": value,
    })
}

pub(super) fn member(member: &Member) -> Value {
    json!({
        "mode": member.mode,
        "token": member.token,
        "label": member.label,
        "host": member.host,
        "pid": member.pid,
        "since": member.since.map(date),
        "present": member.presence == Presence::Present,
        "owner": member.owner.to_string(),
        "grant": member.grant.to_string(),
    })
}
