//! Inspecting and listing locks.

use sqlx::Error;
use tenure_table::{FencingToken, GrantId, LockName, OwnerId};

use super::SessionEngine;
use crate::engines::details;
use crate::engines::sql::connection::{Arg, Connection, Row};
use crate::engines::sql::fault::Fault;
use crate::engines::sql::tables::{damaged, end_of, id};
use crate::engines::sql::work::Work;
use crate::info::{LockInfo, Member};

impl SessionEngine {
    pub(super) async fn look(&self, name: LockName) -> Result<LockInfo, Fault> {
        let holders = self.holders(&self.texts.of(&name)).await?;
        let key = self.texts.key(&name);
        let token = |row: &Row| Ok(FencingToken::new(row.int(0)?.unsigned_abs()));
        let tokens = self.short.rows(&self.texts.last_token, &[Arg::Text(&key)], token).await?;
        let mut info = LockInfo::free(name);
        info.holders = holders.into_iter().map(|(_, member)| member).collect();
        info.last_token = tokens.first().copied();
        Ok(info)
    }

    pub(super) async fn look_at_all(&self, prefix: &str) -> Result<Vec<LockInfo>, Fault> {
        let mut locks: Vec<LockInfo> = Vec::new();
        for (name, member) in self.holders(&self.texts.between(prefix.as_bytes(), &end_of(prefix))).await? {
            let Some(name) = String::from_utf8(name).ok().and_then(|name| LockName::parse(name).ok()) else {
                continue;
            };
            if locks.last().is_none_or(|last| last.name != name) {
                locks.push(LockInfo::free(name));
            }
            if let Some(lock) = locks.last_mut() {
                lock.last_token = lock.last_token.max(member.token);
                lock.holders.push(member);
            }
        }
        Ok(locks)
    }

    /// Returns the holders of the selected locks, with the names of the locks.
    async fn holders(&self, which: &str) -> Result<Vec<(Vec<u8>, Member)>, Fault> {
        let answers = self.short.with(Batch(self.texts.holders(which))).await?;
        let read = |row: &Row| {
            let mode = row.text(3)?.parse().map_err(|_| damaged("mode"))?;
            let (grant, owner) = (GrantId::from_u128(id(row, 1)?), OwnerId::from_u128(id(row, 2)?));
            let mut member = details::member(grant, owner, mode, &row.text(5)?);
            member.token = Some(FencingToken::new(row.int(4)?.unsigned_abs()));
            Ok((row.bytes(0)?, member))
        };
        let members: Result<Vec<_>, Error> = answers.iter().flatten().map(read).collect();
        members.map_err(|error| self.short.fault(error))
    }
}

/// Statements that are sent together.
struct Batch(String);

impl Work for Batch {
    type Answer = Vec<Vec<Row>>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Vec<Vec<Row>>, Error> {
        connection.batch(self.0.clone()).await
    }
}
