//! Requests to the database.

use std::future::Future;

use sqlx::Error;

use super::connection::{Arg, Connection, Done, Row, Sql};

/// A request to the database, run on a connection. If it may be sent again, a second run must have no further effect. `unanswered` says
/// whether it was sent before without an answer.
pub(super) trait Work: Send {
    type Answer: Send;

    /// Whether the request must not be sent again: the first one may still be carried out, long after the second.
    const ONCE: bool = false;

    fn run(
        &mut self,
        connection: &mut Connection,
        unanswered: bool,
    ) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

pub(super) struct Run<'a> {
    pub(super) sql: &'a Sql,
    pub(super) args: &'a [Arg<'a>],
}

impl Work for Run<'_> {
    type Answer = (Done, bool);

    async fn run(&mut self, connection: &mut Connection, unanswered: bool) -> Result<(Done, bool), Error> {
        Ok((connection.run(self.sql, self.args).await?, unanswered))
    }
}

pub(super) struct Rows<'a, F> {
    pub(super) sql: &'a Sql,
    pub(super) args: &'a [Arg<'a>],
    pub(super) read: F,
}

impl<T: Send, F: Fn(&Row) -> Result<T, Error> + Send + Sync> Work for Rows<'_, F> {
    type Answer = Vec<T>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Vec<T>, Error> {
        connection.rows(self.sql, self.args).await?.iter().map(&self.read).collect()
    }
}

/// A request that is not sent again.
pub(super) struct Once<W>(pub(super) W);

impl<W: Work> Work for Once<W> {
    type Answer = W::Answer;
    const ONCE: bool = true;

    async fn run(&mut self, connection: &mut Connection, unanswered: bool) -> Result<W::Answer, Error> {
        self.0.run(connection, unanswered).await
    }
}

/// Statements without arguments, one after the other.
pub(super) struct Plain<'a>(pub(super) &'a [String]);

impl Work for Plain<'_> {
    type Answer = ();

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<(), Error> {
        for statement in self.0 {
            connection.plain(statement.as_str()).await?;
        }
        Ok(())
    }
}
