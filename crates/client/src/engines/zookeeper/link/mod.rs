//! A ZooKeeper session: the task that keeps it alive and proves that it is. The requests that locks consist of are in `nodes`.
//!
//! # The deadline of a grant
//! The leader ends a session after a timeout without news of it. A follower answers reads and pings by itself, and reports them to the
//! leader only with its answers to the leader's own pings, twice in a tick; so an answer to a read proves nothing. Here:
//!
//! - a read without effect is sent every tenth of the timeout (a *touch*);
//! - a request through the leader and a majority (a *proof*) is sent every third of the timeout or more often: the creation of an entry, or
//!   a check of the root of the tree.
//!
//! When the leader processes a proof, it knows all that the follower reported before it passed the proof on. So a proof confirms the last
//! touch that was answered a whole tick before the proof was sent, as of when that touch was sent. With a quarter of a tick more as the
//! margin, the deadline precedes the end of the session at the leader. This is so even if the follower is cut off from the leader just
//! after that.

mod nodes;
mod probe;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_table::GrantId;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::task::AbortOnDropHandle;
use zookeeper_client::{Client, Connector, Error, StateWatcher};

use self::nodes::Request;
pub(super) use self::nodes::{Node, Seen, is_simple, token, unexpected};
use super::address::Address;
use super::fault::{Fault, What, what};
use super::look;
use super::paths::Root;
use super::turns::Turns;
use crate::clock::BootTime;
use crate::engine::EngineContext;
use crate::engines::session::{HasSession, Held, Session, Sessions};
use crate::error::{EngineError, LostReason};
use crate::random;

/// The number of touches in a timeout, and the number of touches for each proof.
const TOUCHES: u32 = 10;
const TOUCHES_TO_A_PROOF: u32 = 3;

/// The least time limit of a touch and a proof, and the longest pause after one that failed.
const SHORTEST_TRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The interval between two checks of a grant's node that is also watched.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// The time after which an attempt to connect also probes the servers.
const PROBE_AFTER: Duration = Duration::from_millis(100);

/// The pause between attempts to close a session that the client crate has given up.
const CLOSE_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A session.
#[derive(Debug)]
pub(super) struct Link {
    client: Client,
    session: Session,
    touches: Mutex<VecDeque<Touch>>,
    /// The time at which the last answered proof was sent. Locked while a proof is under way: one at a time.
    proved: AsyncMutex<BootTime>,
    /// Whether the servers support container nodes, which they remove when they are empty.
    has_containers: AtomicBool,
    /// The number of bytes of paths that are watched, or may be soon.
    watched: Arc<AtomicUsize>,
    /// The number of nodes that are being created.
    making: Arc<AtomicUsize>,
    turns: Arc<Turns>,
    requests: Mutex<HashMap<GrantId, Request>>,
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

    /// The client crate sends all watches again on a new connection, and fails if they do not fit one message of 128 KiB.
    fn has_room(&self) -> bool {
        self.watched.load(Ordering::Relaxed) + self.session.watched_bytes() < MOST_WATCHED
    }
}

/// The most bytes of paths that may be watched.
const MOST_WATCHED: usize = 96 << 10;

/// A contribution to a count, for as long as this value exists.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>, usize);

