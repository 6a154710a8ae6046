//! How a lock that is free is taken without a script, which would cost Redis twice as much.
//!
//! The commands are sent together and done one after the other, and others' may come in between. Why that does no harm:
//!
//! - **`SET … NX PX` alone decides who holds.**
//! - **The token is drawn while the lock is held**, so it is above those of all who held it before, and below those of all who come
//!   after. If the lease was over by then, so is belief in it when the answer comes, and nobody sees that token.
//! - **The rest is looked for while the lock is held**: a value, those who wait, that it was kept for one who was told to ask, or that an operator
//!   has broken it since, in which case the token may be above the next holder's. Who finds something goes on with the script, which knows what to do about it. Who gives up in between gives back a lock without a mark, and tells
//!   nobody: whoever has not looked meanwhile waits as it did before.
//!
//! What the key says cannot have the token in it. The first renewal writes it down, and is due soon; until then, the lock is *young*.

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

/// What became of it.
pub(super) enum TakeReply {
    Granted(Granted),
    /// Somebody has it.
    Busy,
    /// It may have been taken, and is to be asked for by the script, as the same grant.
    GoOn,
}

/// What Redis says: whether it was free, an ID of the sequence of tokens, and whether there is more to it.
type Answers = (bool, String, u64);

impl RedisEngine {
    /// Whether a request can be for a lock that is taken so: by one who waits if it is not free, and who renews what it gets.
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

/// The token that an ID of the sequence stands for, as in `token.lua`. Nothing, if the script is to draw one of the next millisecond.
fn token(id: &str) -> Option<FencingToken> {
    let (ms, n) = id.split_once('-')?;
    let (ms, n): (u64, u64) = (ms.parse().ok()?, n.parse().ok()?);
    (n < 1000).then(|| FencingToken::new(ms * 1000 + n))
}

fn commands(request: &AcquireRequest, key: &str, details: impl Display) -> Pipeline {
    // Room for all of it, but for a long label.
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
