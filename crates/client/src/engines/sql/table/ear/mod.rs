//! How waiters are woken: one connection for all of a client's, on which it hears whose turn it is.
//!
//! Nobody relies on it: each waiter also looks by itself, rarely.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::Error;
use tenure_table::{GrantId, LockName};
use tokio_util::sync::CancellationToken;

use crate::engine::EngineContext;
use crate::engines::sql::connection::Options;
use crate::engines::sql::fault::What;
use crate::engines::sql::link::Link;
use crate::engines::waiting::{Waiter, Waiting};
use crate::random;

/// The pauses before the connection is opened again: ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// After so long without a message, a database is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Ear {
    link: Arc<Link>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "PostgreSQL needs no table to listen"))]
    table: String,
    context: EngineContext,
    waiting: Arc<Waiting<()>>,
    /// By what it is called while it hears; empty while it does not.
    client: Mutex<Arc<str>>,
    begun: AtomicBool,
    closing: CancellationToken,
}

impl Ear {
    pub(super) fn new(link: Arc<Link>, table: &str, context: EngineContext) -> Arc<Self> {
        Arc::new(Self {
            link,
            table: table.to_owned(),
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
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter<()> {
        let waiter = self.waiting.register(grant, name);
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.context.runtime.spawn(self.clone().listen());
        }
        waiter
    }

    /// Whether somebody here waits for this lock: whoever comes next will have to wait, too.
    pub(super) fn anybody_waits_for(&self, name: &LockName) -> bool {
        self.waiting.how_many_for(name) > 0
    }

    /// Wakes a waiter of this client to which the database cannot send a message.
    pub(super) fn ring(&self, grant: GrantId) {
        self.waiting.ring(grant);
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
            if let Err(error) = ended {
                if failures == 0 {
                    tracing::warn!(%error, "no messages from the database; waiting polls");
                }
                // Without messages, waiters are slow: that costs more than one connection less for requests.
                if self.link.what(&error) == What::Exhausted && self.link.make_room() {
                    failures = failures.min(1);
                }
            }
            // One that is closed as soon as it is open is as bad as one that does not open.
            failures = if clock.now().since(began) > LONGEST_PAUSE { 1 } else { failures + 1 };
            let pause = (FIRST_PAUSE * failures).min(LONGEST_PAUSE);
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
        }
    }
}

/// What does not answer in this time does not answer.
async fn in_time<T>(limit: Duration, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(limit, request).await.map_err(late)?
}
