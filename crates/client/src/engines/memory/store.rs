//! The store and its links, as tests control them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_table::LockName;

use super::registry;
use super::server::{LinkId, REQUEST_LIMIT, Server, Time};
use super::state::State;
use crate::client::Client;
use crate::clock::ManualClock;
use crate::engine::Break;
use crate::error::ConnectError;

/// A store of locks in this process, for tests: the server behind `memory:`, with the means to make it fail.
///
/// Pass its [`url`](Self::url) to the program under test, or [connect](Self::connect) to it. The store exists for as long as this value, a
/// clone of it, a [`Link`] or a client of it.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use tenure::memory::MemoryStore;
///
/// let store = MemoryStore::new();
/// let client = store.connect().await?;
/// let guard = client.lock("orders/42").acquire().await?;
///
/// store.lose_now("orders/42"); // whatever the reason: what does the program do?
/// assert!(guard.check().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    server: Arc<Server>,
}

impl MemoryStore {
    /// The time limit of a request, by the store's clock: five seconds. After it, the store is reported as unreachable.
    pub const REQUEST_LIMIT: Duration = REQUEST_LIMIT;

    /// Creates a separate store that uses the system's clock.
    pub fn new() -> Self {
        Self { server: registry::unnamed(Time::System) }
    }

    /// Creates a separate store that uses a clock of the test. All its clients use the same clock, however they connect.
    ///
    /// When [`advance`](ManualClock::advance) returns, the new time applies everywhere. [`check`](crate::Guard::check) fails from the
    /// deadline on. Any request to the store finds that leases past their end have expired, and that waiters hold the locks they waited
    /// for. The clients' background work follows on their own threads: wait for it, with [`lost`](crate::Guard::lost), with
    /// [`moved`](crate::GuardWatch::moved) for a renewal, or on a condition.
    ///
    /// A step that is longer than a lease is like a suspended computer: no renewal happens during the step, and the lock is lost. To see a
    /// lock renewed, advance by a third of its TTL, and wait until its deadline has moved.
    ///
    /// Nothing ends before the clock says so: neither a wait for a lock, nor the [time limit](Self::REQUEST_LIMIT) of a request.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use std::time::Duration;
    /// use tenure::LostReason;
    /// use tenure::clock::ManualClock;
    /// use tenure::memory::MemoryStore;
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let (here, there) = (store.connect().await?, store.connect().await?);
    /// let ttl = Duration::from_secs(30);
    /// let guard = here.lock("orders/42").ttl(ttl).acquire().await?;
    ///
    /// let (mut watch, before) = (guard.watch(), guard.deadline());
    /// clock.advance(ttl / 3); // its renewal is due
    /// while watch.deadline() == before {
    ///     watch.moved().await;
    /// }
    ///
    /// clock.advance(ttl); // and now nobody was there to renew it
    /// assert_eq!(guard.check().unwrap_err().reason, LostReason::Expired);
    /// assert!(there.lock("orders/42").try_acquire().await?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_clock(clock: ManualClock) -> Self {
        Self { server: registry::unnamed(Time::Moved(clock)) }
    }

    /// Returns the URL by which a program in this process reaches the store, such as `memory:1f0c…`.
    ///
    /// ```
    /// use tenure::blocking::Client;
    /// use tenure::memory::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let (here, there) = (Client::connect(&store.url())?, Client::connect(&store.url())?);
    /// let guard = here.lock("orders/42").acquire()?;
    /// assert!(there.lock("orders/42").try_acquire()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Connects a new client. Short for [`Client::connect`] with the store's [`url`](Self::url).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::memory::MemoryStore;
    ///
    /// let client = MemoryStore::new().connect().await?;
    /// client.lock("orders/42").acquire().await?.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn connect(&self) -> Result<Client, ConnectError> {
        Client::connect(&self.url()).await
    }

    /// Creates a link to the store that can be made to fail, for the clients that connect through it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::memory::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let link = store.link();
    /// let (far, near) = (link.connect().await?, store.connect().await?);
    /// link.cut(); // `far` is cut off, and `near` is not
    /// near.lock("orders/42").acquire().await?.release().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn link(&self) -> Link {
        let id = self.server.work(State::add_link);
        Link { server: self.server.clone(), id, name: registry::name_link(&self.server, id) }
    }

    /// Takes a lock from all its holders at once, and grants it to the next waiter. Returns the number of holders.
    ///
    /// The holders are notified of `Lost(Broken)` first; a holder whose link is cut is notified when it is healed. A value that a holder
    /// could have been about to write is in doubt, as after the death of that holder.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::LostReason;
    /// use tenure::memory::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let client = store.connect().await?;
    /// let guard = client.lock("orders/42").acquire().await?;
    /// let next = tokio::spawn(client.lock("orders/42").acquire());
    ///
    /// assert_eq!(store.lose_now("orders/42"), 1);
    /// assert_eq!(guard.check().unwrap_err().reason, LostReason::Broken);
    /// assert!(next.await??.token() > guard.token());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lose_now(&self, name: impl AsRef<str>) -> usize {
        // A text that is not a name has no holders.
        LockName::parse(name).map_or(0, |name| {
            self.server.work(|state| state.break_lock(&name, Break::Force).map_or(0, |broken| broken.len()))
        })
    }

    /// Pauses the store, like a server that is stopped: no request gets through and no client is notified, while time goes on. A request
    /// that waits longer than its [time limit](Self::REQUEST_LIMIT) fails with `Unreachable`, and was not done.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use std::time::Duration;
    /// use tenure::clock::ManualClock;
    /// use tenure::memory::MemoryStore;
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let client = store.connect().await?;
    /// let guard = client.lock("orders/42").ttl(Duration::from_secs(30)).acquire().await?;
    ///
    /// store.pause();
    /// clock.advance(Duration::from_secs(30));
    /// assert!(guard.check().is_err(), "a holder does not believe longer than the store has promised");
    /// store.resume();
    /// assert!(client.lock("orders/42").try_acquire().await?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pause(&self) {
        self.server.change(|state| state.set_paused(true));
    }

    /// Resumes the store: leases that are over end first, and then waiting requests get through.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::memory::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let client = store.connect().await?;
    /// store.pause();
    /// let asking = tokio::spawn(client.lock("orders/42").acquire());
    /// store.resume();
    /// assert!(asking.await?.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self) {
        self.server.change(|state| state.set_paused(false));
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryStore").field(&self.url()).finish()
    }
}

