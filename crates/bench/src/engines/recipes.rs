//! The recipes of both databases, written by hand: what is the same in both. What each sends is [`Database`]'s.

use std::future::Future;

use anyhow::{Result, ensure};
use sqlx::Connection;

use super::redis::pause;
use super::sql::{self, Recipe};
use super::thread::Thread;
use crate::workload::{Contender, Held};

/// What a database is sent.
pub(super) trait Database: Send + 'static {
    type Connection: Connection + Send;

    /// What the recipes `table` and `session` are called in the tables.
    const TABLE: &'static str;
    const SESSION: &'static str;

    fn connect(url: String) -> impl Future<Output = Result<Self::Connection>> + Send + 'static;

    /// Takes a free row and raises its token; whether it was free.
    fn take(
        connection: &mut Self::Connection,
        key: &str,
        holder: i64,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Frees such a row; whether it was held.
    fn free(
        connection: &mut Self::Connection,
        key: &str,
        holder: i64,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Locks a row, in a transaction.
    fn lock_row(connection: &mut Self::Connection, key: &str) -> impl Future<Output = Result<()>> + Send;

    /// The next token, committed at once.
    fn count(connection: &mut Self::Connection, key: &str) -> impl Future<Output = Result<()>> + Send;

    /// Takes a lock that the session holds; whether it has it.
    fn lock(connection: &mut Self::Connection, key: &str) -> impl Future<Output = Result<bool>> + Send;

    /// Gives it back; whether it was held.
    fn unlock(connection: &mut Self::Connection, key: &str) -> impl Future<Output = Result<bool>> + Send;
}

/// The bare recipe, and ours beside it.
pub(super) async fn beside_ours<D: Database>(url: &str, recipe: &str) -> Result<Vec<Box<dyn Contender>>> {
    match recipe {
        "table" => sql::beside_ours::<Table<D>>(url, recipe).await,
        "row" => {
            let mut contenders = sql::beside_ours::<Row<D>>(url, recipe).await?;
            contenders.insert(2, sql::bare::<CheckedRow<D>>(url, Thread::Another));
            Ok(contenders)
        }
        _ => sql::beside_ours::<Session<D>>(url, recipe).await,
    }
}

/// A row that says who holds it, until when.
struct Table<D: Database>(D::Connection);

impl<D: Database> Recipe for Table<D> {
    const NAME: &'static str = D::TABLE;

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(holds.open(D::connect(url.to_owned())).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let holder = sql::holder();
        while !D::take(&mut self.0, key, holder).await? {
            pause().await;
        }
        held.await;
        ensure!(D::free(&mut self.0, key, holder).await?, "{key} was lost while it was held");
        Ok(())
    }
}

/// A row that an open transaction locks. A second connection counts, since what the first one writes is not committed yet.
struct Row<D: Database> {
    locks: D::Connection,
    counts: D::Connection,
}

impl<D: Database> Recipe for Row<D> {
    const NAME: &'static str = "bare SELECT … FOR UPDATE + token";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        let (locks, counts) = (holds.open(D::connect(url.to_owned())), D::connect(url.to_owned()));
        Ok(Self { locks: locks.await?, counts: counts.await? })
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let mut transaction = self.locks.begin().await?;
        D::lock_row(&mut transaction, key).await?;
        D::count(&mut self.counts, key).await?;
        held.await;
        Ok(transaction.commit().await?)
    }
}

/// The same, which sees to it that the row was still locked when the token was counted: if the first connection has died in between, another
/// holds the lock, and may have a smaller token.
struct CheckedRow<D: Database>(Row<D>);

impl<D: Database> Recipe for CheckedRow<D> {
    const NAME: &'static str = "bare SELECT … FOR UPDATE + token + ping";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(Row::connect(url, holds).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let Row { locks, counts } = &mut self.0;
        let mut transaction = locks.begin().await?;
        D::lock_row(&mut transaction, key).await?;
        D::count(counts, key).await?;
        transaction.ping().await?;
        held.await;
        Ok(transaction.commit().await?)
    }
}

/// A lock that a session holds.
struct Session<D: Database>(D::Connection);

impl<D: Database> Recipe for Session<D> {
    const NAME: &'static str = D::SESSION;

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(holds.open(D::connect(url.to_owned())).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        ensure!(D::lock(&mut self.0, key).await?, "{key} was not to be had");
        D::count(&mut self.0, key).await?;
        held.await;
        ensure!(D::unlock(&mut self.0, key).await?, "{key} was lost while it was held");
        Ok(())
    }
}
