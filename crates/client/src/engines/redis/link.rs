//! The way to one Redis.
//!
//! Each runtime that asks has a connection of its own, driven by that runtime: an answer then comes without a change of thread, which would
//! cost as much as the request. The client's own thread has one too, for what is done in the background.
//!
//! **A connection is used until it breaks**, also if it was silent for long: so what undoes a request follows it on the same way, and
//! cannot overtake it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, ScriptInvocation};
use tokio::runtime::{self, Handle};
use tokio::sync::OnceCell;

use super::fault::{CLUSTER, Fault};
use super::scripts;

/// More runtimes than an application has at once. Beyond that, connections of runtimes that have ended are let go of.
const MOST_WAYS: usize = 16;

/// The way to one Redis.
pub(in crate::engines) struct Link {
    engine: &'static str,
    client: Client,
    /// Host and port, for messages.
    at: String,
    ways: Mutex<HashMap<runtime::Id, Way>>,
    /// Which server process it was that answered last.
    run_id: Mutex<Option<String>>,
}

/// The way of one runtime.
pub(in crate::engines) type Way = Arc<Connected>;

/// A connection, once there is one.
#[derive(Default)]
pub(in crate::engines) struct Connected {
    connection: OnceCell<MultiplexedConnection>,
    /// Done once the counter of tokens was brought up to the date through it.
    risen: OnceCell<()>,
}

/// What can be sent.
#[derive(Clone, Copy)]
enum Request<'a> {
    Script(&'a ScriptInvocation<'a>),
    /// One that gives a token.
    Granting(&'a ScriptInvocation<'a>),
    Command(&'a Cmd),
    Commands(&'a Pipeline),
}

/// Whether a request may be sent again if its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) enum Repeat {
    /// Twice is as good as once.
    Harmless,
    /// Twice is twice.
    Never,
}

impl Link {
    pub(in crate::engines) fn new(engine: &'static str, client: Client, at: String) -> Self {
        Self { engine, client, at, ways: Mutex::default(), run_id: Mutex::default() }
    }

    /// Host and port.
    pub(in crate::engines) fn at(&self) -> &str {
        &self.at
    }

