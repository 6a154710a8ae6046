//! The scripts: each is one step that nothing comes between. They are sent by their hash, and whole where Redis does not know them (any
//! more).

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, RedisWrite, Script, ServerErrorKind, ToRedisArgs,
};
use tenure_table::GrantId;

use super::together::{answer_in_any_case, answer_of};
use super::way::Way;

/// A script, on a key, with its arguments.
pub(in crate::engines) struct Call {
    script: &'static Script,
    command: Cmd,
}

impl Call {
    pub(in crate::engines) fn new(script: &'static Script, key: &str) -> Self {
        // All in two allocations, but for who waits, or has a label.
        let mut command = Cmd::with_capacity(8, key.len() + 128);
        command.arg("EVALSHA").arg(script.get_hash()).arg(1).arg(key);
        Self { script, command }
    }

    pub(in crate::engines) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    pub(super) fn grants(mut self, grants: &[GrantId]) -> Self {
        for grant in grants {
            self.command.write_arg_fmt(grant);
        }
        self
    }

    pub(super) const fn command(&self) -> &Cmd {
        &self.command
    }

    /// Behind all that was asked for on this way before.
    pub(super) async fn send<T: FromRedisValue>(
        &self,
        way: &Way,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<T> {
        match answer_of(&self.command, way, connection).await {
            Err(error) if is_unknown(&error) => self.load_and_send(way, connection).await,
            answer => answer,
        }
    }

    /// The same, also if nobody waits for the answer any more.
    pub(super) async fn send_in_any_case<T: FromRedisValue>(
        &self,
        way: &Way,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<T> {
        match answer_in_any_case(&self.command, way).await {
            Err(error) if is_unknown(&error) => self.load_and_send(way, connection).await,
            answer => answer,
        }
    }

    /// For a Redis that [does not know](is_unknown) the script.
    pub(super) async fn load_and_send<T: FromRedisValue>(
        &self,
        way: &Way,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<T> {
        self.script.load_async(connection).await?;
        answer_of(&self.command, way, connection).await
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

/// The same, of a lock that went from one to the next: `before` had it before this one, the first of them first (see `relay`). And `here` says to whom
/// it may go, if it is not empty.
pub(super) fn release_after(key: &str, grant: GrantId, here: &str, before: &[GrantId]) -> Call {
    let mut script = release(key, grant);
    if !here.is_empty() || !before.is_empty() {
        script.arg(here);
    }
    script.grants(before)
}

/// The release of several locks, each of which one grant holds alone.
pub(super) fn release_each<'a>(grants: impl ExactSizeIterator<Item = (&'a str, GrantId)> + Clone) -> Cmd {
    let bytes: usize = grants.clone().map(|(key, _)| key.len() + 64).sum();
    let mut command = Cmd::with_capacity(3 + 2 * grants.len(), bytes + 64);
    command.arg("EVALSHA").arg(RELEASE_EACH.get_hash()).arg(grants.len());
    for (key, _) in grants.clone() {
        command.arg(key);
    }
    for (_, grant) in grants {
        command.write_arg_fmt(grant);
    }
    command
}

/// Tells Redis how that is done.
pub(super) fn load_release_each() -> Cmd {
    let mut command = redis::cmd("SCRIPT");
    command.arg("LOAD").arg(RELEASE_EACH_TEXT);
    command
}

const RELEASE_EACH_TEXT: &str = include_str!("scripts/release_each.lua");
static RELEASE_EACH: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE_EACH_TEXT));

/// One script from its parts, each of which defines what those after it use.
macro_rules! script {
    ($($part:literal)+) => {
        LazyLock::new(|| Script::new(concat!(
            $(include_str!(concat!("scripts/", $part, ".lua"))),+
        )))
    };
}

pub(in crate::engines) static ACQUIRE: LazyLock<Script> =
    script!("acquire_free" "clock" "queue" "acquire_busy" "lock" "token" "value" "wake" "members" "acquire");
pub(super) static LINE_UP: LazyLock<Script> = script!("grant" "clock" "queue" "line_up");
static RELEASE: LazyLock<Script> = script!("release_alone" "clock" "queue" "release_after" "token" "release_here" "lock" "value" "wake" "release_freed" "members" "release");
pub(in crate::engines) static RENEW: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "members" "renew");
/// The same by one to whom the lock was passed on.
pub(super) static RENEW_AFTER: LazyLock<Script> =
    script!("grant" "clock" "queue" "lock" "value" "members" "renew_after" "renew");
pub(in crate::engines) static SET_VALUE: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "members" "holds" "set_value");
pub(in crate::engines) static REMEMBER: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "members" "holds" "remember");
pub(in crate::engines) static RECALL: LazyLock<Script> = script!("grant" "clock" "recall");
pub(in crate::engines) static BREAK: LazyLock<Script> =
    script!("grant" "clock" "queue" "token" "lock" "value" "wake" "members" "break");
pub(in crate::engines) static LOOK: LazyLock<Script> =
    script!("grant" "clock" "lock" "value" "queue" "members" "look");
pub(in crate::engines) static RISE: LazyLock<Script> = script!("rise");

/// The first round of a majority that is to have a token.
pub(in crate::engines) static REDLOCK_VOTE: LazyLock<Script> = script!("grant" "redlock_vote");
/// The second round.
pub(in crate::engines) static REDLOCK_FENCE: LazyLock<Script> = script!("grant" "lock" "redlock_fence");
