//! The scripts: each is one step that nothing comes between. They are sent by their hash, and a second time whole if Redis does not know them
//! (any more).

use std::sync::LazyLock;

use redis::{Arg, Cmd, ErrorKind, RedisError, RedisWrite, ServerErrorKind, ToRedisArgs};
use tenure_table::GrantId;

/// A script: its text, and the hash by which Redis knows it.
pub(in crate::engines) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }
}

/// A script, on a key, with its arguments.
#[derive(Clone)]
pub(in crate::engines) struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Call {
    pub(in crate::engines) fn new(script: &'static Script, key: &str) -> Self {
        // All in two allocations, but for who waits, or has a label.
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

    /// The same call with the script's text, for a Redis that [does not know](is_unknown) it. It does not rely on what Redis remembers: that may be
    /// gone again by the next command.
    pub(super) fn whole(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.text);
        for argument in self.command.args_iter().skip(2) {
            // It has no other ones.
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

/// Whether Redis does not know the script (any more).
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// The release of what a grant holds.
pub(in crate::engines) fn release(key: &str, grant: GrantId) -> Call {
    let mut script = Call::new(&RELEASE, key);
    script.command.write_arg_fmt(grant);
    script
}

/// One script from its parts, each of which defines what those after it use.
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

/// The first round of a majority that is to have a token.
pub(in crate::engines) static REDLOCK_VOTE: LazyLock<Script> = script!("grant" "redlock_vote");
/// The second round.
pub(in crate::engines) static REDLOCK_FENCE: LazyLock<Script> = script!("grant" "lock" "redlock_fence");