/// A link to a [`MemoryStore`] that can be made to fail: the network of the clients that connect through it, and of no others. Created by
/// [`MemoryStore::link`].
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use std::time::Duration;
/// use tenure::clock::ManualClock;
/// use tenure::memory::MemoryStore;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::with_clock(clock.clone());
/// let link = store.link();
/// let (far, near) = (link.connect().await?, store.connect().await?);
/// let guard = far.lock("orders/42").ttl(Duration::from_secs(30)).acquire().await?;
///
/// link.cut();
/// clock.advance(Duration::from_secs(30));
/// assert!(guard.check().is_err());
/// let next = near.lock("orders/42").acquire().await?;
///
/// link.heal(); // the late release of the first one does the second one no harm
/// far.close().await?;
/// assert!(next.check().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Link {
    server: Arc<Server>,
    id: LinkId,
    name: String,
}

impl Link {
    /// Returns the URL by which a program in this process reaches the store through the link. The locks are the same as by the store's URL.
    ///
    /// ```
    /// use tenure::blocking::Client;
    /// use tenure::memory::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let far = Client::connect(&store.link().url())?;
    /// let near = Client::connect(&store.url())?;
    /// let guard = far.lock("orders/42").acquire()?;
    /// assert!(near.lock("orders/42").try_acquire()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn url(&self) -> String {
        format!("memory:{}", self.name)
    }

    /// Connects a new client through this link. Short for [`Client::connect`] with the link's [`url`](Self::url).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::memory::MemoryStore;
    ///
    /// let store = MemoryStore::new();
    /// let (far, near) = (store.link().connect().await?, store.connect().await?);
    /// let guard = far.lock("orders/42").acquire().await?;
    /// assert_eq!(near.inspect("orders/42").await?.holders[0].grant, guard.grant());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn connect(&self) -> Result<Client, ConnectError> {
        Client::connect(&self.url()).await
    }

    /// Cuts the link: nothing gets through in either direction, and no client is notified.
    ///
    /// A request fails with `Unreachable` after its [time limit](MemoryStore::REQUEST_LIMIT), and was not done. A waiter keeps its place in
    /// the queue. If its turn comes, it holds the lock without being notified, until the lease ends.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::clock::ManualClock;
    /// use tenure::memory::MemoryStore;
    /// use tenure::{AcquireError, EngineError, Wait};
    ///
    /// let clock = ManualClock::new();
    /// let link = MemoryStore::with_clock(clock.clone()).link();
    /// let client = link.connect().await?;
    /// link.cut();
    /// let mut asking = Box::pin(client.lock("orders/42").wait(Wait::Try).acquire());
    /// assert!(futures_util::poll!(&mut asking).is_pending());
    /// clock.advance(MemoryStore::REQUEST_LIMIT);
    /// let answer = asking.await;
    /// assert!(matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. }))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cut(&self) {
        self.server.change(|state| state.set_cut(self.id, true));
    }

    /// Restores the link: everything gets through again, and messages that were held back arrive.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::memory::MemoryStore;
    ///
    /// let link = MemoryStore::new().link();
    /// let client = link.connect().await?;
    /// link.cut();
    /// let asking = tokio::spawn(client.lock("orders/42").acquire());
    /// link.heal();
    /// assert!(asking.await?.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn heal(&self) {
        self.server.change(|state| state.set_cut(self.id, false));
    }

    /// Does the next `requests` requests but drops their responses: the callers get `Unreachable` after the [time
    /// limit](MemoryStore::REQUEST_LIMIT). A new number replaces the previous one; with zero, no more responses are lost.
    ///
    /// All that a client asks of its store counts as a request, including renewals and the requests that undo an unanswered one.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use tenure::clock::ManualClock;
    /// use tenure::memory::MemoryStore;
    /// use tenure::{AcquireError, EngineError, Wait};
    ///
    /// let clock = ManualClock::new();
    /// let store = MemoryStore::with_clock(clock.clone());
    /// let link = store.link();
    /// let (far, near) = (link.connect().await?, store.connect().await?);
    ///
    /// link.lose_answers(1);
    /// let asking = tokio::spawn(far.lock("orders/42").wait(Wait::Try).acquire());
    /// while near.inspect("orders/42").await?.holders.is_empty() {
    ///     tokio::task::yield_now().await; // until the store has granted it
    /// }
    /// clock.advance(MemoryStore::REQUEST_LIMIT);
    /// let answer = asking.await?;
    /// assert!(matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. }))));
    /// while !near.inspect("orders/42").await?.holders.is_empty() {
    ///     tokio::task::yield_now().await; // the client withdraws what was not answered
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lose_answers(&self, requests: usize) {
        self.server.change(|state| state.set_losing(self.id, requests));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.url()).finish()
    }
}
