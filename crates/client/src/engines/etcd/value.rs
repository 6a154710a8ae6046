//! Writing a lock's value, and releasing a lock.
//!
//! A write has two conditions: the grant exists, and the value has the revision that the writer knows. A write that was given up and
//! arrives late therefore overwrites neither a later write of the same grant, nor the value that its release left.

use std::sync::Arc;

use bytes::Bytes;

use super::EtcdEngine;
use super::api::{Compare, Get, Put, Txn};
use super::fault::Fault;
use super::keys::Keys;
use super::lease::{Lease, Writes};
use super::leave::{Left, leave};
use crate::engine::Grant;
use crate::engines::kept_value::KeptValue;
use crate::engines::session::{HasSession, InUse};
use crate::error::{Lost, LostReason, ReleaseError, ValueError};

impl EtcdEngine {
    pub(super) async fn write(self: Arc<Self>, grant: Grant, bytes: Bytes) -> Result<(), ValueError> {
        let lost = |reason| ValueError::from(Lost { name: grant.name.clone(), reason });
        let keys = self.keys(&grant.name)?;
        let Some((lease, held)) = self.keeper.sessions.with(grant.id, grant.ttl) else {
            return Err(lost(LostReason::Forgotten));
        };
        let Some(writes) = lease.writes_of(grant.id) else { return Err(lost(LostReason::Forgotten)) };
        let stands = Compare::created_at(held.node, held.token.get().cast_signed());
        let written = KeptValue::written(bytes, grant.id);
        let write = Write { engine: self.clone(), keys, lease, grant: grant.clone(), stands, written };
        // In a separate task: the next write and the release wait for it, so it must not depend on a caller that is not polled.
        let writing = self.context.runtime.spawn(write.go(writes));
        let written =
            async { writing.await.unwrap_or_else(|_| Err(Fault::no_answer("the client was closed".into()))) };
        let ends = self.now() + self.link.limit();
        if self.link.until(ends, written).await? { Ok(()) } else { Err(lost(LostReason::Forgotten)) }
    }

    pub(super) async fn let_go(&self, grant: &Grant) -> Result<(), ReleaseError> {
        let keys = self.keys(&grant.name)?;
        let key = keys.entry(grant.id, grant.mode);
        let Some(lease) = self.keeper.sessions.of(grant.ttl) else {
            // The grant ended with its lease, unless the lease is ending just now.
            let freed = leave(&self.link, &key, None, None).await?;
            return if freed { Ok(()) } else { Err(ReleaseError::NotHeld(LostReason::Disconnected)) };
        };
        let letting_go = async {
            // Earlier writes are finished first, and no new one begins.
            let _writes = match lease.writes_of(grant.id) {
                Some(writes) => Some(writes.lock_owned().await),
                None => None,
            };
            let marked = match lease.session().held(grant.id) {
                Some(held) => held.marked.zip(Some(held.token.get().cast_signed())),
                None => lease.mark_of(grant.id),
            };
            let left = marked.map(|(value, token)| Left { at: keys.value, value, token });
            self.keeper.leave(&lease, grant.id, &key, left.as_ref()).await
        };
        let ends = self.now() + self.link.limit();
        let freed = self.link.until(ends, letting_go).await?;
        if freed { Ok(()) } else { Err(ReleaseError::NotHeld(LostReason::Forgotten)) }
    }
}

struct Write {
    engine: Arc<EtcdEngine>,
    keys: Keys,
    lease: InUse<Lease>,
    grant: Grant,
    /// The condition that the grant exists.
    stands: Compare,
    written: KeptValue,
}

impl Write {
    /// Writes the value. Returns false if the grant is gone.
    async fn go(self, writes: Writes) -> Result<bool, Fault> {
        let Self { engine, keys, lease, grant, stands, written } = self;
        let mut last = writes.lock().await;
        // Until a response arrives, the revision is unknown.
        let mut known = last.take();
        loop {
            let expected = if let Some(revision) = known {
                revision
            } else {
                let found = engine.link.get(Get::key(keys.value.as_str()).keys_only()).await?;
                found.kvs.first().map_or(0, |kv| kv.mod_revision)
            };
            let unchanged = Compare::written_at(keys.value.as_str(), expected);
            let txn = Txn::new()
                .when([stands.clone(), unchanged])
                .and_then([Put::new(keys.value.as_str(), written.text()).into()])
                .or_else([Get::key(keys.entry(grant.id, grant.mode)).keys_only().into()]);
            let answer = engine.link.txn(txn).await?.answer;
            if answer.succeeded {
                *last = Some(answer.revision());
                lease.session().mark(grant.id, Some(written));
                return Ok(true);
            }
            if answer.found().first().is_none_or(|own| own.kvs.is_empty()) {
                // The writing call may have been dropped, so the holder is notified here.
                if let Some(held) = lease.session().held(grant.id) {
                    held.is_lost(LostReason::Forgotten);
                }
                lease.forget(grant.id);
                return Ok(false);
            }
            // An earlier write of this grant has arrived, or this one did when it was first sent.
            known = None;
        }
    }
}
