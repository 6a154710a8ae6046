//! The scripts. Redis runs each of them as one atomic step. A script is sent by its hash, and with its text if Redis does not know the
//! hash.

use std::sync::LazyLock;

use redis::{Arg, Cmd, ErrorKind, RedisError, RedisWrite, ServerErrorKind, ToRedisArgs};
use tenure_table::GrantId;

/// A script: its text, and its hash in Redis.
pub(in crate::engines) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// A call of a script, on a key, with its arguments.
#[derive(Clone)]
pub(in crate::engines) struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Call {
    pub(in crate::engines) fn new(script: &'static Script, key: &str) -> Self {
        // Two allocations are enough, except for a waiter or a request with a label.
        let mut command = Cmd::with_capacity(8, key.len() + 128);
        command.arg("EVALSHA").arg(&script.hash).arg(1).arg(key);
        Self { script, command }
    }

    pub(in crate::engines) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    pub(super) const fn command(&self) -> &Cmd {
        &self.command
    }

    /// Returns the same call with the script's text, for a Redis that [does not know](is_unknown) the hash. The script is not loaded
    /// beforehand: Redis may have forgotten it by the next command.
    pub(super) fn whole(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.text);
        for argument in self.command.args_iter().skip(2) {
            // The command has no other arguments.
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

/// Returns whether Redis does not know the script.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Returns the call that releases what a grant holds.
pub(in crate::engines) fn release(key: &str, grant: GrantId) -> Call {
    let mut script = Call::new(&RELEASE, key);
    script.command.write_arg_fmt(grant);
    script
}

/// Joins the parts of a script, each of which defines what later parts use.
macro_rules! script {
    ($($part:literal)+) => {
        LazyLock::new(|| Script::new(concat!(
            $(include_str!(concat!("scripts/", $part, ".lua"))),+
        )))
    };
}

pub(in crate::engines) static ACQUIRE: LazyLock<Script> =
    script!("token" "acquire_free" "clock" "queue" "acquire_busy" "lock" "value" "wake" "members" "acquire");
static RELEASE: LazyLock<Script> = script!("release_alone" "clock" "queue" "token" "release_here" "lock" "value" "wake" "release_freed" "members" "release");
pub(in crate::engines) static RENEW: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "members" "renew");
pub(in crate::engines) static SET_VALUE: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "members" "holds" "set_value");
pub(in crate::engines) static REMEMBER: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "members" "holds" "remember");
pub(in crate::engines) static RECALL: LazyLock<Script> = script!("grant" "clock" "recall");
pub(in crate::engines) static BREAK: LazyLock<Script> =
    script!("grant" "clock" "queue" "token" "lock" "value" "wake" "members" "break");
pub(in crate::engines) static LOOK: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "queue" "members" "look");

/// The first round of a majority with a fencing token: the vote.
pub(in crate::engines) static REDLOCK_VOTE: LazyLock<Script> = script!("grant" "redlock_vote");
/// The second round: the token is recorded.
pub(in crate::engines) static REDLOCK_FENCE: LazyLock<Script> = script!("grant" "lock" "redlock_fence");
