//! The keys in etcd.
//!
//! Each holder or waiter has a key exactly one level below the lock's name, under a lease, as in etcd's own recipe: `etcdctl lock` and this
//! engine wait for each other. Other keys of the engine start with `tenure:`, after the prefix.

use tenure_table::{GrantId, LockName, Mode};

use super::ENGINE;
use super::api::{Found, KeyValue};
use crate::engines::kept_value::KeptValue;
use crate::engines::queue::{self, Entry, Queue};
use crate::error::EngineError;

/// The beginning of keys that are not locks.
pub(super) const OWN_KEYS: &str = "tenure:";

/// The keys of a lock.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// The beginning of the keys of all holders and waiters.
    pub(super) below: String,
    pub(super) value: String,
    pub(super) start: String,
}

impl Keys {
    pub(super) fn of(prefix: &str, name: &LockName) -> Result<Self, EngineError> {
        if name.as_str().starts_with(OWN_KEYS) {
            let message = format!(
                "keys that start with `{OWN_KEYS}` are the engine's own: choose another name, or `?prefix=` for all locks"
            );
            return Err(EngineError::Refused { engine: ENGINE, message, cause: None });
        }
        Ok(Self {
            below: format!("{prefix}{name}/"),
            value: format!("{prefix}{OWN_KEYS}value:{name}"),
            start: format!("{prefix}{OWN_KEYS}start:{name}"),
        })
    }

    /// Returns the key of a grant.
    pub(super) fn entry(&self, grant: GrantId, mode: Mode) -> String {
        format!("{}{}", self.below, queue::called(grant, mode))
    }

    /// Returns the key of an entry in the queue.
    pub(super) fn seen(&self, entry: &Entry) -> String {
        format!("{}{}", self.below, entry.node)
    }

    /// Returns the queue: those keys in a list that are holders or waiters.
    pub(super) fn queue<'a>(&self, found: impl IntoIterator<Item = &'a KeyValue>) -> Queue {
        Queue::new(found.into_iter().filter_map(|kv| entry(&self.below, kv)).collect())
    }
}

/// Returns the key that records the withdrawal of a request, so that the request has no effect if it still arrives.
pub(super) fn gone(prefix: &str, grant: GrantId) -> String {
    format!("{prefix}{OWN_KEYS}gone:{grant}")
}

/// Returns the entry of a key that is a holder or waiter: exactly one level below the name, and under a lease. A key without a lease is
/// other data, and a deeper key belongs to another lock.
fn entry(below: &str, kv: &KeyValue) -> Option<Entry> {
    let called = str::from_utf8(kv.key.strip_prefix(below.as_bytes())?).ok()?;
    if kv.lease == 0 || called.is_empty() || called.contains('/') || called.starts_with(OWN_KEYS) {
        return None;
    }
    let whose = queue::whose(called);
    Some(Entry {
        order: kv.create_revision,
        // Another program's lock is an exclusive one.
        mode: whose.map_or(Mode::Ex, |(_, mode)| mode),
        grant: whose.map(|(grant, _)| grant),
        node: called.to_owned(),
    })
}

/// Returns the lock name in a key without the prefix, and the name of the entry.
pub(super) fn name_of(key: &str) -> Option<(&str, &str)> {
    key.rsplit_once('/').filter(|(name, called)| !name.starts_with(OWN_KEYS) && !called.starts_with(OWN_KEYS))
}

/// Whether a lock recipe wrote a key: this engine's, or that of `etcdctl lock` and etcd's own clients, which name it after its lease.
pub(super) fn is_of_a_recipe(called: &str, lease: i64) -> bool {
    lease != 0 && (queue::whose(called).is_some() || called == format!("{lease:x}"))
}

/// A stored value of a lock.
#[derive(Clone, Debug)]
pub(super) struct StoredValue {
    pub(super) kept: Option<KeptValue>,
    /// The revision of the last write; 0 if there is no value.
    pub(super) revision: i64,
}

impl StoredValue {
    pub(super) fn read(found: &Found) -> Result<Self, EngineError> {
        let Some(kv) = found.kvs.first() else { return Ok(Self { kept: None, revision: 0 }) };
        let kept = KeptValue::parse(&kv.value).ok_or_else(|| EngineError::Damaged {
            engine: ENGINE,
            message: format!(
                "the key `{}` is not a value that was written by this program: look at it with `etcdctl get`, and delete it",
                String::from_utf8_lossy(&kv.key)
            ),
        })?;
        Ok(Self { kept: Some(kept), revision: kv.mod_revision })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn each_thing_of_a_lock_has_a_key_of_its_own() {
        let name = LockName::parse("orders/42").unwrap();
        let keys = Keys::of("app/", &name).unwrap();
        let grant = GrantId::from_u128(7);
        assert_eq!(keys.entry(grant, Mode::Pr), "app/orders/42/00000000000000000000000000000007-PR");
        assert_eq!(keys.value, "app/tenure:value:orders/42");
        assert_eq!(keys.start, "app/tenure:start:orders/42");
        assert_eq!(gone("app/", grant), "app/tenure:gone:00000000000000000000000000000007");
        assert!(Keys::of("app/", &LockName::parse("tenure:x").unwrap()).is_err());
    }

    #[test]
    fn a_key_says_which_lock_it_is_of() {
        assert_eq!(name_of("orders/42/694d71ddf2dd5a8f"), Some(("orders/42", "694d71ddf2dd5a8f")));
        assert_eq!(name_of("orders"), None);
        assert_eq!(name_of("tenure:value:a/b"), None);
        assert_eq!(name_of("app/tenure:start:a"), None, "another client's, which has a prefix");
        assert!(is_of_a_recipe("694d71ddf2dd5a8f", 0x694d_71dd_f2dd_5a8f));
        assert!(is_of_a_recipe(&queue::called(random::grant_id(), Mode::Ex), 1));
        assert!(!is_of_a_recipe("web-1", 5) && !is_of_a_recipe("0", 0));
    }
}
