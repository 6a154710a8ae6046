//! Detection of a proxy that pools transactions. Behind it, each transaction may run in another session, so locks, settings, messages and
//! prepared statements do not belong to the client. The number of the session then changes between transactions.

use sqlx::Error;

use super::connection::Connection;
use super::fault::{Fault, POOLED, What};
use super::link::Link;
use crate::sql::Dialect;

/// The order in which two connections are asked for their session. A pool that reuses the last returned session is detected when the
/// connections take turns, and a round-robin pool when they do not. With more queries, other clients of the pool in between matter less: a
/// pool is missed only if each of the two connections always gets the same session.
const ASKED: [Asked; 16] = {
    use Asked::{One, Other};
    [One, Other, One, One, Other, Other, One, Other, Other, One, Other, One, One, Other, One, Other]
};

#[derive(Clone, Copy)]
enum Asked {
    One,
    Other,
}

/// Refuses such a proxy. With MySQL this is not possible: such proxies answer the query for the session themselves.
pub(super) async fn refuse(link: &Link) -> Result<(), Fault> {
    if link.dialect != Dialect::Postgres {
        return Ok(());
    }
    let (mut one, mut other) = (link.take().await?, link.another().await?);
    let asking = async {
        let pooled = is_pooled(&mut one.connection, &mut other).await;
        pooled.map_err(|error| link.fault(error))
    };
    if link.within(link.limit(), What::NoAnswer, asking).await? {
        return Err(link.refused(POOLED));
    }
    link.put_back(one);
    other.close().await;
    Ok(())
}

async fn is_pooled(one: &mut Connection, other: &mut Connection) -> Result<bool, Error> {
    let (of_one, of_other) = (session(one).await?, session(other).await?);
    if of_one == of_other {
        return Ok(true);
    }
    for asked in ASKED {
        let (connection, before) = match asked {
            Asked::One => (&mut *one, of_one),
            Asked::Other => (&mut *other, of_other),
        };
        if session(connection).await? != before {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the session of a connection. The statement is not prepared: a second preparation of it in the same session would fail.
async fn session(connection: &mut Connection) -> Result<i64, Error> {
    let answers = connection.batch("SELECT pg_backend_pid()::bigint".to_owned()).await?;
    answers.iter().flatten().next().ok_or(Error::RowNotFound)?.int(0)
}
