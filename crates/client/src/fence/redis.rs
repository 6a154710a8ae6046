//! The fence in Redis: a script that compares, keeps, and goes on to the write.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind, ToRedisArgs};
use tenure_table::{FencingToken, LockName};

use super::error::FenceError;
use super::source::TokenSource;
use super::store::FenceStore;

/// What stands before the user's script. The fence's own key and token come behind the user's, and are gone when that begins.
const CHECK: &str = include_str!("check.lua");

/// The codes by which the script says no. No command of Redis has them.
const STALE: &str = "TENURESTALE";
const DAMAGED: &str = "TENUREDAMAGED";

/// Refuses stale tokens in Redis, in the same step as the write that they come with.
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
/// The newest token of a resource is in the key `tenure:fence:RESOURCE`, which stays. **It assumes that Redis keeps its
/// memory**: where that key is lost, by eviction or a restart without data, the next token to come is accepted, whatever it is.
#[derive(Clone, Debug)]
pub struct RedisFence {
    prefix: String,
    set: FencedScript,
    check: FencedScript,
}

impl RedisFence {
    /// The fence whose keys begin with `tenure:fence:`.
    pub fn new() -> Self {
        Self::with_prefix("tenure:fence:")
    }

    /// The fence whose keys begin with another text.
    pub fn with_prefix(prefix: impl Into<String>) -> Self {
        let prefix = prefix.into();
        let set = FencedScript::new(prefix.clone(), "return redis.call('SET', KEYS[1], ARGV[1])");
        let check = FencedScript::new(prefix.clone(), "");
        Self { prefix, set, check }
    }

    /// `SET key value`, unless the token is stale. As any SET, it takes away a time to live that the key may have.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: then it may have been done, or not.
    pub async fn set(
        &self,
        connection: &mut impl ConnectionLike,
        by: impl TokenSource,
        key: impl ToRedisArgs,
        value: impl ToRedisArgs,
    ) -> Result<(), FenceError> {
        self.set.key(key).arg(value).run(connection, by).await
    }

    /// Only accepts the token or refuses it, and writes nothing else: for storage that is elsewhere, where check and write are
    /// then two steps.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: then the token may have been accepted, or not.
    pub async fn guard(
        &self,
        connection: &mut impl ConnectionLike,
        by: impl TokenSource,
    ) -> Result<(), FenceError> {
        self.check.call().run(connection, by).await
    }

    /// A Lua script of your own that runs only if the token is not stale. Make it once, and call it often.
    ///
    /// Its `KEYS` and `ARGV` are those that it is called with, and what it returns comes back. As always in Redis, what it has
    /// done before an error of its own stands. A first line such as `#!lua flags=…` (Redis 7) stays the first line.
    pub fn script(&self, lua: &str) -> FencedScript {
        FencedScript::new(self.prefix.clone(), lua)
    }

    /// The same keys as a [`FenceStore`], for `FenceLayer`. Give it a connection that comes back by itself, such as the crate redis'
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

/// A script behind the fence: what [`RedisFence::script`] gives.
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
        // A function, so that a `return` in the middle of the user's text is one, and what it calls local is its own. Its end
        // is on a line of its own, in case the text ends with a comment.
        let text = format!("{first_line}{CHECK}\nreturn (function()\n{lua}\nend)()");
        let hash = Script::new(&text).get_hash().to_owned();
        Self { prefix, text, hash }
    }

    /// A call of it, without keys and arguments so far.
    pub const fn call(&self) -> FencedCall<'_> {
        FencedCall { script: self, keys: Vec::new(), args: Vec::new() }
    }

    /// A call of it with a key, its `KEYS[1]`.
    pub fn key(&self, key: impl ToRedisArgs) -> FencedCall<'_> {
        self.call().key(key)
    }

    /// A call of it with an argument, its `ARGV[1]`.
    pub fn arg(&self, arg: impl ToRedisArgs) -> FencedCall<'_> {
        self.call().arg(arg)
    }
}

/// A call of a [`FencedScript`], with what it is called with.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is run"]
pub struct FencedCall<'a> {
    script: &'a FencedScript,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl FencedCall<'_> {
    /// Its next `KEYS`.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        key.write_redis_args(&mut self.keys);
        self
    }

    /// Its next `ARGV`.
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        arg.write_redis_args(&mut self.args);
        self
    }

    /// Runs it, unless the token is stale.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: then it may have been done, or not.
    pub async fn run<T: FromRedisValue>(
        self,
        connection: &mut impl ConnectionLike,
        by: impl TokenSource,
    ) -> Result<T, FenceError> {
        let (resource, token) = by.resource_and_token()?;
        let script = self.script;
        let by_hash = self.command("EVALSHA", &script.hash, &resource, token);
        let answer = match by_hash.query_async(connection).await {
            // The whole text is not only kept by Redis but also run, so that nothing can be forgotten between the two.
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
        // What has a code was said by Redis; and what was said and not understood was done.
        (Some(_), _) => FenceError::Refused { resource, cause: error.into() },
        _ if error.kind() == ErrorKind::UnexpectedReturnType => {
            FenceError::Refused { resource, cause: error.into() }
        }
        _ => FenceError::NoAnswer { resource, cause: error.into() },
    }
}

/// A [`FenceStore`] in Redis: what [`RedisFence::store`] gives.
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
