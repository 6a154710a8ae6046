//! Fencing in Redis: a script that compares the token, stores it, and continues with the write.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind, ToRedisArgs};
use tenure_table::{FencingToken, LockName};

use super::error::FenceError;
use super::source::TokenSource;
use super::store::FenceStore;

/// The text before the user's script. The fence's own key and token follow the user's, and are removed before the user's script begins.
const CHECK: &str = include_str!("check.lua");

/// The error codes of a refusal. No command of Redis uses them.
const STALE: &str = "TENURESTALE";
const DAMAGED: &str = "TENUREDAMAGED";

/// Refuses stale tokens in Redis, in one atomic step with the write.
///
/// ```no_run
/// # async fn example(locks: tenure::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::fence::RedisFence;
///
/// let mut redis = redis::Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
/// let fence = RedisFence::new();
///
/// let guard = locks.lock("orders/42").acquire().await?;
///
/// // A plain SET, or an error if the lock has passed on:
/// fence.set(&mut redis, &guard, "order:42:state", "paid").await?;
///
/// // A script of your own, with its own KEYS and ARGV:
/// let add = fence.script("return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// let total: i64 = add.key("order:42:total").arg(5).run(&mut redis, &guard).await?;
/// # Ok(())
/// # }
/// ```
///
/// The newest token of a resource is in the key `tenure:fence:RESOURCE`, which is never removed. **The fence assumes that Redis keeps its
/// memory**: if that key is lost, by eviction or a restart without data, the next token is accepted, however old it is.
#[derive(Clone, Debug)]
pub struct RedisFence {
    prefix: String,
    set: FencedScript,
    check: FencedScript,
}

impl RedisFence {
    /// Creates a fence whose keys begin with `tenure:fence:`.
    pub fn new() -> Self {
        Self::with_prefix("tenure:fence:")
    }

    /// Creates a fence whose keys begin with another text.
    pub fn with_prefix(prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        let set = FencedScript::new(prefix.clone(), "return redis.call('SET', KEYS[1], ARGV[1])");
        let check = FencedScript::new(prefix.clone(), "");
        Self { prefix, set, check }
    }

    /// Runs `SET key value`, unless the token is stale. As any SET, it removes the key's time to live.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the command may then have been done or not.
    pub async fn set(
        &self,
        connection: &mut impl ConnectionLike,
        by: impl TokenSource,
        key: impl ToRedisArgs,
        value: impl ToRedisArgs,
    ) -> Result<(), FenceError> {
        self.set.key(key).arg(value).run(connection, by).await
    }

    /// Accepts or refuses the token, and writes nothing else: for storage elsewhere, where check and write are then two steps.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the token may then have been accepted or not.
    pub async fn guard(
        &self,
        connection: &mut impl ConnectionLike,
        by: impl TokenSource,
    ) -> Result<(), FenceError> {
        self.check.call().run(connection, by).await
    }

    /// Creates a Lua script that runs only if the token is not stale. Create it once, and call it often.
    ///
    /// Its `KEYS` and `ARGV` are those of the call, and its result is returned. As always in Redis, what the script did before its own
    /// error remains. A first line such as `#!lua flags=…` (Redis 7) stays the first line.
    pub fn script(&self, lua: &str) -> FencedScript {
        FencedScript::new(self.prefix.clone(), lua)
    }

    /// Returns a [`FenceStore`] on the same keys, for `FenceLayer`. Pass a connection that reconnects by itself, such as the crate redis'
    /// `ConnectionManager`: after a `MultiplexedConnection` has broken, all requests are answered with 503.
    pub const fn store<C>(self, connection: C) -> RedisStore<C>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        RedisStore { fence: self, connection }
    }
}

impl Default for RedisFence {
    fn default() -> Self {
        Self::new()
    }
}

/// A fenced script, made by [`RedisFence::script`].
#[derive(Clone, Debug)]
pub struct FencedScript {
    prefix: String,
    text: String,
    hash: String,
}

