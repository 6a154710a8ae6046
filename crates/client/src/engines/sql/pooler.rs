//! A proxy that pools transactions: each may be in another session, where neither locks, settings, messages nor prepared statements are
//! one's own. It is told by the number of the session, which there is not the same from transaction to transaction.

use sqlx::Error;

use super::connection::Connection;
use super::fault::{Fault, POOLED, What};
use super::link::Link;
use crate::sql::Dialect;

/// How often one is asked which session it is in, after both were in one: a pool that gives out what it had back last, or what it had
/// back first, or any, shows it by then.
const ASKED: usize = 4;

/// Refuses such a proxy. With MySQL, there is nothing to ask: such proxies give an answer of their own.
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
    if session(one, "").await? == session(other, "").await? {
        return Ok(true);
    }
    // Both at once: then there are two sessions to give out.
    let first = session(one, "BEGIN; ").await?;
    session(other, "BEGIN; ").await?;
    one.plain("COMMIT").await?;
    other.plain("COMMIT").await?;
    for _ in 0..ASKED {
        if session(one, "").await? != first {
            return Ok(true);
        }
    }
    Ok(false)
}

/// In which session a connection is. Not prepared: of two who prepare a statement in the same session, the second is refused.
async fn session(connection: &mut Connection, before: &str) -> Result<i64, Error> {
    let answers = connection.batch(format!("{before}SELECT pg_backend_pid()::bigint")).await?;
    answers.iter().flatten().next().ok_or(Error::RowNotFound)?.int(0)
}
