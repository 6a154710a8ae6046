//! Reading and changing the record of a lock: a transaction of two messages, with the lock's row locked in between.

use sqlx::Error;
use tenure_table::{GrantId, OwnerId};

use super::TableEngine;
use super::book::{Book, Holder, Waiter};
use super::texts::State;
use crate::engines::sql::connection::{Arg, Connection, Row};
use crate::engines::sql::tables::{damaged, id};
use crate::engines::sql::work::Work;
use crate::sql::Dialect;

/// A change of the record of a lock.
pub(super) struct Change<'a, F> {
    pub(super) engine: &'a TableEngine,
    pub(super) name: &'a [u8],
    /// The grant that asks, if it may be in the queue.
    pub(super) asks: Option<GrantId>,
    pub(super) how: F,
}

impl<T: Send, F: FnMut(&mut Book, bool) -> T + Send> Work for Change<'_, F> {
    type Answer = T;

    async fn run(&mut self, connection: &mut Connection, unanswered: bool) -> Result<T, Error> {
        let Self { engine, name, how, .. } = self;
        let mut read = engine.read(connection, name, true).await?;
        if read.is_none() {
            // The row is created outside of the transaction, so that other requests for it do not wait for the end of this one.
            connection.plain("ROLLBACK").await?;
            connection.run(&engine.texts.make, &[Arg::Bytes(name)]).await?;
            read = engine.read(connection, name, true).await?;
        }
        let (state, was) = read.ok_or(Error::RowNotFound)?;
        let mut book = was.clone();
        book.expire(self.asks);
        let answer = how(&mut book, unanswered);
        let called = book.call();
        if book == was {
            connection.plain("ROLLBACK").await?;
            return Ok(answer);
        }
        let written = connection.batch(engine.texts.write(name, state, &was, &book, &called)).await?;
        for (_, grant) in called.iter().filter(|(client, _)| client.is_empty()) {
            engine.listener.wake(*grant, ());
        }
        if engine.address.dialect == Dialect::MySql && !called.is_empty() {
            // The change is done, even if this notification fails: waiters also ask without one.
            if let Err(error) = wake(connection, &written).await {
                tracing::debug!(%error, "those whose turn it is were not told");
            }
        }
        Ok(answer)
    }
}

/// Wakes the listening connections in the answers of MySQL. If the number of a client now belongs to a connection that does not listen,
/// that connection is not stopped.
async fn wake(connection: &mut Connection, answers: &[Vec<Row>]) -> Result<(), Error> {
    for row in answers.iter().flatten() {
        let Some(number) = row.maybe_int(0)? else { continue };
        // The connection may be gone, which does no harm.
        match connection.plain(format!("KILL QUERY {number}")).await {
            Err(error) if error.as_database_error().is_some() => {}
            done => done?,
        }
    }
    Ok(())
}

/// A read of the record of a lock.
pub(super) struct Look<'a> {
    pub(super) engine: &'a TableEngine,
    pub(super) name: &'a [u8],
}

impl Work for Look<'_> {
    type Answer = Option<(State, Book)>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Self::Answer, Error> {
        self.engine.read(connection, self.name, false).await
    }
}

impl TableEngine {
    /// Reads the record of a lock. Returns `None` if it has no row.
    async fn read(
        &self,
        connection: &mut Connection,
        name: &[u8],
        locked: bool,
    ) -> Result<Option<(State, Book)>, Error> {
        let answers = connection.batch(self.texts.read(name, locked)).await?;
        let first = if !locked && self.address.dialect == Dialect::MySql { 2 } else { 1 };
        let [rows, holders, waiters, ..] = answers.get(first..).unwrap_or_default() else {
            return Err(Error::RowNotFound);
        };
        let Some(row) = rows.first() else { return Ok(None) };
        let state = State::read(row.int(1)?).ok_or_else(|| damaged("state"))?;
        let mut book = Book {
            token: row.int(0)?,
            value: row.maybe_bytes(7)?,
            in_doubt: row.int(8)? != 0,
            start: row.maybe_int(9)?.zip(row.maybe_bytes(10)?),
            now: row.int(11)?,
            ..Book::default()
        };
        if state == State::Alone {
            book.holders.push(Holder {
                grant: GrantId::from_u128(id(row, 2)?),
                owner: OwnerId::from_u128(id(row, 3)?),
                mode: row.text(4)?.parse().map_err(|_| damaged("mode"))?,
                token: book.token,
                expires: row.int(5)?,
                details: row.text(6)?,
                broken: false,
            });
        }
        for row in holders {
            book.holders.push(Holder {
                grant: GrantId::from_u128(id(row, 0)?),
                owner: OwnerId::from_u128(id(row, 1)?),
                mode: row.text(2)?.parse().map_err(|_| damaged("mode"))?,
                token: row.int(3)?,
                expires: row.int(4)?,
                details: row.text(5)?,
                broken: row.int(6)? != 0,
            });
        }
        for row in waiters {
            book.waiters.push(Waiter {
                ticket: Some(row.int(0)?),
                grant: GrantId::from_u128(id(row, 1)?),
                owner: OwnerId::from_u128(id(row, 2)?),
                mode: row.text(3)?.parse().map_err(|_| damaged("mode"))?,
                client: row.text(4)?,
                kept_until: row.int(5)?,
                called: row.int(6)? != 0,
                details: row.text(7)?,
            });
        }
        Ok(Some((state, book)))
    }
}