impl FencedScript {
    fn new(prefix: String, lua: &str) -> Self {
        let (first_line, lua) = match lua.split_once('\n') {
            Some((first, rest)) if first.starts_with("#!") => (format!("{first}\n"), rest),
            _ => (String::new(), lua),
        };
        // A function, so that a `return` in the middle of the user's text works, and its locals are its own. The `end` is on a separate
        // line, in case the text ends with a comment.
        let text = format!("{first_line}{CHECK}\nreturn (function()\n{lua}\nend)()");
        let hash = Script::new(&text).get_hash().to_owned();
        Self { prefix, text, hash }
    }

    /// Creates a call without keys and arguments.
    pub const fn call(&self) -> FencedCall<'_> {
        FencedCall { script: self, keys: Vec::new(), args: Vec::new() }
    }

    /// Creates a call with a key, its `KEYS[1]`.
    pub fn key(&self, key: impl ToRedisArgs) -> FencedCall<'_> {
        self.call().key(key)
    }

    /// Creates a call with an argument, its `ARGV[1]`.
    pub fn arg(&self, arg: impl ToRedisArgs) -> FencedCall<'_> {
        self.call().arg(arg)
    }
}

/// A call of a [`FencedScript`], with its keys and arguments.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is run"]
pub struct FencedCall<'a> {
    script: &'a FencedScript,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl FencedCall<'_> {
    /// Adds the next of its `KEYS`.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        key.write_redis_args(&mut self.keys);
        self
    }

    /// Adds the next of its `ARGV`.
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        arg.write_redis_args(&mut self.args);
        self
    }

    /// Runs the script, unless the token is stale.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the script may then have run or not.
    pub async fn run<T: FromRedisValue>(
        self,
        connection: &mut impl ConnectionLike,
        by: impl TokenSource,
    ) -> Result<T, FenceError> {
        let (resource, token) = by.resource_and_token()?;
        let script = self.script;
        let by_hash = self.command("EVALSHA", &script.hash, &resource, token);
        let answer = match by_hash.query_async(connection).await {
            // EVAL sends the whole text, which Redis both keeps and runs. So it cannot be forgotten between two requests.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.command("EVAL", &script.text, &resource, token).query_async(connection).await
            }
            answer => answer,
        };
        answer.map_err(|error| failed(resource, token, error))
    }

    fn command(&self, eval: &str, script: &str, resource: &LockName, token: FencingToken) -> Cmd {
        let mut command = redis::cmd(eval);
        command.arg(script).arg(self.keys.len() + 1).arg(&self.keys);
        command.arg(format!("{}{resource}", self.script.prefix)).arg(&self.args).arg(token.get());
        command
    }
}

fn failed(resource: LockName, token: FencingToken, error: RedisError) -> FenceError {
    match (error.code(), error.detail()) {
        (Some(STALE), Some(newest)) => match newest.trim().parse() {
            Ok(newest) => FenceError::Stale { resource, token, newest: FencingToken::new(newest) },
            Err(_) => FenceError::Damaged { resource, found: newest.to_owned() },
        },
        (Some(DAMAGED), found) => {
            FenceError::Damaged { resource, found: found.unwrap_or_default().to_owned() }
        }
        // An error with a code is a response of Redis. After a response of an unexpected type, the script has run.
        (Some(_), _) => FenceError::Refused { resource, cause: error.into() },
        _ if error.kind() == ErrorKind::UnexpectedReturnType => {
            FenceError::Refused { resource, cause: error.into() }
        }
        _ => FenceError::NoAnswer { resource, cause: error.into() },
    }
}

/// A [`FenceStore`] in Redis, made by [`RedisFence::store`].
#[derive(Clone, Debug)]
pub struct RedisStore<C> {
    fence: RedisFence,
    connection: C,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> FenceStore for RedisStore<C> {
    fn accept<'a>(
        &'a self,
        resource: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        let mut connection = self.connection.clone();
        async move { self.fence.guard(&mut connection, (resource, token)).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scripts_first_line_stays_the_first_line() {
        let script = RedisFence::new().script("#!lua flags=allow-stale\nreturn 1 -- one");
        assert!(script.text.starts_with("#!lua flags=allow-stale\ndo\n"), "{}", script.text);
        assert!(script.text.ends_with("\nreturn 1 -- one\nend)()"), "{}", script.text);
    }
}
