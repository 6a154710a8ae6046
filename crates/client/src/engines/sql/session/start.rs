//! The last start of a job, for `once_per`: in the row of the lock's tokens, by the database's clock.
//!
//! One statement records a start, on the condition that the database still shows the grant's session as the holder. So a holder that has
//! lost the lock records nothing, and no two starts within a window are recorded.

use std::time::Duration;

use tenure_table::LockName;

use super::SessionEngine;
use crate::engine::{Grant, Remembered, Start};
use crate::engines::sql::connection::{Arg, Row};
use crate::engines::sql::fault::Fault;
use crate::engines::sql::whole_ms;
use crate::error::{Lost, LostReason, RememberError};
use crate::random;

/// A recorded start.
struct Recorded {
    id: Vec<u8>,
    ago: Duration,
}

impl SessionEngine {
    pub(super) async fn record_start(
        &self,
        grant: &Grant,
        start: Start,
    ) -> Result<Remembered, RememberError> {
        let key = self.texts.key(&grant.name);
        let (ago, window) = (Arg::Int(whole_ms(start.ago)), Arg::Int(whole_ms(start.window)));
        // The statement may be sent twice: this id identifies its start.
        let id = random::grant_id().as_u128().to_be_bytes();
        let (holder, name) = (grant.id.as_u128().to_be_bytes(), grant.name.as_str().as_bytes());
        let args =
            [ago, Arg::Bytes(&id), Arg::Text(&key), Arg::Bytes(name), Arg::Bytes(&holder), ago, window];
        // Two attempts, since the window of the earlier start may end between the two statements.
        for _ in 0..2 {
            let (recorded, _) = self.short.run(&self.texts.record_start, &args).await?;
            if recorded.rows == 1 {
                return Ok(Remembered::Recorded);
            }
            match self.last_start(&grant.name).await? {
                Some(last) if last.id == id => return Ok(Remembered::Recorded),
                Some(last) if last.ago < start.window.max(start.ago) => {
                    return Ok(Remembered::Already { ago: last.ago });
                }
                _ => {}
            }
        }
        Err(Lost { name: grant.name.clone(), reason: LostReason::Disconnected }.into())
    }

    /// Returns how long ago the last start was, if that is less than the window.
    pub(super) async fn started_ago(
        &self,
        name: &LockName,
        window: Duration,
    ) -> Result<Option<Duration>, Fault> {
        Ok(self.last_start(name).await?.map(|last| last.ago).filter(|ago| *ago < window))
    }

    async fn last_start(&self, name: &LockName) -> Result<Option<Recorded>, Fault> {
        let key = self.texts.key(name);
        let args = [Arg::Text(&key), Arg::Bytes(name.as_str().as_bytes())];
        let read = |row: &Row| {
            let Some((at, id)) = row.maybe_int(0)?.zip(row.maybe_bytes(1)?) else { return Ok(None) };
            let ago = Duration::from_millis(u64::try_from(row.int(2)? - at).unwrap_or_default());
            Ok(Some(Recorded { id, ago }))
        };
        Ok(self.short.rows(&self.texts.last_start, &args, read).await?.into_iter().flatten().next())
    }
}
