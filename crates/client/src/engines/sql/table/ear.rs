//! How waiters are woken: one connection for all of a client's, on which it hears whose turn it is.
//!
//! PostgreSQL has `LISTEN` for that. With MySQL, the connection waits in a statement which ends when somebody stops it (`KILL QUERY`), and
//! which does not begin to wait if one of those who wait was called before: so no call is missed in between. It waits for a named lock that
//! a second connection of this client has for good. (`SLEEP()` would be simpler, but all who sleep share one mutex in the server, and to stop
//! one of many took MariaDB seconds.)
//!
//! Nobody relies on it: each waiter also looks by itself, rarely.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::Error;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "mysql")]
use super::texts::Heard;
use super::texts::Texts;
use crate::engine::EngineContext;
use crate::engines::sql::connection::Options;
#[cfg(feature = "mysql")]
use crate::engines::sql::connection::{Arg, Connection};
use crate::engines::sql::link::Link;
#[cfg(feature = "mysql")]
use crate::engines::sql::tables::id;
use crate::engines::waiting::{Waiter, Waiting};
use crate::ids::GrantId;
use crate::name::LockName;
use crate::random;

/// The pauses before the connection is opened again: ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// After so long without a message, a database is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(5);

/// How long MySQL waits for at the most (s): a connection that is gone is noticed then.
#[cfg(feature = "mysql")]
const WAIT: u64 = 3;

#[derive(Debug)]
pub(super) struct Ear {
    link: Arc<Link>,
    texts: Arc<Texts>,
    context: EngineContext,
    waiting: Arc<Waiting>,
    /// By what it is called while it hears; empty while it does not.
    client: Mutex<Arc<str>>,
    begun: AtomicBool,
    closing: CancellationToken,
}

impl Ear {
    pub(super) fn new(link: Arc<Link>, texts: Arc<Texts>, context: EngineContext) -> Arc<Self> {
        Arc::new(Self {
            link,
            texts,
            context,
            waiting: Arc::default(),
            client: Mutex::new("".into()),
            begun: AtomicBool::new(false),
            closing: CancellationToken::new(),
        })
    }

    /// By what it is called while it hears; empty while it does not.
    pub(super) fn client(&self) -> Arc<str> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_client(&self, client: &str) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client.into();
    }

    /// From now on, what is said to this grant wakes it; also when messages begin to be heard.
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter {
        let waiter = self.waiting.register(grant, name);
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.context.runtime.spawn(self.clone().listen());
        }
        waiter
    }

    /// Whether somebody here waits for this lock: whoever comes next will have to wait, too.
    pub(super) fn anybody_waits_for(&self, name: &LockName) -> bool {
        self.waiting.anybody_for(name)
    }

    /// Ends the connection, for good.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn listen(self: Arc<Self>) {
        let closing = self.closing.clone();
        closing.run_until_cancelled(Box::pin(self.listen_until_closed())).await;
        self.set_client("");
    }

    async fn listen_until_closed(&self) {
        let clock = &self.context.clock;
        let mut failures = 0;
        loop {
            let began = clock.now();
            let ended = match self.link.options() {
                #[cfg(feature = "postgres")]
                Options::Postgres(options) => self.hear_postgres((**options).clone()).await,
                #[cfg(feature = "mysql")]
                Options::MySql(_) => self.hear_mysql().await,
            };
            self.set_client("");
            if let Err(error) = ended
                && failures == 0
            {
                tracing::warn!(%error, "no messages from the database; waiting polls");
            }
            // One that is closed as soon as it is open is as bad as one that does not open.
            failures = if clock.now().since(began) > LONGEST_PAUSE { 1 } else { failures + 1 };
            let pause = (FIRST_PAUSE * failures).min(LONGEST_PAUSE);
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
        }
    }

    #[cfg(feature = "postgres")]
    async fn hear_postgres(&self, options: sqlx::postgres::PgConnectOptions) -> Result<(), Error> {
        use sqlx::postgres::{PgListener, PgPoolOptions};
        let channel = format!("tenure_{}", GrantId::random());
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.link.limit())
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&channel).await?;
        self.set_client(&channel);
        // What was said meanwhile, nobody has heard.
        self.waiting.wake_all();
        loop {
            match tokio::time::timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(message))) => {
                    if let Ok(grant) = message.payload().parse() {
                        self.waiting.wake(grant);
                    }
                }
                Ok(ended) => return ended.map(drop),
                // Nothing was said for a while: perhaps it is no longer heard.
                Err(_) => {
                    let asked = sqlx::Executor::execute(&mut listener, "SELECT 1");
                    in_time(self.link.limit(), asked).await?;
                }
            }
        }
    }

    #[cfg(feature = "mysql")]
    async fn hear_mysql(&self) -> Result<(), Error> {
        let limit = self.link.limit();
        let (mut ear, client) = self.open_ear().await?;
        let (mut quiet, quiet_number) = self.open_ear().await?;
        self.set_client(&client.to_string());
        self.waiting.wake_all();
        let mut heard = Heard::new();
        let mut pinged = self.context.clock.now();
        loop {
            let listening = ear.batch(self.texts.listen(client, quiet_number, &heard, WAIT));
            match in_time(limit + Duration::from_secs(WAIT), listening).await {
                Err(error) if !was_stopped(&error) => return Err(error),
                Ok(answers) if answers.iter().flatten().any(|row| row.maybe_int(0).ok() == Some(Some(1))) => {
                    return Err(Error::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                _ => {}
            }
            match in_time(limit, self.hear(&mut ear, client, &mut heard)).await {
                // It is not known who was called.
                Err(error) if was_stopped(&error) => self.waiting.wake_all(),
                hears => hears?,
            }
            if self.context.clock.now().since(pinged) > QUIET {
                in_time(limit, quiet.ping()).await?;
                pinged = self.context.clock.now();
            }
        }
    }

    /// A connection that has the named lock of its number, and that number.
    #[cfg(feature = "mysql")]
    async fn open_ear(&self) -> Result<(Connection, i64), Error> {
        let limit = self.link.limit();
        let mut connection = in_time(limit, self.link.options().connect(limit)).await?;
        let id = in_time(limit, connection.row(&self.texts.ears, &[])).await?;
        Ok((connection, id.ok_or(Error::RowNotFound)?.int(0)?))
    }

    /// Wakes those who were called, and were not woken for that yet.
    #[cfg(feature = "mysql")]
    async fn hear(&self, connection: &mut Connection, client: i64, heard: &mut Heard) -> Result<(), Error> {
        let mut calls = Heard::new();
        for row in connection.rows(&self.texts.called, &[Arg::Text(&client.to_string())]).await? {
            let call = (row.int(1)?, row.int(2)?);
            if !heard.contains(&call) {
                self.waiting.wake(GrantId::from_u128(id(&row, 0)?));
            }
            calls.insert(call);
        }
        *heard = calls;
        Ok(())
    }
}

/// What does not answer in this time does not answer.
async fn in_time<T>(limit: Duration, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(limit, request).await.map_err(late)?
}

/// Whether a statement ended because somebody stopped it, or because it got into another's way.
#[cfg(feature = "mysql")]
fn was_stopped(error: &Error) -> bool {
    error
        .as_database_error()
        .and_then(|said| said.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
        .is_some_and(|said| matches!(said.number(), 1205 | 1213 | 1317 | 1969))
}
