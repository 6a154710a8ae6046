//! The connections to one Redis.
//!
//! Each runtime that sends requests has a separate connection, which it drives itself: an answer then needs no change of thread, which
//! would cost as much as the request. But no operation depends on such a runtime, which may end or be blocked. The client's own thread
//! drives all time limits, and its connection carries the requests that must be completed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, ServerErrorKind,
    Value as Answer,
};
use tokio::runtime::{self, Handle};
use tokio::sync::watch;

use super::connection::{Connection, ConnectionCell, State};
use super::fault::{CLUSTER, Fault, What};
use super::scripts::{self, Call};
use crate::error::EngineError;

/// The highest number of connections. Further runtimes share the client's connection.
const MOST_CONNECTIONS: usize = 64;

/// The number of requests that a connection queues before they are sent. It is more than there ever are, so that each request is in line as
/// soon as it is made.
const BUFFER: usize = 1 << 24;

/// The time limit of a connection attempt. After it, the next request begins a new attempt.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The connections to one Redis.
pub(in crate::engines) struct Link {
    engine: &'static str,
    client: Client,
    /// Host and port, for messages.
    at: String,
    /// The client's own runtime.
    own: Handle,
    /// A short list, searched for every request.
    connections: Mutex<Vec<(runtime::Id, Connection)>>,
    /// The id of the server process that answered last.
    run_id: Mutex<Option<String>>,
}

/// The content of a request.
#[derive(Clone, Copy)]
pub(in crate::engines) enum Request<'a> {
    Script(&'a Call),
    Command(&'a Cmd),
    Commands(&'a Pipeline),
}

impl Request<'_> {
    /// Sends the request, and waits for the answer. The client crate's own method would allocate a large box for each request, and this
    /// function runs for every lock.
    async fn send<T: FromRedisValue>(self, connection: &mut MultiplexedConnection) -> Result<T, RedisError> {
        let answer = match self {
            Request::Script(script) => match connection.send_packed_command(script.command()).await {
                Ok(answer) => match answer.extract_error() {
                    Err(error) if scripts::is_unknown(&error) => {
                        Box::pin(async { connection.send_packed_command(&script.whole()).await }).await?
                    }
                    answer => answer?,
                },
                Err(error) => return Err(error),
            },
            Request::Command(command) => connection.send_packed_command(command).await?,
            Request::Commands(commands) => {
                Answer::Array(connection.send_packed_commands(commands, 0, commands.len()).await?)
            }
        };
        Ok(redis::from_redis_value(answer.extract_error()?)?)
    }
}

/// Whether a request may be sent again if its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) enum Repeat {
    /// A second execution changes nothing.
    Harmless,
    /// A second execution has a second effect.
    Never,
}

/// An answer, and whether the request was sent a second time.
pub(in crate::engines) struct Answered<T> {
    pub(in crate::engines) answer: T,
    pub(in crate::engines) repeated: bool,
}

impl Link {
    pub(in crate::engines) fn new(
        engine: &'static str,
        client: Client,
        at: String,
        own: Handle,
    ) -> Arc<Self> {
        let (connections, run_id) = (Mutex::default(), Mutex::default());
        Arc::new(Self { engine, client, at, own, connections, run_id })
    }

    /// Returns host and port.
    pub(in crate::engines) fn at(&self) -> &str {
        &self.at
    }

    /// Returns the id of the server process that answered last.
    pub(in crate::engines) fn run_id(&self) -> Option<String> {
        self.run_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a script, within the time limit.
    pub(in crate::engines) async fn script<T: FromRedisValue>(
        self: &Arc<Self>,
        limit: Duration,
        repeat: Repeat,
        script: &Call,
    ) -> Result<T, Fault> {
        Ok(self.within(limit, self.send_on_current(repeat, Request::Script(script))).await?.answer)
    }

    /// Sends a request on this connection, and waits for the answer without a time limit: combine it with [within](Self::within). The
    /// request is sent again if its answer was lost.
    pub(in crate::engines) fn ask<T: FromRedisValue>(
        self: &Arc<Self>,
        connection: &Connection,
        request: Request<'_>,
    ) -> impl Future<Output = Result<Answered<T>, Fault>> {
        self.send_on(connection, Repeat::Harmless, request)
    }

    /// Runs a script that undoes a request, behind that request on the same connection. Returns `None` if that connection has broken, or
    /// does not answer within the time limit. The script still follows the request then, even if the caller no longer waits: a task sends
    /// it, since the client crate does not send a request whose future was dropped.
    pub(super) async fn undo_behind<T: FromRedisValue + Send + 'static>(
        &self,
        connection: &Connection,
        limit: Duration,
        script: &Call,
    ) -> Option<T> {
        let (mut open, script) = (connection.open()?, script.clone());
        let sent = self.own.spawn(async move { Request::Script(&script).send(&mut open).await.ok() });
        self.within(limit, async { Ok(sent.await.ok().flatten()) }).await.ok().flatten()
    }

