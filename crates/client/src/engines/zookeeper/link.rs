//! A session at ZooKeeper: the requests that locks are made of, and what keeps it alive and proves that it is.
//!
//! # From when on a grant is believed in
//! The leader ends a session of which it has not heard for its timeout. A follower answers reads and pings by itself, and tells the leader of
//! them only with its answers to the leader's own pings, twice in a tick; so an answer to a read proves nothing. Here:
//!
//! - a read that does nothing is sent every tenth of the timeout (a *touch*);
//! - a request that goes through the leader and a majority (a *proof*) is sent every third of the timeout or more often: the making of an entry,
//!   or one that checks the root of the tree.
//!
//! What a follower told the leader before it passed on a proof, the leader knew when it took that in. So a proof confirms the last touch
//! that was answered a whole tick before the proof was sent, as of when that touch was sent. With a quarter of a tick more as the margin,
//! belief ends before the leader can end the session, also if the follower is cut off from the leader just after that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId};
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::task::AbortOnDropHandle;
use zookeeper_client::{
    Client, CreateMode, Error, MultiReadResult, MultiWriteError, OneshotWatcher, Stat, StateWatcher,
};

use super::address::Address;
use super::fault::{Fault, What, what};
use super::look;
use super::paths::{Children, Root, SIMPLE, VALUE};
use crate::clock::BootTime;
use crate::engine::EngineContext;
use crate::engines::kept_value::KeptValue;
use crate::engines::session::{HasSession, Session, Sessions};
use crate::error::EngineError;
use crate::random;

/// So many touches in a timeout, and so many of them for one proof.
const TOUCHES: u32 = 10;
const TOUCHES_TO_A_PROOF: u32 = 3;

/// How long to wait before asking again on a connection that broke.
const PAUSE: Duration = Duration::from_millis(50);

/// A session.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    session: Session,
    touches: Mutex<VecDeque<Touch>>,
    /// When the last proof was sent that was answered, for those who want one: one at a time asks for it.
    proved: AsyncMutex<BootTime>,
    /// Whether the servers make nodes that go when they are empty.
    has_containers: AtomicBool,
    /// How many bytes of paths are watched, or may come to be.
    watched: AtomicUsize,
    address: Address,
    context: EngineContext,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    sent: BootTime,
    answered: BootTime,
}

impl HasSession for Link {
    fn session(&self) -> &Session {
        &self.session
    }

    /// The client crate sends all watches again on a new connection, and cannot do so if they do not fit one message of 128 KiB.
    fn has_room(&self) -> bool {
        self.watched.load(Ordering::Relaxed) < MOST_WATCHED
    }
}

/// So many bytes of paths may be watched.
const MOST_WATCHED: usize = 96 << 10;

/// Room for a path that may come to be watched.
#[derive(Debug)]
pub(super) struct Room<'a>(&'a Link, usize);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.0.watched.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// What stands for a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: String,
    /// When it was made, in the order of all changes.
    pub(super) token: FencingToken,
}

/// What is seen of a lock.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) children: Children,
    pub(super) value: Option<KeptValue>,
}

/// What was made, and what was seen just after that; nothing, if the lock is taken.
pub(super) type Made = Result<Option<(Node, Option<Seen>)>, Error>;

