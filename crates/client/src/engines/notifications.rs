//! The waiters of one client, and the connection on which the server notifies them.
//!
//! The connection is opened for the first waiter, and again after it breaks. A notification may be lost, so no waiter relies on it: each
//! waiter also polls, at long intervals.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::{GrantId, LockName};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::engine::EngineContext;
use crate::wait::Backoff;

/// The shortest and the longest pause before the connection is opened again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A source of notifications.
pub(super) trait Source: fmt::Debug + Send + Sync + Sized + 'static {
    /// The content of a notification. The default means that the waiter is to poll.
    type Message: Default + fmt::Debug + Send;

    /// Listens on a connection until it ends. Reports to the listener when the connection is [open](NotificationListener::opened), and each
    /// notification on it.
    fn listen(
        &self,
        listener: &NotificationListener<Self>,
    ) -> impl Future<Output = Result<(), ListenError>> + Send;
}

/// The reason why the connection ended or could not be opened.
pub(super) struct ListenError {
    pub(super) message: String,
    /// Whether to try again after the shortest pause.
    pub(super) retry_soon: bool,
}

/// The waiters of one client, and the task that notifies them.
#[derive(Debug)]
pub(super) struct NotificationListener<S: Source> {
    source: S,
    context: EngineContext,
    /// The name under which the server notifies this client; empty while it does not listen.
    client: Mutex<Arc<str>>,
    waiters: Mutex<Waiters<S::Message>>,
    is_begun: AtomicBool,
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct Waiters<T> {
    mailboxes: HashMap<GrantId, Arc<Mailbox<T>>>,
    /// The number of waiters for each lock.
    names: HashMap<LockName, usize>,
}

#[derive(Debug, Default)]
struct Mailbox<T> {
    arrived: Notify,
    /// The last message.
    message: Mutex<T>,
}

impl<S: Source> NotificationListener<S> {
    pub(super) fn new(source: S, context: EngineContext) -> Arc<Self> {
        Arc::new(Self {
            source,
            context,
            client: Mutex::new("".into()),
            waiters: Mutex::default(),
            is_begun: AtomicBool::new(false),
            closing: CancellationToken::new(),
        })
    }

    /// Returns the name under which the server notifies this client; empty while it does not listen.
    pub(super) fn client(&self) -> Arc<str> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_client(&self, client: &str) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client.into();
    }

    pub(super) fn clock(&self) -> &dyn crate::clock::Clock {
        &*self.context.clock
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters<S::Message>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiter. From now on, a notification for this grant wakes it, and so does the opening of the connection.
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter<S> {
        let mailbox = Arc::new(Mailbox::default());
        let mut waiters = self.waiters();
        waiters.mailboxes.insert(grant, mailbox.clone());
        *waiters.names.entry(name.clone()).or_default() += 1;
        drop(waiters);
        if !self.is_begun.swap(true, Ordering::AcqRel) {
            self.context.runtime.spawn(self.clone().listen());
        }
        Waiter { listener: self.clone(), grant, name: name.clone(), mailbox }
    }

    /// Whether a waiter of this client already waits for this lock and is notified. If so, a new request will have to wait, too.
    pub(super) fn has_waiter(&self, name: &LockName) -> bool {
        self.waiters().names.contains_key(name) && !self.client().is_empty()
    }

    /// Wakes one waiter with a message, if it still waits.
    pub(super) fn wake(&self, grant: GrantId, message: S::Message) {
        // The mailbox is used without the lock on all mailboxes.
        let mailbox = self.waiters().mailboxes.get(&grant).cloned();
        if let Some(mailbox) = mailbox {
            *mailbox.message() = message;
            mailbox.arrived.notify_one();
        }
    }

    /// Wakes all waiters, for when it is not known which of them were notified.
    pub(super) fn wake_all(&self) {
        for mailbox in self.waiters().mailboxes.values() {
            mailbox.arrived.notify_one();
        }
    }

    /// Records that the server now notifies the client under this name. All waiters poll, since earlier notifications were missed.
    pub(super) fn opened(&self, client: &str) {
        self.set_client(client);
        self.wake_all();
    }

    /// Closes the connection for good.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn listen(self: Arc<Self>) {
        self.closing.run_until_cancelled(Box::pin(self.listen_until_closed())).await;
        self.set_client("");
    }

    async fn listen_until_closed(&self) {
        let clock = self.clock();
        let backoff = || Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut pauses, mut is_told) = (backoff(), false);
        loop {
            let began = clock.now();
            let ended = self.source.listen(self).await;
            self.set_client("");
            // A connection that closes right after it opened counts as one that did not open.
            if clock.now().since(began) > LONGEST_PAUSE {
                (pauses, is_told) = (backoff(), false);
            }
            if let Err(ListenError { message, retry_soon }) = ended {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(
                        error = message,
                        "no notifications: waiters poll until the server can be listened to"
                    );
                }
                if retry_soon {
                    pauses = backoff();
                }
            }
            clock.sleep_until(pauses.next(clock.now())).await;
        }
    }
}

impl<T> Mailbox<T> {
    fn message(&self) -> MutexGuard<'_, T> {
        self.message.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered waiter. Dropping it ends the registration.
#[derive(Debug)]
pub(super) struct Waiter<S: Source> {
    listener: Arc<NotificationListener<S>>,
    grant: GrantId,
    name: LockName,
    mailbox: Arc<Mailbox<S::Message>>,
}

impl<S: Source> Waiter<S> {
    /// Waits for the next message. The message is the default if all waiters were woken.
    pub(super) async fn woken(&self) -> S::Message {
        self.mailbox.arrived.notified().await;
        std::mem::take(&mut *self.mailbox.message())
    }
}

impl<S: Source> Drop for Waiter<S> {
    fn drop(&mut self) {
        let mut waiters = self.listener.waiters();
        waiters.mailboxes.remove(&self.grant);
        if let Entry::Occupied(mut count) = waiters.names.entry(self.name.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
