//! A proxy that pools transactions: each may be in another session, where neither locks, settings, messages nor prepared statements are
//! one's own. It is told by the number of the session, which there is not the same from transaction to transaction.

use sqlx::Error;

use super::connection::Connection;
use super::fault::{Fault, POOLED, What};
use super::link::Link;
use crate::sql::Dialect;

/// Which of the two connections is asked each time for the session that it is in. A pool that gives out the session that it had back last
/// shows itself when they take turns, and one that gives them out in a circle when they do not. The more are asked, the less it matters
/// that other clients of the pool come in between: a pool stays unseen only if it gives each of the two its own session every time.
const ASKED: [Asked; 16] = {
    use Asked::{One, Other};
    [One, Other, One, One, Other, Other, One, Other, Other, One, Other, One, One, Other, One, Other]
};

#[derive(Clone, Copy)]
enum Asked {
    One,
    Other,
}

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

/// In which session a connection is. Not prepared: of two who prepare a statement in the same session, the second is refused.
async fn session(connection: &mut Connection) -> Result<i64, Error> {
    let answers = connection.batch("SELECT pg_backend_pid()::bigint".to_owned()).await?;
    answers.iter().flatten().next().ok_or(Error::RowNotFound)?.int(0)
}