impl Counted {
    fn new(total: &Arc<AtomicUsize>, more: usize) -> Self {
        total.fetch_add(more, Ordering::Relaxed);
        Self(total.clone(), more)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Waits for a response until a time limit.
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
    /// Opens a session that ends after this time without requests, or after the time that the servers choose.
    pub(super) async fn open(
        address: &Address,
        timeout: Duration,
        context: &EngineContext,
        sessions: &Arc<Sessions<Self>>,
    ) -> Result<Arc<Self>, EngineError> {
        let (hosts, connector) = (address.hosts(), connector(address, timeout));
        let sent = context.clock.now();
        // The session runs on the engine's runtime, and does not depend on the caller's.
        let connecting = context.runtime.spawn(async move { connector.connect(&hosts).await });
        let connecting = AbortOnDropHandle::new(connecting);
        let connected = async { connecting.await.unwrap_or(Err(Error::ClientClosed)) };
        let client = tokio::select! {
            biased;
            client = within(context, address.limit, connected) => {
                client.map_err(|fault| fault.error(&address.hosts()))?
            }
            error = no_server(address, context) => return Err(error),
        };
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
            watched: Arc::default(),
            making: Arc::default(),
            turns: Arc::default(),
            requests: Mutex::default(),
            touches: Mutex::new([Touch { sent, answered }].into()),
            address: address.clone(),
            context: context.clone(),
        });
        context.runtime.spawn(Self::end_with_client(Arc::downgrade(&link), Arc::downgrade(sessions)));
        context.runtime.spawn(Self::keep_alive(Arc::downgrade(&link), Arc::downgrade(sessions)));
        Ok(link)
    }

    /// Ends a session here after the client crate has ended it, and then on the servers.
    ///
    /// The crate gives up a session that had no connection for 7/5 of its timeout. The servers may keep it for longer, since a new leader
    /// gives each session its whole timeout again. Its entries would keep others waiting, though no grant of it is valid after the
    /// deadline.
    async fn end_with_client(this: Weak<Self>, sessions: Weak<Sessions<Self>>) {
        let Some(mut states) = this.upgrade().map(|link| link.client.state_watcher()) else { return };
        ended(&mut states).await;
        let Some(link) = this.upgrade() else { return };
        tracing::debug!(servers = link.address.hosts(), "a session has ended");
        link.session.end();
        let (hosts, clock, believed_until) =
            (link.address.hosts(), link.context.clock.clone(), link.session.deadline());
        let connector = connector(&link.address, link.session.timeout()).with_fail_eagerly();
        let connector = connector.with_session(link.client.session().clone());
        drop(link);
        // A holder may need the time until then to stop the work that the lock protects, also if the session ended for another reason.
        clock.sleep_until(believed_until).await;
        while sessions.strong_count() > 0 {
            match connector.clone().connect(&hosts).await {
                Err(Error::NoHosts | Error::Timeout) => {
                    clock.sleep_until(clock.now() + random::jittered(CLOSE_AGAIN_AFTER)).await;
                }
                // Dropping the new client closes its session. Any other error says that the servers have ended it.
                _ => return,
            }
        }
    }

    async fn keep_alive(this: Weak<Self>, sessions: Weak<Sessions<Self>>) {
        let (mut round, mut is_urgent) = (0, false);
        loop {
            let Some((clock, interval)) =
                this.upgrade().map(|link| (link.context.clock.clone(), link.session.timeout() / TOUCHES))
            else {
                return;
            };
            let pause = if is_urgent { (interval / 4).min(LONGEST_RETRY) } else { interval };
            clock.sleep_until(clock.now() + random::slightly_below(pause)).await;
            let Some(link) = this.upgrade().filter(|link| !link.session.ended().is_cancelled()) else {
                return;
            };
            for (grant, held) in link.session.overdue(clock.now()) {
                link.context.runtime.spawn(link.clone().put_out(held, grant));
            }
            if let Some(sessions) = sessions.upgrade() {
                // Dropping the last reference to a session ends it.
                drop(sessions.idle(clock.now()));
            }
            round += 1;
            let sent = clock.now();
            let is_due = (is_urgent || round % TOUCHES_TO_A_PROOF == 0) && link.session.in_use();
            let keeping = async {
                if link.client.check_stat("/").await?.is_some() {
                    link.touched(sent);
                }
                if is_due { link.prove(clock.now()).await } else { Ok(()) }
            };
            let limit = (link.session.timeout() / 3).max(SHORTEST_TRY);
            let kept = within(&link.context, limit, keeping).await;
            // After a long silence, even a success may leave little time.
            let left = link.session.deadline().since(clock.now());
            is_urgent = link.session.in_use() && (kept.is_err() || left < link.session.timeout() / 3);
            if let Err(fault) = kept {
                tracing::debug!(?fault, "a session is not confirmed, and is tried again");
                link.session.doubt();
            } else if is_due {
                for (grant, held) in link.session.begin_to_watch() {
                    link.context.runtime.spawn(Self::watch_grant(Arc::downgrade(&link), grant, held));
                }
            }
        }
    }

    /// Watches the node of a grant that lasts for some time. Ends after notifying the holder that the lock is broken or gone, or after the
    /// end of the grant.
    async fn watch_grant(this: Weak<Self>, grant: GrantId, held: Held) {
        loop {
            let Some(link) = this.upgrade().filter(|link| link.session.held(grant).is_some()) else { return };
            let lost = match link.client.get_and_watch_data(&held.node).await {
                Ok((data, stat, _)) if is_simple(&held.node) && look::grant(&data) != Some(grant) => {
                    tracing::debug!(version = stat.version, "the node of a grant is another's");
                    LostReason::Forgotten
                }
                // Breaking a lock changes its node. The node remains until its holder releases the lock.
                Ok((_, stat, _)) if stat.version > 0 => LostReason::Broken,
                Ok((_, _, watcher)) => {
                    let clock = link.context.clock.clone();
                    drop(link);
                    // The task does not rely on the watch alone.
                    tokio::select! {
                        _ = watcher.changed() => {}
                        () = clock.sleep_until(clock.now() + random::jittered(LOOK_AGAIN)) => {}
                    }
                    continue;
                }
                Err(Error::NoNode) => LostReason::Forgotten,
                Err(error) if what(&error) == What::SessionOver => return,
                Err(_) => {
                    link.pause().await;
                    continue;
                }
            };
            if lost == LostReason::Forgotten {
                link.session.forget(grant);
            }
            return held.is_lost(lost);
        }
    }

    fn touched(&self, sent: BootTime) {
        let touch = Touch { sent, answered: self.context.clock.now() };
        let mut touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        touches.push_back(touch);
        // A touch older than a timeout proves nothing.
        if touches.len() > 4 * TOUCHES as usize {
            touches.pop_front();
        }
    }

    /// Ensures that a proof was sent at this instant or just before it, and answered. Concurrent callers share one.
    pub(super) async fn prove(&self, asked: BootTime) -> Result<(), Fault> {
        let mut proved = self.proved.lock().await;
        if *proved + self.session.timeout() / TOUCHES / 2 >= asked {
            return Ok(());
        }
        let sent = self.context.clock.now();
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version("/", -1)?;
        match writer.commit().await.map_err(Error::from) {
            // The answer comes from the leader, whether or not this client may check the root.
            Ok(_) | Err(Error::NoAuth) => {}
            Err(error) => return Err(error.into()),
        }
        *proved = sent;
        self.proven(sent);
        Ok(())
    }

    /// Ensures that the deadline is not near: after a long silence, touches before it prove nothing.
    pub(super) async fn freshen(&self) -> Result<(), Fault> {
        let clock = &self.context.clock;
        let is_fresh = || self.session.deadline().since(clock.now()) > self.session.timeout() / TOUCHES;
        if is_fresh() {
            return Ok(());
        }
        let sent = clock.now();
        self.client.check_stat("/").await?;
        self.touched(sent);
        clock.sleep_until(clock.now() + self.address.tick).await;
        self.prove(clock.now()).await
    }

    /// Records that a proof sent at this instant was answered.
    pub(super) fn proven(&self, sent: BootTime) {
        let touches = self.touches.lock().unwrap_or_else(PoisonError::into_inner);
        let known = touches.iter().rev().find(|touch| touch.answered + self.address.tick <= sent);
        // Creating the session was a proof as well.
        let confirmed = known.or(touches.front()).map(|touch| touch.sent);
        drop(touches);
        if let Some(confirmed) = confirmed {
            self.session.confirm(confirmed);
        }
    }

    /// Returns the turns of the waiters by the recipe `simple`.
    pub(super) const fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// Reserves room for the watch of a path of this length.
    pub(super) fn room(&self, bytes: usize) -> Counted {
        Counted::new(&self.watched, bytes)
    }

    /// Waits for a response until the time limit of one request.
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

    /// Ends the session, and waits until the server has confirmed that.
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

/// Returns a connector that opens a session, or resumes an existing one.
fn connector(address: &Address, timeout: Duration) -> Connector {
    let connector = Client::connector().with_session_timeout(timeout);
    match address.login() {
        Some(login) => connector.with_auth("digest", login.as_bytes()),
        None => connector,
    }
}

/// Returns an error if no server can be reached. Does not return while one of them may answer.
async fn no_server(address: &Address, context: &EngineContext) -> EngineError {
    // A running server has answered by then, so it logs no connection that is closed without a request.
    context.clock.sleep_until(context.clock.now() + PROBE_AFTER).await;
    let address = address.clone();
    let probing = context.runtime.spawn(async move { probe::unreachable(&address).await });
    match AbortOnDropHandle::new(probing).await {
        Ok(Some(error)) => error,
        _ => std::future::pending().await,
    }
}

/// Waits until a session has ended.
async fn ended(states: &mut StateWatcher) {
    while !states.peek_state().is_terminated() {
        states.changed().await;
    }
}