/// Waits for an answer, and not longer than this.
pub(super) async fn within<T, E>(
    context: &EngineContext,
    limit: Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault>
where
    Fault: From<E>,
{
    let give_up = context.clock.sleep_until(context.clock.now() + limit);
    tokio::select! {
        biased;
        answer = answer => Ok(answer?),
        () = give_up => Err(Fault::Silent(limit)),
    }
}

impl Link {
    /// Opens a session that ends after this time without a word, or what the servers make of it.
    pub(super) async fn open(
        address: &Address,
        timeout: Duration,
        context: &EngineContext,
        sessions: &Arc<Sessions<Self>>,
    ) -> Result<Arc<Self>, EngineError> {
        let hosts = address.hosts();
        let mut connector = Client::connector().with_session_timeout(timeout);
        if let Some(login) = address.login() {
            connector = connector.with_auth("digest", login.as_bytes());
        }
        let sent = context.clock.now();
        // Whatever becomes of the runtime of whoever asks, the session is served by ours.
        let connecting = context.runtime.spawn(async move { connector.connect(&hosts).await });
        let connecting = AbortOnDropHandle::new(connecting);
        let connected = async { connecting.await.unwrap_or(Err(Error::ClientClosed)) };
        let client = within(context, address.limit, connected).await;
        let client = client.map_err(|fault| fault.error(&address.hosts()))?;
        let answered = context.clock.now();
        let (timeout, margin) = (client.session_timeout(), address.tick / 4);
        let usable = timeout.saturating_sub(timeout / TOUCHES + address.tick + margin);
        if usable < timeout / 8 {
            let message = format!(
                "{} gives a session of {timeout:?}, which is too short for a tickTime of {:?}: ask for a longer ttl, or say what their tickTime is by `?tick_ms=`",
                address.hosts(),
                address.tick
            );
            return Err(EngineError::Refused { engine: "zookeeper", message, cause: None });
        }
        let link = Arc::new(Self {
            client,
            session: Session::new(timeout, margin, sent),
            proved: AsyncMutex::new(sent),
            has_containers: AtomicBool::new(address.containers),
            watched: AtomicUsize::new(0),
            touches: Mutex::new([Touch { sent, answered }].into()),
            address: address.clone(),
            context: context.clone(),
        });
        context.runtime.spawn(Self::notice_the_end(Arc::downgrade(&link)));
        context.runtime.spawn(Self::keep_alive(Arc::downgrade(&link), Arc::downgrade(sessions)));
        Ok(link)
    }

    async fn notice_the_end(this: Weak<Self>) {
        let Some(mut states) = this.upgrade().map(|link| link.client.state_watcher()) else { return };
        ended(&mut states).await;
        if let Some(link) = this.upgrade() {
            tracing::debug!(servers = link.address.hosts(), "a session has ended");
            link.session.end();
        }
    }

    async fn keep_alive(this: Weak<Self>, sessions: Weak<Sessions<Self>>) {
        let mut round = 0;
        loop {
            let Some((clock, interval)) =
                this.upgrade().map(|link| (link.context.clock.clone(), link.session.timeout() / TOUCHES))
            else {
                return;
            };
            clock.sleep_until(clock.now() + random::slightly_below(interval)).await;
            let Some(link) = this.upgrade().filter(|link| !link.session.ended().is_cancelled()) else {
                return;
            };
            for (grant, held) in link.session.overdue(clock.now()) {
                link.context.runtime.spawn(link.clone().free_for_sure(held.node, grant));
            }
            if let Some(sessions) = sessions.upgrade() {
                // Whoever drops the last of it ends it.
                drop(sessions.idle(clock.now()));
            }
            round += 1;
            let sent = clock.now();
            if link.client.check_stat("/").await.is_ok_and(|stat| stat.is_some()) {
                link.touched(sent);
            }
            if round % TOUCHES_TO_A_PROOF == 0
                && link.session.in_use()
                && let Err(fault) = link.prove(sent).await
            {
                tracing::debug!(?fault, "a session is not confirmed, and is tried again");
            }
        }
    }

    fn touched(&self, sent: BootTime) {
        let touch = Touch { sent, answered: self.context.clock.now() };
        let mut touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        touches.push_back(touch);
        // What is older than a timeout proves nothing.
        if touches.len() > 4 * TOUCHES as usize {
            touches.pop_front();
        }
    }

    /// Sees to it that there is a proof that was sent at this instant or just before it. Those who come together share one.
    pub(super) async fn prove(&self, asked: BootTime) -> Result<(), Fault> {
        let mut proved = self.proved.lock().await;
        if *proved + self.session.timeout() / TOUCHES / 2 >= asked {
            return Ok(());
        }
        let sent = self.context.clock.now();
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version("/", -1)?;
        match writer.commit().await.map_err(Error::from) {
            // Whether we may look at it or not, it is the leader that says so.
            Ok(_) | Err(Error::NoAuth) => {}
            Err(error) => return Err(error.into()),
        }
        *proved = sent;
        self.proven(sent);
        Ok(())
    }

    /// Sees to it that something can be believed: after a long silence, what was touched before it proves nothing any more.
    pub(super) async fn freshen(&self) -> Result<(), Fault> {
        let clock = &self.context.clock;
        let is_fresh = || {
            let left = self.session.term().deadline().map_or(Duration::ZERO, |end| end.since(clock.now()));
            left > self.session.timeout() / TOUCHES
        };
        if is_fresh() {
            return Ok(());
        }
        let sent = clock.now();
        self.client.check_stat("/").await?;
        self.touched(sent);
        clock.sleep_until(clock.now() + self.address.tick).await;
        self.prove(clock.now()).await
    }

    /// A proof that was sent at this instant was answered.
    pub(super) fn proven(&self, sent: BootTime) {
        let touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        let known = touches.iter().rev().find(|touch| touch.answered + self.address.tick <= sent);
        // The making of the session was a proof of its own.
        let confirmed = known.or(touches.front()).map(|touch| touch.sent);
        drop(touches);
        if let Some(confirmed) = confirmed {
            self.session.confirm(confirmed);
        }
    }

    /// Room for a path of this length to be watched.
    pub(super) fn room(&self, bytes: usize) -> Room<'_> {
        self.watched.fetch_add(bytes, Ordering::Relaxed);
        Room(self, bytes)
    }

    /// Waits for an answer, for as long as one request may take.
    pub(super) async fn within_limit<T, E>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Fault>
    where
        Fault: From<E>,
    {
        within(&self.context, self.address.limit, answer).await
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Looks at a lock: who is there, and the value.
    pub(super) async fn see(&self, lock: &str) -> Result<Seen, Fault> {
        let children = match self.client.list_children(lock).await {
            Err(Error::NoNode) => Vec::new(),
            children => children?,
        };
        if children.iter().any(|child| child == VALUE) {
            return self.see_value(lock).await;
        }
        Ok(Seen { children: Children::new(children), value: None })
    }

    /// The same of a lock that has a value: both at one instant, since whose mark the value bears is told by who is there.
    async fn see_value(&self, lock: &str) -> Result<Seen, Fault> {
        let mut reader = self.client.new_multi_reader();
        reader.add_get_children(lock)?;
        reader.add_get_data(&format!("{lock}/{VALUE}"))?;
        let mut answers = reader.commit().await?.into_iter();
        let children = match answers.next() {
            Some(MultiReadResult::Children { children }) => children,
            Some(MultiReadResult::Error { err: Error::NoNode }) => Vec::new(),
            other => return Err(unexpected(other)),
        };
        let value = match answers.next() {
            Some(MultiReadResult::Data { data, .. }) => {
                let value = KeptValue::parse(&data);
                let damaged =
                    || format!("{lock}/{VALUE} is not a value of ours: see who wrote it, and delete it");
                Some(value.ok_or_else(|| Fault::Damaged(damaged()))?)
            }
            Some(MultiReadResult::Error { err: Error::NoNode }) => None,
            other => return Err(unexpected(other)),
        };
        let mut children = Children::new(children);
        if value.as_ref().is_some_and(KeptValue::is_marked)
            && let Some(place) = children.queue.place(SIMPLE)
        {
            // Who holds by it, and so may be the one whose mark this is, stands in it.
            let grant = match self.client.get_data(&format!("{lock}/{SIMPLE}")).await {
                Err(Error::NoNode) => None,
                read => look::grant(&read?.0),
            };
            children.queue.is_of(place, grant);
        }
        Ok(Seen { children, value })
    }

    /// The same, and not what a server knew that has not heard of the last changes.
    pub(super) async fn see_now(&self, lock: &str) -> Result<Seen, Fault> {
        // Sent before the look, and so answered before it.
        let synced = self.client.sync("/");
        let (synced, seen) = futures_util::future::join(synced, self.see(lock)).await;
        synced?;
        seen
    }

    /// A watch on a node; nothing, if it is gone.
    pub(super) async fn watch(&self, node: &str) -> Result<Option<OneshotWatcher>, Fault> {
        // By reading it: of a node that we may not read, ZooKeeper would not tell us that it is gone.
        match self.client.get_and_watch_data(node).await {
            Ok((_, _, watcher)) => Ok(Some(watcher)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes an entry in the queue of a lock, or finds the one that was made if the answer was lost. Goes on until that is known, at the
    /// latest with the end of the session. And looks at the lock just after that, without waiting in between.
    pub(super) async fn enter(
        self: Arc<Self>,
        lock: String,
        entry: String,
        data: String,
        given_up: Arc<AtomicBool>,
    ) -> Made {
        let path = format!("{lock}/{entry}");
        let ephemeral = CreateMode::EphemeralSequential.with_acls(self.address.acls());
        while !given_up.load(Ordering::Relaxed) {
            // Sent before the look, and so done before it.
            let making = self.client.create(&path, data.as_bytes(), &ephemeral);
            let (made, seen) = futures_util::future::join(making, self.see(&lock)).await;
            match made {
                Ok((stat, sequence)) => {
                    let node = Node { path: format!("{path}{sequence}"), token: token(&stat) };
                    return Ok(Some((node, seen.ok())));
                }
                Err(Error::NoNode) => self.make_parents(&lock).await?,
                Err(error) if what(&error) == What::AnswerLost => {
                    if let Some(found) = self.find(&lock, &entry).await? {
                        return Ok(Some((found, None)));
                    }
                    self.pause().await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes a lock by the recipe `simple`, or finds that it is taken, in the same way.
    pub(super) async fn take(
        self: Arc<Self>,
        lock: String,
        grant: GrantId,
        data: String,
        was_busy: bool,
        given_up: Arc<AtomicBool>,
    ) -> Made {
        let path = format!("{lock}/{SIMPLE}");
        let ephemeral = CreateMode::Ephemeral.with_acls(self.address.acls());
        while !given_up.load(Ordering::Relaxed) {
            let making = self.client.create(&path, data.as_bytes(), &ephemeral);
            let (made, seen) = if was_busy {
                // All but one of those who were woken would look in vain.
                (making.await, Err(Fault::Said(Error::NodeExists)))
            } else {
                futures_util::future::join(making, self.see(&lock)).await
            };
            match made {
                Ok((stat, _)) => {
                    let node = Node { path, token: token(&stat) };
                    return Ok(Some((node, seen.ok())));
                }
                Err(Error::NodeExists) => return Ok(None),
                Err(Error::NoNode) => self.make_parents(&lock).await?,
                Err(error) if what(&error) == What::AnswerLost => {
                    if let Some(token) = self.is_taken_by(&path, grant).await? {
                        return Ok(Some((Node { path, token }, None)));
                    }
                    self.pause().await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The token of a lock that is taken by the recipe `simple`, if it is by this grant. What was asked for before is done by then, as in
    /// [`find`](Self::find).
    async fn is_taken_by(&self, path: &str, grant: GrantId) -> Result<Option<FencingToken>, Error> {
        loop {
            let looking = async {
                self.client.sync(path).await?;
                match self.client.get_data(path).await {
                    Err(Error::NoNode) => Ok(None),
                    read => read.map(Some),
                }
            };
            match looking.await {
                Err(error) if what(&error) == What::AnswerLost => self.pause().await,
                Err(error) => return Err(error),
                Ok(read) => {
                    let ours =
                        read.filter(|(data, stat)| self.made(stat) && look::grant(data) == Some(grant));
                    return Ok(ours.map(|(_, stat)| token(&stat)));
                }
            }
        }
    }

    /// Whether it was this session that made a node: an earlier one of ours may still stand at the servers, with a node of the same grant.
    fn made(&self, stat: &Stat) -> bool {
        stat.ephemeral_owner == self.client.session_id().0
    }

    /// The child of a lock that this session made and whose name begins so. What was asked for before is done by then, or never will be: a session's requests are
    /// taken in their order, and what an earlier connection of it sent is refused once it has another one.
    async fn find(&self, lock: &str, begin: &str) -> Result<Option<Node>, Error> {
        loop {
            let looking = async {
                self.client.sync(lock).await?;
                let children = match self.client.list_children(lock).await {
                    Err(Error::NoNode) => Vec::new(),
                    children => children?,
                };
                for child in children.into_iter().filter(|child| child.starts_with(begin)) {
                    let path = format!("{lock}/{child}");
                    if let Some(stat) = self.client.check_stat(&path).await?.filter(|stat| self.made(stat)) {
                        return Ok(Some(Node { token: token(&stat), path }));
                    }
                }
                Ok(None)
            };
            match looking.await {
                Err(error) if what(&error) == What::AnswerLost => self.pause().await,
                looked => return looked,
            }
        }
    }

    async fn pause(&self) {
        let clock = &self.context.clock;
        clock.sleep_until(clock.now() + random::jittered(PAUSE)).await;
    }

    /// Makes the nodes above the entries of a lock, where they are missing: they go when they are empty, except for the root.
    async fn make_parents(&self, lock: &str) -> Result<(), Error> {
        let (ancestors, of_root) = self.address.root.ancestors(lock);
        // From below: those further up may be somebody else's, and not ours to touch.
        let mut missing = ancestors.len() - 1;
        while let Some(path) = ancestors.get(missing) {
            let lasts = missing < of_root || !self.has_containers.load(Ordering::Relaxed);
            let mode = if lasts { CreateMode::Persistent } else { CreateMode::Container };
            match self.client.create(path, &[], &mode.with_acls(self.address.acls())).await {
                Ok(_) | Err(Error::NodeExists) => missing += 1,
                Err(Error::NoNode) if missing > 0 => missing -= 1,
                Err(Error::Unimplemented) if !lasts => self.has_containers.store(false, Ordering::Relaxed),
                Err(error) if what(&error) == What::AnswerLost => self.pause().await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Frees what stands for a grant, and leaves the lock's value as it is given; with `NoNode`, nothing stood for it. By the recipe `simple`,
    /// what stands for one grant is called as what stands for the next: nobody may try a second time who does not know what became of the first.
    pub(super) async fn free(&self, node: &str, value: Option<&KeptValue>) -> Result<(), Fault> {
        let (lock, _) = node.rsplit_once('/').unwrap_or_default();
        let Some(value) = value else {
            self.client.delete(node, None).await?;
            self.tidy(lock);
            return Ok(());
        };
        let mut writer = self.client.new_multi_writer();
        writer.add_delete(node, None)?;
        writer.add_set_data(&format!("{lock}/{VALUE}"), &value.text(), None)?;
        match writer.commit().await {
            Ok(_) => Ok(()),
            // The value was taken away by hand.
            Err(MultiWriteError::OperationFailed { index: 1.., source: Error::NoNode }) => {
                Box::pin(self.free(node, None)).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Frees what stands for a grant, however long that takes, and whatever was tried before; at the latest it goes with the session.
    pub(super) async fn free_for_sure(self: Arc<Self>, node: String, grant: GrantId) {
        loop {
            if is_simple(&node) && !matches!(self.is_taken_by(&node, grant).await, Ok(Some(_))) {
                return;
            }
            match self.free(&node, None).await {
                Err(fault) if fault.what() == What::AnswerLost => self.pause().await,
                _ => return,
            }
        }
    }

    /// Takes away the node of a lock if it is empty, where the server does not do so by itself. Nobody waits for it.
    fn tidy(&self, lock: &str) {
        if !self.has_containers.load(Ordering::Relaxed) {
            // Sent at once, and refused if something is below it.
            drop(self.client.delete(lock, None));
        }
    }

    /// Ends the session, and waits until the server knows.
    pub(super) async fn close(self: Arc<Self>) {
        let (context, limit) = (self.context.clone(), self.address.limit);
        let mut states = self.client.state_watcher();
        drop(self);
        let closed = async {
            ended(&mut states).await;
            Ok::<_, Error>(())
        };
        if within(&context, limit, closed).await.is_err() {
            tracing::debug!("a session was not closed in time: it ends by itself");
        }
    }

    pub(super) fn root(&self) -> &Root {
        &self.address.root
    }
}

/// Resolves when a session has ended.
async fn ended(states: &mut StateWatcher) {
    while !states.peek_state().is_terminated() {
        states.changed().await;
    }
}

/// Whether a node stands for a holder by the recipe `simple`.
pub(super) fn is_simple(node: &str) -> bool {
    node.rsplit_once('/').is_some_and(|(_, name)| name == SIMPLE)
}

pub(super) fn token(stat: &Stat) -> FencingToken {
    FencingToken::new(stat.czxid.unsigned_abs())
}

pub(super) fn unexpected(answer: Option<MultiReadResult>) -> Fault {
    match answer {
        Some(MultiReadResult::Error { err }) => err.into(),
        other => Error::UnexpectedError(format!("an answer that is none: {other:?}")).into(),
    }
}
