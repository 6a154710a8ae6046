//! The last start of a job: a key under a separate lease, which ends with the start's window. The elapsed time of that lease gives the
//! start's age.

use std::time::Duration;

use tenure_table::GrantId;

use super::EtcdEngine;
use super::api::{Compare, Get, KeyValue, Put, Txn};
use super::fault::Fault;
use super::keys::Keys;
use crate::engine::{Grant, Remembered, Start};
use crate::error::{Lost, LostReason, RememberError};
use crate::random;

/// The resolution of the remaining time of a lease: etcd reports whole seconds.
const COARSE: Duration = Duration::from_secs(1);

/// The longest window in seconds; etcd allows longer leases.
const LONGEST_SECS: u64 = 8_000_000_000;

/// A start that was found.
struct Noted {
    /// The id of the request that recorded it.
    id: GrantId,
    /// The reported age.
    ago: Duration,
    /// The least possible age, for decisions.
    at_least: Duration,
}

/// The recorded form of a start: its id, its age when the lease was requested, and its age when the lease was granted.
#[derive(Debug, PartialEq, Eq)]
struct Note {
    id: GrantId,
    ago: Duration,
    ago_when_granted: Duration,
}

impl Note {
    fn text(&self) -> String {
        format!("{} {} {}", self.id, self.ago.as_millis(), self.ago_when_granted.as_millis())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = str::from_utf8(text).ok()?.split(' ');
        let id = words.next()?.parse().ok()?;
        let mut ms = || Some(Duration::from_millis(words.next()?.parse().ok()?));
        Some(Self { id, ago: ms()?, ago_when_granted: ms()? })
    }

    /// Returns the age of the start, given the whole and the remaining seconds of its lease.
    fn noted(&self, of: i64, left: i64) -> Noted {
        // A leader elected meanwhile gives a lease its whole time again, and some more.
        let ran =
            Duration::from_secs(u64::try_from(of.saturating_sub(left)).unwrap_or(0)).saturating_sub(COARSE);
        Noted { id: self.id, ago: self.ago_when_granted + ran, at_least: self.ago + ran }
    }
}

impl EtcdEngine {
    pub(super) async fn note(&self, grant: &Grant, start: Start) -> Result<Remembered, RememberError> {
        let keys = self.keys(&grant.name)?;
        let lost = || RememberError::from(Lost { name: grant.name.clone(), reason: LostReason::Forgotten });
        let Some(held) = self.keeper.sessions.with(grant.id, grant.ttl).map(|(_, held)| held) else {
            return Err(lost());
        };
        let (id, asked) = (random::grant_id(), self.now());
        // This start must not replace a later one.
        let window = start.window.max(start.ago);
        let mut note: Option<(i64, Note)> = None;
        loop {
            let (found, noted) = self.noted(&keys).await?;
            let revision = found.as_ref().map_or(0, |kv| kv.mod_revision);
            if let Some(noted) = noted {
                if noted.id == id {
                    return Ok(Remembered::Recorded);
                }
                if noted.at_least < window {
                    self.give_back(note.as_ref());
                    return Ok(Remembered::Already { ago: noted.ago.min(almost(window)) });
                }
            }
            let left = start.window.saturating_sub(start.ago);
            if note.is_none() && !left.is_zero() {
                let secs = left.as_nanos().div_ceil(1_000_000_000).try_into().unwrap_or(LONGEST_SECS);
                let secs = i64::try_from(secs.min(LONGEST_SECS)).expect("this is much less than the most");
                let ago = start.ago + self.now().since(asked);
                let lease = self.link.grant(secs).await?.id;
                let ago_when_granted = start.ago + self.now().since(asked);
                note = Some((lease, Note { id, ago, ago_when_granted }));
            }
            let mut txn = Txn::new().when([
                Compare::created_at(held.node.as_str(), held.token.get().cast_signed()),
                Compare::written_at(keys.start.as_str(), revision),
            ]);
            // A start before its window is not recorded.
            if let Some((lease, note)) = &note {
                txn = txn.and_then([Put::new(keys.start.as_str(), note.text()).under(*lease).into()]);
            }
            let own = Get::key(held.node.as_str()).keys_only();
            let answer = self.link.txn(txn.or_else([own.into()])).await?.answer;
            if answer.succeeded {
                return Ok(Remembered::Recorded);
            }
            if answer.found().first().is_none_or(|own| own.kvs.is_empty()) {
                self.give_back(note.as_ref());
                return Err(lost());
            }
        }
    }

    pub(super) async fn noted_ago(&self, keys: &Keys, window: Duration) -> Result<Option<Duration>, Fault> {
        let (_, noted) = self.noted(keys).await?;
        Ok(noted.filter(|noted| noted.at_least < window).map(|noted| noted.ago.min(almost(window))))
    }

    /// Returns the key of the recorded start, and the start if it can be read.
    async fn noted(&self, keys: &Keys) -> Result<(Option<KeyValue>, Option<Noted>), Fault> {
        let found = self.link.get(Get::key(keys.start.as_str())).await?;
        let Some(kv) = found.kvs.into_iter().next() else { return Ok((None, None)) };
        let Some(note) = Note::parse(&kv.value).filter(|_| kv.lease != 0) else {
            // Another program wrote the key: the time of the start is unknown.
            return Ok((Some(kv), None));
        };
        let lives = self.link.lease_lives(kv.lease).await?;
        // The lease has ended by now.
        let noted = (lives.ttl >= 0).then(|| note.noted(lives.granted_ttl, lives.ttl));
        Ok((Some(kv), noted))
    }

    /// Revokes a lease that has no key.
    fn give_back(&self, note: Option<&(i64, Note)>) {
        if let Some(&(id, _)) = note {
            let link = self.link.clone();
            self.keeper.undoing.spawn_on(async move { drop(link.revoke(id).await) }, &self.context.runtime);
        }
    }
}

/// Returns the longest age within a window.
fn almost(window: Duration) -> Duration {
    window.saturating_sub(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = Note { id: random::grant_id(), ago: SECOND * 3, ago_when_granted: SECOND * 4 };
        assert_eq!(Note::parse(note.text().as_bytes()), Some(note));
        for text in [&b""[..], b"x 1 2", b"00000000000000000000000000000001 1", b"\xff"] {
            assert_eq!(Note::parse(text), None);
        }
    }

    #[test]
    fn it_is_never_said_to_be_longer_ago_than_it_was() {
        let note = Note { id: random::grant_id(), ago: SECOND * 3, ago_when_granted: SECOND * 3 };
        // After 4.2 s, 5.8 s of 10 remain, and etcd reports 5.
        assert_eq!(note.noted(10, 5).at_least, SECOND * 7);
        // After 4 s, etcd reports 6.
        assert_eq!(note.noted(10, 6).at_least, SECOND * 6);
        assert_eq!(note.noted(10, 10).at_least, SECOND * 3);
        assert_eq!(note.noted(10, 11).at_least, SECOND * 3, "a new leader gave it more");
    }
}
