//! Taking a free lock without a script, which would cost Redis twice as much.
//!
//! The commands are sent together and run one after the other, and commands of other clients may run in between. Why that does no harm:
//!
//! - **`SET … NX PX` alone decides which grant holds the lock.**
//! - **The token is drawn while the lock is held**, so it is above the tokens of all earlier holders, and below those of all later ones. If
//!   the lease was over by then, it is also over when the answer arrives, and no caller sees that token.
//! - **The other keys are looked for while the lock is held**: a value, waiters, a lock that is kept for a waiter that was woken, and the
//!   mark of an operator that broke this grant. In that last case, the token may be above the next holder's. If any of these keys exists,
//!   the request continues with the script, which handles each case. A request that is given up in between releases a lock without a mark,
//!   and notifies no waiter. A waiter that has not asked in the meantime waits as it did before.
//!
//! The text in the key cannot contain the token. The first renewal records it, and is due soon; until then, the lock is *young*.

use std::fmt::Display;
use std::pin::pin;

use redis::{Cmd, Pipeline, RedisWrite};
use tenure_table::{FencingToken, Mode, Value};

use super::RedisEngine;
use super::acquire::granted;
use super::entry::{NOT_YET, text_of};
use super::link::{Answered, Request};
use super::{FIRST_RENEWAL, milliseconds};
use crate::engine::{AcquireRequest, Granted};
use crate::error::AcquireError;

/// The result of an attempt to take a lock.
pub(super) enum TakeReply {
    Granted(Granted),
    /// The lock is held.
    Busy,
    /// The lock may have been taken. The script asks for it, with the same grant.
    GoOn,
}

/// The answers of Redis: whether the lock was free, an ID of the sequence of tokens, and the number of other keys that were found.
type Answers = (bool, String, u64);

impl RedisEngine {
    /// Returns whether a lock may be taken without a script for this request: it waits if the lock is held, and renews its lease.
    pub(super) fn is_plain(&self, request: &AcquireRequest) -> bool {
        request.waits()
            && request.mode == Mode::Ex
            && !request.reenter
            && request.renews
            && !self.address.fair
    }

    pub(super) async fn take(&self, request: &AcquireRequest, key: &str) -> Result<TakeReply, AcquireError> {
        let (sent_at, connection) = (self.now(), self.link.current_connection());
        let since = self.context.clock.wall();
        let commands = commands(request, key, self.process.details(request, since, None));
        let answer = {
            let asking = pin!(self.link.ask::<Answers>(&connection, Request::Commands(&commands)));
            self.until_cancelled(request, pin!(self.link.within(self.limit, asking))).await
        };
        match self.heard(request, &connection, answer)? {
            Ok(Answered { answer: (true, id, 0), repeated: false }) if let Some(token) = token(&id) => {
                Ok(TakeReply::Granted(
                    granted(request, sent_at, token, Value::default()).renewed_within(FIRST_RENEWAL),
                ))
            }
            Ok(Answered { answer: (false, ..), repeated: false }) => Ok(TakeReply::Busy),
            Err(fault) if fault.what.is_silence() => Err(fault.into()),
            Ok(_) | Err(_) => Ok(TakeReply::GoOn),
        }
    }
}

/// Returns the token for an ID of the sequence, as in `token.lua`. Returns `None` if the script must draw a token of the next millisecond.
fn token(id: &str) -> Option<FencingToken> {
    let (ms, n) = id.split_once('-')?;
    let (ms, n): (u64, u64) = (ms.parse().ok()?, n.parse().ok()?);
    (n < 1000).then(|| FencingToken::new(ms * 1000 + n))
}

fn commands(request: &AcquireRequest, key: &str, details: impl Display) -> Pipeline {
    // The capacity suffices, except for a long label.
    let mut set = Cmd::with_capacity(6, key.len() + 256);
    set.arg("SET").arg(key);
    set.write_arg_fmt(text_of(request, request.grant, NOT_YET, details));
    set.arg("NX").arg("PX").arg(milliseconds(request.ttl));
    let mut count = Cmd::with_capacity(7, 64);
    count.arg("XADD").arg("tenure:sequence").arg("MAXLEN").arg(0).arg("*").arg("t").arg(1);
    let mut look = Cmd::with_capacity(5, 3 * key.len() + 128);
    look.arg("EXISTS");
    for kind in ["tenure:value:", "tenure:next:", "tenure:queue:"] {
        look.write_arg_fmt(format_args!("{kind}{key}"));
    }
    look.write_arg_fmt(format_args!("tenure:break:{}", request.grant));
    let mut commands = Pipeline::with_capacity(3);
    commands.add_command(set).add_command(count).add_command(look);
    commands
}
