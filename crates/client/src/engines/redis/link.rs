//! The way to one Redis.
//!
//! Each runtime that asks has a connection of its own, driven by that runtime: an answer then comes without a change of thread, which would
//! cost as much as the request. But nothing waits for such a runtime, which may end or stand still: time limits are kept by the
//! client's own thread, and what is to be finished in any case goes by its connection.
//!
//! **A connection is used until it breaks**, also if it was silent for long: so what undoes a request can follow it on the same way, and
//! does not overtake it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
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

use super::fault::{CLUSTER, Fault, What};
use super::scripts::{self, Call};

/// So many runtimes have connections of their own; all others share the client's.
const MOST_WAYS: usize = 64;

/// How long connecting may take: beyond it, the next request begins anew.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The way to one Redis.
pub(in crate::engines) struct Link {
    engine: &'static str,
    client: Client,
    /// Host and port, for messages.
    at: String,
    /// The client's own runtime.
    own: Handle,
    /// Few, and looked through for every request.
    ways: Mutex<Vec<(runtime::Id, Way)>>,
    /// Which server process it was that answered last.
    run_id: Mutex<Option<String>>,
}

/// The way of one runtime.
pub(in crate::engines) type Way = Arc<Connected>;

/// A connection, once there is one.
pub(in crate::engines) struct Connected {
    state: watch::Receiver<State>,
    /// Whether the counter of tokens was brought up to the date through it.
    risen: AtomicBool,
}

enum State {
    Opening,
    Open(MultiplexedConnection),
    /// It could not be opened.
    Failed(What, String),
}

