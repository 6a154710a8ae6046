//! A session at ZooKeeper: what keeps it alive and proves that it is. The requests that locks are made of are in `nodes`.
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

/// So many touches in a timeout, and so many of them for one proof.
const TOUCHES: u32 = 10;
const TOUCHES_TO_A_PROOF: u32 = 3;

/// How long a touch and a proof may take at least, and the longest pause after one that failed.
const SHORTEST_TRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// So often the node of a grant is looked at that is watched.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// If connecting takes longer than this, the servers are probed.
const PROBE_AFTER: Duration = Duration::from_millis(100);

/// The pause between attempts to close a session that the client crate has given up.
const CLOSE_AGAIN_AFTER: Duration = Duration::from_secs(1);

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
    watched: Arc<AtomicUsize>,
    /// How many nodes are being made.
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

    /// The client crate sends all watches again on a new connection, and cannot do so if they do not fit one message of 128 KiB.
    fn has_room(&self) -> bool {
        self.watched.load(Ordering::Relaxed) + self.session.watched_bytes() < MOST_WATCHED
    }
}

/// So many bytes of paths may be watched.
const MOST_WATCHED: usize = 96 << 10;

/// What is counted for as long as this lives.
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
        let (hosts, connector) = (address.hosts(), connector(address, timeout));
        let sent = context.clock.now();
        // Whatever becomes of the runtime of whoever asks, the session is served by ours.
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

    /// Ends a session for us when it has ended for the client crate, and then for the servers.
    ///
    /// The crate gives up a session that had no connection for 7/5 of its timeout. The servers may keep it for longer, since a new leader gives
    /// each session its whole timeout again. Its entries would keep others waiting, though no grant of it is believed in after the deadline.
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
        // A holder may have until then to stop what the lock protects, also if the session ended for another reason.
        clock.sleep_until(believed_until).await;
        while sessions.strong_count() > 0 {
            match connector.clone().connect(&hosts).await {
                Err(Error::NoHosts | Error::Timeout) => {
                    clock.sleep_until(clock.now() + random::jittered(CLOSE_AGAIN_AFTER)).await;
                }
                // A client that is dropped closes its session. An error says that the servers have ended it.
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
                // Whoever drops the last of it ends it.
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
            // After a silence there is little time left.
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

    /// Looks at the node of a grant that lasts for some time, and waits until it is changed: until the holder has been told that it is
    /// broken or gone, or the grant has ended.
    async fn watch_grant(this: Weak<Self>, grant: GrantId, held: Held) {
        loop {
            let Some(link) = this.upgrade().filter(|link| link.session.held(grant).is_some()) else { return };
            let lost = match link.client.get_and_watch_data(&held.node).await {
                Ok((data, stat, _)) if is_simple(&held.node) && look::grant(&data) != Some(grant) => {
                    tracing::debug!(version = stat.version, "the node of a grant is another's");
                    LostReason::Forgotten
                }
                // Whoever breaks a lock changes its node. It stands until its holder lets go.
                Ok((_, stat, _)) if stat.version > 0 => LostReason::Broken,
                Ok((_, _, watcher)) => {
                    let clock = link.context.clock.clone();
                    drop(link);
                    // Nobody relies on a watch alone.
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

    /// Whose turn it is to watch and ask, of those who wait by the recipe `simple`.
    pub(super) const fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// Room for a path of this length to be watched.
    pub(super) fn room(&self, bytes: usize) -> Counted {
        Counted::new(&self.watched, bytes)
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

/// How a session is opened, or one that is there is taken up again.
fn connector(address: &Address, timeout: Duration) -> Connector {
    let connector = Client::connector().with_session_timeout(timeout);
    match address.login() {
        Some(login) => connector.with_auth("digest", login.as_bytes()),
        None => connector,
    }
}

/// Resolves if no server can be reached, and not at all while one of them may answer.
async fn no_server(address: &Address, context: &EngineContext) -> EngineError {
    // A server that runs has answered by then, and logs no connection that is closed without a request.
    context.clock.sleep_until(context.clock.now() + PROBE_AFTER).await;
    let address = address.clone();
    let probing = context.runtime.spawn(async move { probe::unreachable(&address).await });
    match AbortOnDropHandle::new(probing).await {
        Ok(Some(error)) => error,
        _ => std::future::pending().await,
    }
}

/// Resolves when a session has ended.
async fn ended(states: &mut StateWatcher) {
    while !states.peek_state().is_terminated() {
        states.changed().await;
    }
}