    /// Runs a command, within the time limit.
    pub(in crate::engines) async fn command<T: FromRedisValue>(
        self: &Arc<Self>,
        limit: Duration,
        command: &Cmd,
    ) -> Result<T, Fault> {
        Ok(self
            .within(limit, self.send_on_current(Repeat::Harmless, Request::Command(command)))
            .await?
            .answer)
    }

    /// Sends several commands in one message, within the time limit.
    pub(in crate::engines) async fn commands<T: FromRedisValue>(
        self: &Arc<Self>,
        limit: Duration,
        commands: &Pipeline,
    ) -> Result<T, Fault> {
        Ok(self
            .within(limit, self.send_on_current(Repeat::Harmless, Request::Commands(commands)))
            .await?
            .answer)
    }

    /// Connects if necessary, to check that the server can be reached.
    pub(in crate::engines) async fn reach(self: &Arc<Self>, limit: Duration) -> Result<(), Fault> {
        let ping = redis::cmd("PING");
        let reached =
            self.within(limit, self.send_on_current::<()>(Repeat::Harmless, Request::Command(&ping))).await;
        if reached.is_err() {
            // A connection attempt that is under way is dropped.
            self.close();
        }
        reached.map(drop)
    }

    /// Opens a connection that is subscribed to a channel.
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