/// What can be sent.
#[derive(Clone, Copy)]
enum Request<'a> {
    Script(&'a Call),
    /// One that gives a token.
    Granting(&'a Call),
    /// Commands that give one.
    Taking(&'a Pipeline),
    Command(&'a Cmd),
    Commands(&'a Pipeline),
    /// A script that is made for the way that it goes: whether the counter of tokens was brought up to the date through that.
    Made(&'a (dyn Fn(bool) -> Call + Sync)),
}

impl Request<'_> {
    async fn send<T: FromRedisValue>(
        self,
        way: &Connected,
        connection: &mut MultiplexedConnection,
    ) -> Result<T, RedisError> {
        if matches!(self, Request::Granting(_) | Request::Taking(_)) && !way.risen.load(Ordering::Acquire) {
            Box::pin(way.rise(connection)).await?;
        }
        match self {
            Request::Granting(script) | Request::Script(script) => script.send(connection).await,
            Request::Command(command) => command.query_async(connection).await,
            Request::Taking(commands) | Request::Commands(commands) => commands.query_async(connection).await,
            Request::Made(script) => script(way.risen.load(Ordering::Acquire)).send(connection).await,
        }
    }
}

/// Whether a request may be sent again if its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) enum Repeat {
    /// Twice is as good as once.
    Harmless,
    /// Twice is twice.
    Never,
}

/// An answer, and whether it is that to a request which was sent a second time.
struct Answered<T> {
    answer: T,
    repeated: bool,
}

impl Link {
    pub(in crate::engines) fn new(
        engine: &'static str,
        client: Client,
        at: String,
        own: Handle,
    ) -> Arc<Self> {
        Arc::new(Self { engine, client, at, own, ways: Mutex::default(), run_id: Mutex::default() })
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
        self: &Arc<Self>,
        limit: Duration,
        repeat: Repeat,
        script: &Call,
    ) -> Result<T, Fault> {
        Ok(self.within(limit, self.on_a_way(repeat, Request::Script(script))).await?.answer)
    }

    /// Runs a script that frees something, within this time; what it answers. It is made for the way that it goes: whether the counter of
    /// tokens was brought up to the date through that. One that was sent a second time and finds nothing has done it the first time.
    pub(super) async fn freeing(
        self: &Arc<Self>,
        limit: Duration,
        script: &(dyn Fn(bool) -> Call + Sync),
    ) -> Result<Answer, Fault> {
        let request = self.on_a_way(Repeat::Harmless, Request::Made(script));
        let Answered { answer, repeated } = self.within(limit, request).await?;
        Ok(if repeated && answer == Answer::Int(0) { Answer::Int(1) } else { answer })
    }

    /// Runs a script that gives a token, on this way and within this time: none that a connection gives is behind the date at which it was made.
    pub(in crate::engines) async fn granting<T: FromRedisValue>(
        self: &Arc<Self>,
        way: &Way,
        limit: Duration,
        script: &Call,
    ) -> Result<T, Fault> {
        Ok(self.within(limit, self.on_way(way, Repeat::Harmless, Request::Granting(script))).await?.answer)
    }

    /// The same with commands. Nothing, if they were sent twice: then their answers do not say what they did.
    pub(super) async fn taking<T: FromRedisValue>(
        self: &Arc<Self>,
        way: &Way,
        limit: Duration,
        commands: &Pipeline,
    ) -> Result<Option<T>, Fault> {
        let request = self.on_way(way, Repeat::Harmless, Request::Taking(commands));
        let Answered { answer, repeated } = self.within(limit, request).await?;
        Ok((!repeated).then_some(answer))
    }

    /// Runs a script behind all that was sent on a way before, within this time. Nothing, if that way has broken.
    pub(in crate::engines) async fn script_behind<T: FromRedisValue>(
        &self,
        way: &Connected,
        limit: Duration,
        script: &Call,
    ) -> Option<T> {
        let mut connection = way.connection()?;
        let sent = async { Ok(script.send(&mut connection).await.ok()) };
        self.within(limit, sent).await.ok().flatten()
    }

    /// Runs a command, within this time.
    pub(in crate::engines) async fn command<T: FromRedisValue>(
        self: &Arc<Self>,
        limit: Duration,
        command: &Cmd,
    ) -> Result<T, Fault> {
        Ok(self.within(limit, self.on_a_way(Repeat::Harmless, Request::Command(command))).await?.answer)
    }

    /// Runs several commands with one message, within this time.
    pub(in crate::engines) async fn commands<T: FromRedisValue>(
        self: &Arc<Self>,
        limit: Duration,
        commands: &Pipeline,
    ) -> Result<T, Fault> {
        Ok(self.within(limit, self.on_a_way(Repeat::Harmless, Request::Commands(commands))).await?.answer)
    }

    /// Connects, if it is not connected: to see whether that can be done.
    pub(in crate::engines) async fn reach(self: &Arc<Self>, limit: Duration) -> Result<(), Fault> {
        self.within(limit, self.on_a_way::<()>(Repeat::Harmless, Request::Command(&redis::cmd("PING"))))
            .await?;
        Ok(())
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

    /// What does not answer in this time does not answer. A future that is put together and not an `async fn`, which would keep the
    /// request twice.
    fn within<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> {
        let _timers_of = self.own.enter();
        tokio::time::timeout(limit, request).map(move |in_time| {
            in_time.unwrap_or_else(|_| {
                let message = format!(
                    "{} did not answer within {limit:?}: see whether it runs, and whether this host may reach it",
                    self.at
                );
                Err(Fault::no_answer(self.engine, message, None))
            })
        })
    }

    /// Sends a request on this runtime's connection; once more on a new one, if the old one turns out to be broken or to lead to a
    /// server that has become a replica.
    async fn on_a_way<T: FromRedisValue>(
        self: &Arc<Self>,
        repeat: Repeat,
        request: Request<'_>,
    ) -> Result<Answered<T>, Fault> {
        let way = self.present_way();
        self.on_way(&way, repeat, request).await
    }

    async fn on_way<T: FromRedisValue>(
        self: &Arc<Self>,
        way: &Way,
        repeat: Repeat,
        request: Request<'_>,
    ) -> Result<Answered<T>, Fault> {
        // What is rare is in boxes of its own: this is done for every lock, and what is small is quickly allocated.
        let Some(mut connection) = way.connection() else {
            return Box::pin(self.on_a_new_way(way.clone(), request, false)).await;
        };
        if repeat == Repeat::Never && Box::pin(is_broken(&mut connection)).await {
            // It was closed while nobody used it, and that is found out before it matters.
            self.forget(way);
            return Box::pin(self.on_a_new_way(self.present_way(), request, false)).await;
        }
        match request.send(way, &mut connection).await {
            Ok(answer) => Ok(Answered { answer, repeated: false }),
            Err(error) if leads_nowhere(&error) => {
                self.forget(way);
                if repeat == Repeat::Never {
                    return Err(Fault::of(self.engine, &self.at, error));
                }
                Box::pin(self.on_a_new_way(self.present_way(), request, true)).await
            }
            Err(error) => Err(Fault::of(self.engine, &self.at, error)),
        }
    }

    async fn on_a_new_way<T: FromRedisValue>(
        self: &Arc<Self>,
        way: Way,
        request: Request<'_>,
        repeated: bool,
    ) -> Result<Answered<T>, Fault> {
        let mut connection = self.connection(&way).await.map_err(|fault| fault.after(repeated))?;
        match request.send(&way, &mut connection).await {
            Ok(answer) => Ok(Answered { answer, repeated }),
            Err(error) => {
                if leads_nowhere(&error) {
                    self.forget(&way);
                }
                Err(Fault::of(self.engine, &self.at, error).after(repeated))
            }
        }
    }

    fn ways(&self) -> MutexGuard<'_, Vec<(runtime::Id, Way)>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way on which this runtime sends. It begins to connect, if it is new.
    pub(in crate::engines) fn present_way(self: &Arc<Self>) -> Way {
        self.way_of(&Handle::current())
    }

    fn own_way(self: &Arc<Self>) -> Way {
        self.way_of(&self.own)
    }

    fn way_of(self: &Arc<Self>, runtime: &Handle) -> Way {
        let mut ways = self.ways();
        if let Some((_, way)) = ways.iter().find(|(id, _)| *id == runtime.id()) {
            return way.clone();
        }
        if ways.len() >= MOST_WAYS && runtime.id() != self.own.id() {
            drop(ways);
            return self.own_way();
        }
        let (send, state) = watch::channel(State::Opening);
        let link = self.clone();
        // By a task of its own: whoever asked first need not go on asking.
        runtime.spawn(async move {
            send.send_replace(match link.within(CONNECT_LIMIT, link.connect()).await {
                Ok(connection) => State::Open(connection),
                Err(Fault { what, error }) => State::Failed(what, super::fault::text(&error)),
            });
        });
        let way = Arc::new(Connected { state, risen: AtomicBool::new(false) });
        ways.push((runtime.id(), way.clone()));
        way
    }

    fn forget(&self, way: &Way) {
        self.ways().retain(|(_, present)| !Arc::ptr_eq(present, way));
    }

    /// Lets go of all connections.
    pub(in crate::engines) fn close(&self) {
        self.ways().clear();
    }

    async fn connection(self: &Arc<Self>, way: &Way) -> Result<MultiplexedConnection, Fault> {
        let failed = match way.opened().await {
            Some(Ok(connection)) => return Ok(connection),
            Some(Err((what, message))) => (what, message),
            None => {
                // The runtime does not open connections, or does nothing any more: the client's own does it.
                let own = self.own_way();
                self.forget(way);
                self.ways().push((Handle::current().id(), own.clone()));
                match own.opened().await {
                    Some(Ok(connection)) => return Ok(connection),
                    Some(Err((what, message))) => (what, message),
                    None => (What::NotSent, "the client was closed".to_owned()),
                }
            }
        };
        self.forget(way);
        let (what, message) = failed;
        Err(Fault::not_connected(self.engine, what, message))
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let fault = |error| Fault::of(self.engine, &self.at, error);
        // The time limit is that of the requests that wait for it.
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

impl Connected {
    /// Whether there is a connection: it may have broken.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open(_))
    }

    /// The connection, if it is open.
    fn connection(&self) -> Option<MultiplexedConnection> {
        match &*self.state.borrow() {
            State::Open(connection) => Some(connection.clone()),
            State::Opening | State::Failed(..) => None,
        }
    }

    /// The connection, or why there is none; nothing, if nobody is opening it any more.
    async fn opened(&self) -> Option<Result<MultiplexedConnection, (What, String)>> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| !matches!(state, State::Opening)).await.ok()?;
        match &*state {
            State::Open(connection) => Some(Ok(connection.clone())),
            State::Failed(what, message) => Some(Err((*what, message.clone()))),
            State::Opening => None,
        }
    }

    /// Brings the counter of tokens up to the date, once for each connection. Whoever only looks, renews or releases has no need
    /// of it.
    async fn rise(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        Call::new(&scripts::RISE, "tenure:token").send::<()>(connection).await?;
        self.risen.store(true, Ordering::Release);
        Ok(())
    }
}

async fn is_broken(connection: &mut MultiplexedConnection) -> bool {
    redis::cmd("PING").query_async::<()>(connection).await.is_err_and(|error| leads_nowhere(&error))
}

/// Whether a connection is of no use after this: it broke, or its server has become a replica, and whoever connects anew may find the master.
fn leads_nowhere(error: &RedisError) -> bool {
    use redis::ErrorKind::Server;
    let became_replica =
        matches!(error.kind(), Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
            || error.to_string().contains("READONLY");
    became_replica || error.is_unrecoverable_error() || error.is_io_error()
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.at).finish()
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