    /// What the server calls the process that answered last.
    pub(in crate::engines) fn run_id(&self) -> Option<String> {
        self.run_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a script, within this time.
    pub(in crate::engines) async fn script<T: FromRedisValue>(
        &self,
        limit: Duration,
        repeat: Repeat,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Fault> {
        self.within(limit, self.on_a_way(repeat, Request::Script(script))).await
    }

    /// Runs a script that gives a token, within this time: none that a connection gives is behind the date at which it was made.
    pub(in crate::engines) async fn granting<T: FromRedisValue>(
        &self,
        limit: Duration,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Fault> {
        self.within(limit, self.on_a_way(Repeat::Harmless, Request::Granting(script))).await
    }

    /// Runs a script behind all that was sent on a way before, within this time; on another one only if that has broken.
    pub(super) async fn script_behind<T: FromRedisValue>(
        &self,
        way: &Way,
        limit: Duration,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Fault> {
        if let Some(mut connection) = way.connection.get().cloned() {
            let sent = async { Ok(script.invoke_async(&mut connection).await) };
            match self.within(limit, sent).await? {
                Ok(answer) => return Ok(answer),
                Err(error) if is_broken(&error) => {}
                Err(error) => return Err(Fault::of(self.engine, &self.at, error)),
            }
        }
        self.script(limit, Repeat::Harmless, script).await
    }

    /// Runs a command, within this time.
    pub(in crate::engines) async fn command<T: FromRedisValue>(
        &self,
        limit: Duration,
        command: &Cmd,
    ) -> Result<T, Fault> {
        self.within(limit, self.on_a_way(Repeat::Harmless, Request::Command(command))).await
    }

    /// Runs several commands with one message, within this time.
    pub(in crate::engines) async fn commands<T: FromRedisValue>(
        &self,
        limit: Duration,
        commands: &Pipeline,
    ) -> Result<T, Fault> {
        self.within(limit, self.on_a_way(Repeat::Harmless, Request::Commands(commands))).await
    }

    /// Connects, if it is not connected: to see whether that can be done.
    pub(in crate::engines) async fn reach(&self, limit: Duration) -> Result<(), Fault> {
        let connect = async { self.connection(&self.way().1).await.map(drop) };
        self.within(limit, connect).await
    }

    /// A connection that hears what is published.
    pub(super) async fn subscribe(
        &self,
        limit: Duration,
        channel: &str,
    ) -> Result<redis::aio::PubSub, Fault> {
        let connect = async {
            let fault = |error| Fault::of(self.engine, &self.at, error);
            let mut messages = self.client.get_async_pubsub().await.map_err(fault)?;
            messages.subscribe(channel).await.map_err(fault)?;
            Ok(messages)
        };
        self.within(limit, connect).await
    }

    async fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::time::timeout(limit, request).await.unwrap_or_else(|_| {
            let message = format!(
                "{} did not answer within {limit:?}: see whether it runs, and whether this host may reach it",
                self.at
            );
            Err(Fault::no_answer(self.engine, message, None))
        })
    }

    /// Sends a request on this runtime's connection; once more on a new one, if the old one turns out to be broken.
    async fn on_a_way<T: FromRedisValue>(&self, repeat: Repeat, request: Request<'_>) -> Result<T, Fault> {
        let mut is_new = false;
        loop {
            let (id, way) = self.way();
            is_new |= !way.connection.initialized();
            let mut connection = self.connection(&way).await?;
            let answer = match request {
                Request::Granting(script) => match rise(&way, &mut connection).await {
                    Ok(()) => script.invoke_async(&mut connection).await,
                    Err(error) => Err(error),
                },
                Request::Script(script) => script.invoke_async(&mut connection).await,
                Request::Command(command) => command.query_async(&mut connection).await,
                Request::Commands(commands) => commands.query_async(&mut connection).await,
            };
            let error = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if is_broken(&error) {
                self.forget(id, &way);
            }
            if !is_broken(&error) || is_new || repeat == Repeat::Never {
                return Err(Fault::of(self.engine, &self.at, error));
            }
            is_new = true;
        }
    }

    fn ways(&self) -> MutexGuard<'_, HashMap<runtime::Id, Way>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way on which this runtime sends.
    pub(super) fn present_way(&self) -> Way {
        self.way().1
    }

    fn way(&self) -> (runtime::Id, Way) {
        let id = Handle::current().id();
        let mut ways = self.ways();
        if ways.len() >= MOST_WAYS && !ways.contains_key(&id) {
            // Whoever is using one still has it.
            ways.clear();
        }
        (id, ways.entry(id).or_default().clone())
    }

    fn forget(&self, id: runtime::Id, way: &Way) {
        let mut ways = self.ways();
        if ways.get(&id).is_some_and(|present| Arc::ptr_eq(present, way)) {
            ways.remove(&id);
        }
    }

    /// Lets go of all connections.
    pub(in crate::engines) fn close(&self) {
        self.ways().clear();
    }

    async fn connection(&self, way: &Way) -> Result<MultiplexedConnection, Fault> {
        Ok(way.connection.get_or_try_init(|| self.connect()).await?.clone())
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let fault = |error| Fault::of(self.engine, &self.at, error);
        // The time limit is that of the request that waits for it.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await.map_err(fault)?;
        match redis::cmd("INFO").query_async::<String>(&mut connection).await {
            Ok(info) => self.examine(&info)?,
            // Whoever may not ask is trusted to know what it connects to.
            Err(error) if error.code() == Some("NOPERM") => {}
            Err(error) => return Err(fault(error)),
        }
        Ok(connection)
    }

    /// Refuses what cannot keep locks.
    fn examine(&self, info: &str) -> Result<(), Fault> {
        let field = |name: &str| {
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let refused = |message: String| Err(Fault::refused(self.engine, message, None));
        let at = &self.at;
        match field("redis_mode") {
            Some("sentinel") => {
                return refused(format!(
                    "{at} is a Sentinel, which keeps no keys: connect to the master that it names (`SENTINEL get-master-addr-by-name`)"
                ));
            }
            Some("cluster") => return refused(format!("{at} does not do it: {CLUSTER}")),
            _ => {}
        }
        if field("role") == Some("slave") {
            let master =
                format!("{}:{}", field("master_host").unwrap_or("?"), field("master_port").unwrap_or("?"));
            return refused(format!("{at} is a read-only replica: connect to its master, {master}"));
        }
        let major = field("redis_version").and_then(|version| version.split('.').next()?.parse().ok());
        if major.is_some_and(|major: u32| major < 5) {
            return refused(format!(
                "{at} is Redis {}: version 5 or later is needed, in which a script may ask for the time and then write",
                field("redis_version").unwrap_or_default()
            ));
        }
        let evicts = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
        if let Some(policy) = evicts.filter(|_| field("maxmemory").is_some_and(|bytes| bytes != "0")) {
            tracing::warn!(
                redis = %at,
                %policy,
                "this Redis deletes keys when its memory is full, locks too: set `maxmemory-policy noeviction`"
            );
        }
        *self.run_id.lock().unwrap_or_else(PoisonError::into_inner) = field("run_id").map(str::to_owned);
        Ok(())
    }
}

/// Brings the counter of tokens up to the date, once for each connection. Whoever only looks, renews or releases has no need of it.
async fn rise(way: &Connected, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    if !way.risen.initialized() {
        scripts::RISE.key("tenure:token").invoke_async::<()>(connection).await?;
        // Somebody else may have done it meanwhile, which is as good.
        let _ = way.risen.set(());
    }
    Ok(())
}

/// Whether nothing more comes on a connection after this.
fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error()
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.at).finish()
    }
}