    /// Fails a request that is not answered within the time limit. A composed future instead of an `async fn`, which would store the
    /// request twice. Callers pin large futures first, so that they are not moved.
    pub(in crate::engines) fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        let _timers_of = self.own.enter();
        tokio::time::timeout(limit, request)
            .map(move |in_time| in_time.unwrap_or_else(|_| Err(self.is_silent(limit))))
    }

    /// Returns the fault for an answer of an unexpected type.
    pub(in crate::engines) fn is_confused(&self, answer: &Answer) -> Fault {
        let message = format!("{} gave an answer of another kind: {answer:?}", self.at);
        Fault::refused(self.engine, message, None)
    }

    /// Returns the fault for a request that was not answered within the time limit.
    pub(in crate::engines) fn is_silent(&self, limit: Duration) -> Fault {
        let message = format!(
            "{} did not answer within {limit:?}: check that it runs, and that this host can reach it",
            self.at
        );
        Fault::no_answer(self.engine, message, None)
    }

    /// Sends a request on this runtime's connection.
    async fn send_on_current<T: FromRedisValue>(
        self: &Arc<Self>,
        repeat: Repeat,
        request: Request<'_>,
    ) -> Result<Answered<T>, Fault> {
        let connection = self.current_connection();
        self.send_on(&connection, repeat, request).await
    }

    /// Sends a request on this connection. Sends it once more on a new connection if this one is broken, or if its server has become a
    /// replica.
    async fn send_on<T: FromRedisValue>(
        self: &Arc<Self>,
        connection: &Connection,
        repeat: Repeat,
        request: Request<'_>,
    ) -> Result<Answered<T>, Fault> {
        // Rare cases are in separate boxes: this function runs for every lock, and a small allocation is faster.
        let Some(mut open) = connection.open() else {
            return Box::pin(self.send_on_new(connection.clone(), request, false)).await;
        };
        if repeat == Repeat::Never && Box::pin(is_broken(&mut open)).await {
            // The server closed the idle connection, which is noticed before the request is sent.
            self.forget(connection);
            return Box::pin(self.send_on_new(self.current_connection(), request, false)).await;
        }
        match request.send(&mut open).await {
            Ok(answer) => Ok(Answered { answer, repeated: false }),
            Err(error) if is_connection_dead(&error) => {
                self.forget(connection);
                if repeat == Repeat::Never {
                    return Err(Fault::of(self.engine, &self.at, error));
                }
                Box::pin(self.send_on_new(self.current_connection(), request, true)).await
            }
            Err(error) => Err(Fault::of(self.engine, &self.at, error)),
        }
    }

    async fn send_on_new<T: FromRedisValue>(
        self: &Arc<Self>,
        connection: Connection,
        request: Request<'_>,
        repeated: bool,
    ) -> Result<Answered<T>, Fault> {
        let (connection, mut open) =
            self.connection(connection).await.map_err(|fault| fault.after(repeated))?;
        match request.send(&mut open).await {
            Ok(answer) => Ok(Answered { answer, repeated }),
            Err(error) => {
                if is_connection_dead(&error) {
                    self.forget(&connection);
                }
                Err(Fault::of(self.engine, &self.at, error).after(repeated))
            }
        }
    }

    fn connections(&self) -> MutexGuard<'_, Vec<(runtime::Id, Connection)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection of this runtime. A new connection is being opened.
    pub(in crate::engines) fn current_connection(self: &Arc<Self>) -> Connection {
        self.connection_of(&Handle::current())
    }

    fn own_connection(self: &Arc<Self>) -> Connection {
        self.connection_of(&self.own)
    }

    /// Returns whether any runtime uses this connection.
    pub(in crate::engines) fn has(&self, connection: &Connection) -> bool {
        self.connections().iter().any(|(_, present)| Arc::ptr_eq(present, connection))
    }

    fn connection_of(self: &Arc<Self>, runtime: &Handle) -> Connection {
        let mut connections = self.connections();
        if let Some((_, connection)) = connections.iter().find(|(id, _)| *id == runtime.id()) {
            return connection.clone();
        }
        if connections.len() >= MOST_CONNECTIONS && runtime.id() != self.own.id() {
            drop(connections);
            return self.own_connection();
        }
        let (send, state) = watch::channel(State::Opening);
        let link = self.clone();
        // A separate task, since the first caller may be dropped. It ends when the connection is no longer referenced: its timer may have
        // ended with the client.
        runtime.spawn(async move {
            let opened = tokio::select! {
                biased;
                () = send.closed() => return,
                opened = link.within(CONNECT_LIMIT, link.connect()) => opened,
            };
            send.send_replace(match opened {
                Ok(connection) => State::Open(connection),
                Err(fault) => State::Failed(fault),
            });
        });
        let connection = ConnectionCell::new(state);
        connections.push((runtime.id(), connection.clone()));
        connection
    }

    fn forget(&self, connection: &Connection) {
        self.connections().retain(|(_, present)| !Arc::ptr_eq(present, connection));
    }

    /// Drops all connections.
    pub(in crate::engines) fn close(&self) {
        self.connections().clear();
    }

    /// Waits for this connection, or for the client's own if this runtime cannot open one.
    async fn connection(
        self: &Arc<Self>,
        connection: Connection,
    ) -> Result<(Connection, MultiplexedConnection), Fault> {
        let fault = match connection.opened().await {
            Some(Ok(open)) => return Ok((connection, open)),
            Some(Err(fault)) => fault,
            None => {
                // The runtime cannot open connections, or makes no progress: the client's own runtime does it.
                let own = self.own_connection();
                self.forget(&connection);
                self.connections().push((Handle::current().id(), own.clone()));
                match own.opened().await {
                    Some(Ok(open)) => return Ok((own, open)),
                    Some(Err(fault)) => fault,
                    None => Fault { what: What::NotSent, error: EngineError::Closed },
                }
            }
        };
        self.forget(&connection);
        Err(fault.not_sent())
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let fault = |error| Fault::of(self.engine, &self.at, error);
        // The requests that wait for the connection have their own time limit.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(BUFFER);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let mut open = connecting.await.map_err(fault)?;
        match redis::cmd("INFO").query_async::<String>(&mut open).await {
            Ok(info) => self.examine(&info)?,
            // A user without this permission is expected to know the server.
            Err(error) if error.code() == Some("NOPERM") => {}
            Err(error) => return Err(fault(error)),
        }
        Ok(open)
    }

    /// Refuses servers that cannot keep locks.
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
            Some("cluster") => return refused(format!("{at} cannot be used: {CLUSTER}")),
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

async fn is_broken(open: &mut MultiplexedConnection) -> bool {
    redis::cmd("PING").query_async::<()>(open).await.is_err_and(|error| is_connection_dead(&error))
}

/// Returns whether a connection cannot be used after this error: it broke, or its server has become a replica and a new connection may
/// reach the master.
fn is_connection_dead(error: &RedisError) -> bool {
    became_replica(error) || error.is_unrecoverable_error() || error.is_io_error()
}

fn became_replica(error: &RedisError) -> bool {
    use redis::ErrorKind::Server;
    matches!(error.kind(), Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
        || error.to_string().contains("READONLY")
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.at).finish()
    }
}
