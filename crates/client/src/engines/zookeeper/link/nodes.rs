//! The nodes of locks: creating, reading, finding and freeing them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId};
use zookeeper_client::{CreateMode, Error, MultiReadResult, MultiWriteError, OneshotWatcher, Stat};

use super::{Counted, Link};
use crate::engines::kept_value::KeptValue;
use crate::engines::session::Held;
use crate::engines::zookeeper::fault::{Fault, What, what};
use crate::engines::zookeeper::paths::{Children, SIMPLE, VALUE};
use crate::engines::zookeeper::{Recipe, look};
use crate::random;

/// The pause before a repeated request on a connection that broke.
const PAUSE: Duration = Duration::from_millis(50);

/// The number of concurrent creations from which each look waits for its creation.
const MANY: usize = 3;

/// The node of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engines::zookeeper) struct Node {
    pub(in crate::engines::zookeeper) path: String,
    /// The position of its creation in the order of all changes.
    pub(in crate::engines::zookeeper) token: FencingToken,
}

/// The state of a lock.
#[derive(Debug)]
pub(in crate::engines::zookeeper) struct Seen {
    pub(in crate::engines::zookeeper) children: Children,
    pub(in crate::engines::zookeeper) value: Option<KeptValue>,
}

/// What a request without a grant may have left in the session.
#[derive(Clone, Debug, Default)]
pub(in crate::engines::zookeeper) struct Request {
    /// The node by the recipe `sequential`. `None` if it is unknown whether the node was created.
    node: Option<Node>,
    /// The lock's value with the mark that the request may have written.
    mark: Option<KeptValue>,
}

/// The created node, and the state of the lock just after that; `None` if the lock is taken.
pub(in crate::engines::zookeeper) type Made = Result<Option<(Node, Option<Seen>)>, Error>;

impl Link {
    fn requests(&self) -> MutexGuard<'_, HashMap<GrantId, Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a node is about to be created for a request. Returns the record of an earlier request for the same grant.
    fn begin_request(&self, grant: GrantId) -> Option<Request> {
        match self.requests().entry(grant) {
            Entry::Occupied(earlier) => Some(earlier.get().clone()),
            Entry::Vacant(new) => {
                new.insert(Request::default());
                None
            }
        }
    }

    /// Records the node of a request that has marked no value yet.
    fn note_made(&self, grant: GrantId, node: Option<&Node>) {
        self.requests().insert(grant, Request { node: node.cloned(), mark: None });
    }

    /// Records that the lock's value may be marked by a request that is not granted yet.
    pub(in crate::engines::zookeeper) fn may_be_marked(&self, grant: GrantId, mark: KeptValue) {
        self.requests().entry(grant).or_default().mark = Some(mark);
    }

    /// Records that it is unknown whether the node of a grant was freed.
    pub(in crate::engines::zookeeper) fn may_be_freed(&self, grant: GrantId) {
        self.requests().entry(grant).or_default();
    }

    /// Whether a request for this grant may have left something in this session.
    pub(in crate::engines::zookeeper) fn has_request(&self, grant: GrantId) -> bool {
        self.requests().contains_key(&grant)
    }

    pub(in crate::engines::zookeeper) fn forget_request(&self, grant: GrantId) {
        self.requests().remove(&grant);
    }

    /// Removes all records of a grant.
    pub(in crate::engines::zookeeper) fn forget(&self, grant: GrantId) {
        self.session.forget(grant);
        self.forget_request(grant);
    }

    /// Reads the state of a lock: its queue and its value.
    pub(in crate::engines::zookeeper) async fn see(&self, lock: &str) -> Result<Seen, Fault> {
        let children = match self.client.list_children(lock).await {
            Err(Error::NoNode) => Vec::new(),
            children => children?,
        };
        if children.iter().any(|child| child == VALUE) {
            return self.see_value(lock).await;
        }
        Ok(Seen { children: Children::new(children), value: None })
    }

    /// Reads the state of a lock with a value. Both are read at one instant, since the queue says whether the value's mark is still valid.
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
            // The node by the recipe `simple` contains the grant of its holder, which may be that of the mark.
            let grant = match self.client.get_data(&format!("{lock}/{SIMPLE}")).await {
                Err(Error::NoNode) => None,
                read => look::grant(&read?.0),
            };
            children.queue.is_of(place, grant);
        }
        Ok(Seen { children, value })
    }

    /// Reads the state of a lock as of now, and not an older state of a server that lags behind.
    pub(in crate::engines::zookeeper) async fn see_now(&self, lock: &str) -> Result<Seen, Fault> {
        // Sent before the look, and so answered before it.
        let synced = self.client.sync("/");
        let (synced, seen) = futures_util::future::join(synced, self.see(lock)).await;
        synced?;
        seen
    }

    /// Watches a node. Returns `None` if it does not exist.
    pub(in crate::engines::zookeeper) async fn watch(
        &self,
        node: &str,
    ) -> Result<Option<OneshotWatcher>, Fault> {
        // The watch is set by a read, which fails without permission: ZooKeeper does not report the deletion of a node that the client may
        // not read.
        match self.client.get_and_watch_data(node).await {
            Ok((_, _, watcher)) => Ok(Some(watcher)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Watches the holders and waiters of a lock, even if the lock has no node yet.
    pub(in crate::engines::zookeeper) async fn watch_children(
        &self,
        lock: &str,
    ) -> Result<OneshotWatcher, Fault> {
        loop {
            match self.client.list_and_watch_children(lock).await {
                Ok((_, watcher)) => return Ok(watcher),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
            // A node that was created meanwhile can be watched.
            if let (None, watcher) = self.client.check_and_watch_stat(lock).await? {
                return Ok(watcher);
            }
        }
    }

    /// Creates an entry in the queue of a lock, or finds the entry of this grant. Retries until one or the other is certain, at the latest
    /// until the end of the session. Also [reads](Self::and_look) the lock just after that.
    pub(in crate::engines::zookeeper) async fn enter(
        &self,
        lock: &str,
        entry: &str,
        grant: GrantId,
        data: &str,
    ) -> Result<(Node, Option<Seen>), Error> {
        let path = format!("{lock}/{entry}");
        let ephemeral = CreateMode::EphemeralSequential.with_acls(self.address.acls());
        let mut may_be_made = match self.begin_request(grant) {
            Some(Request { node: Some(node), .. }) => return Ok((node, None)),
            Some(Request { node: None, .. }) => true,
            None => false,
        };
        loop {
            if may_be_made && let Some(found) = self.find(lock, entry).await? {
                self.note_made(grant, Some(&found));
                return Ok((found, None));
            }
            let sent_at = self.context.clock.now();
            let making = self.client.create(&path, data.as_bytes(), &ephemeral);
            let (made, seen) = self.and_look(making, lock).await;
            may_be_made = match made {
                Ok((stat, sequence)) => {
                    self.proven(sent_at);
                    let node = Node { path: format!("{path}{sequence}"), token: token(&stat) };
                    self.note_made(grant, Some(&node));
                    return Ok((node, seen.ok()));
                }
                Err(Error::NoNode) => {
                    self.make_parents(lock).await?;
                    false
                }
                Err(error) if what(&error) == What::AnswerLost => {
                    self.pause().await;
                    true
                }
                Err(error) => return Err(error),
            };
        }
    }

    /// Takes a lock by the recipe `simple`, or finds that this grant or another one has taken it. Retries like `enter`.
    pub(in crate::engines::zookeeper) async fn take(
        &self,
        lock: &str,
        grant: GrantId,
        data: &str,
        was_busy: bool,
    ) -> Made {
        let path = format!("{lock}/{SIMPLE}");
        let ephemeral = CreateMode::Ephemeral.with_acls(self.address.acls());
        let mut may_be_made = self.begin_request(grant).is_some();
        loop {
            if may_be_made && let Some(token) = self.is_taken_by(&path, grant).await? {
                return Ok(Some((Node { path, token }, None)));
            }
            let sent_at = self.context.clock.now();
            let making = self.client.create(&path, data.as_bytes(), &ephemeral);
            let (made, seen) = if was_busy {
                // Of the woken waiters, only one will get the lock, so the others would look in vain.
                (making.await, Err(Fault::Said(Error::NodeExists)))
            } else {
                self.and_look(making, lock).await
            };
            may_be_made = match made {
                Ok((stat, _)) => {
                    self.proven(sent_at);
                    self.note_made(grant, None);
                    let node = Node { path, token: token(&stat) };
                    return Ok(Some((node, seen.ok())));
                }
                Err(Error::NodeExists) => {
                    self.proven(sent_at);
                    self.forget_request(grant);
                    return Ok(None);
                }
                Err(Error::NoNode) => {
                    self.make_parents(lock).await?;
                    false
                }
                Err(error) if what(&error) == What::AnswerLost => {
                    self.pause().await;
                    true
                }
                Err(error) => return Err(error),
            };
        }
    }

    /// Removes all that a request left in this session. By the recipe `simple`, the next holder's node has the same path, so the node is
    /// read first. The requests of a session are done in order, so all that was sent before is done by then.
    pub(in crate::engines::zookeeper) async fn withdraw(
        &self,
        lock: &str,
        entry: &str,
        grant: GrantId,
    ) -> Result<(), Fault> {
        let Some(Request { node, mark }) = self.requests().get(&grant).cloned() else { return Ok(()) };
        let simple = format!("{lock}/{SIMPLE}");
        let node = match node {
            Some(node) => Some(node.path),
            None if self.address.recipe == Recipe::Simple => {
                self.is_taken_by(&simple, grant).await?.map(|_| simple)
            }
            None => self.find(lock, entry).await?.map(|node| node.path),
        };
        if let Some(node) = node {
            match self.free(&node, mark.map(KeptValue::unmarked).as_ref()).await {
                Err(fault) if fault.is(&Error::NoNode) => {}
                freed => freed?,
            }
        }
        self.forget_request(grant);
        Ok(())
    }

    /// Waits for the creation of a node, and returns its result and the state of its lock just after that.
    ///
    /// The look is sent right behind the creation, and so is done after it: this saves a round trip. But with several servers, each server
    /// processes the writes and reads of one session one by one. So with many concurrent creations, each look waits for its creation. Then
    /// the writes reach the servers together, and are written to the disk together.
    async fn and_look<T>(
        &self,
        making: impl Future<Output = Result<T, Error>>,
        lock: &str,
    ) -> (Result<T, Error>, Result<Seen, Fault>) {
        let _counted = Counted::new(&self.making, 1);
        if self.making.load(Ordering::Relaxed) < MANY || self.address.is_one_server() {
            return futures_util::future::join(making, self.see(lock)).await;
        }
        let made = making.await;
        let seen = match made {
            Ok(_) => self.see(lock).await,
            Err(_) => Err(Fault::Said(Error::NoNode)),
        };
        (made, seen)
    }

    /// Returns the token of a lock that this grant has taken by the recipe `simple`. All that was sent before is done by then, as in
    /// [`find`](Self::find).
    pub(in crate::engines::zookeeper) async fn is_taken_by(
        &self,
        path: &str,
        grant: GrantId,
    ) -> Result<Option<FencingToken>, Error> {
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

    /// Whether this session created a node: an earlier session of this client may still exist on the servers, with a node of the same
    /// grant.
    fn made(&self, stat: &Stat) -> bool {
        stat.ephemeral_owner == self.client.session_id().0
    }

    /// Returns the child of a lock that this session created and whose name has this prefix. All that was sent before is done by then, or
    /// never will be. A session's requests are processed in order, and those of an earlier connection are refused once the session has a
    /// new one.
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

    pub(super) async fn pause(&self) {
        let clock = &self.context.clock;
        clock.sleep_until(clock.now() + random::jittered(PAUSE)).await;
    }

    /// Creates missing nodes above the entries of a lock. The servers remove them when they are empty, except for the root.
    async fn make_parents(&self, lock: &str) -> Result<(), Error> {
        let (ancestors, of_root) = self.address.root.ancestors(lock);
        // From below: nodes further up may belong to another user, without access for this client.
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

    /// Frees the node of a grant, and writes the lock's value if one is given. Fails with `NoNode` if the node does not exist. By the
    /// recipe `simple`, the next grant's node has the same path, so a caller must not retry before the outcome of the first attempt is
    /// known.
    pub(in crate::engines::zookeeper) async fn free(
        &self,
        node: &str,
        value: Option<&KeptValue>,
    ) -> Result<(), Fault> {
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
            // An operator deleted the value.
            Err(MultiWriteError::OperationFailed { index: 1.., source: Error::NoNode }) => {
                Box::pin(self.free(node, None)).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Frees the node of a grant that was not renewed. Retries until the node is gone, at the latest with the session.
    pub(super) async fn put_out(self: Arc<Self>, held: Held, grant: GrantId) {
        // A write may be under way.
        let _written = held.writing.lock().await;
        let is_there = async || {
            !is_simple(&held.node) || matches!(self.is_taken_by(&held.node, grant).await, Ok(Some(_)))
        };
        while is_there().await {
            match self.free(&held.node, None).await {
                Err(fault) if fault.what() == What::AnswerLost => self.pause().await,
                _ => break,
            }
        }
        self.forget_request(grant);
    }

    /// Deletes the empty node of a lock if the servers do not do so by themselves. Does not wait for the result.
    fn tidy(&self, lock: &str) {
        if !self.has_containers.load(Ordering::Relaxed) {
            // Creating the future sends the request. The servers refuse it if the node has children.
            drop(self.client.delete(lock, None));
        }
    }
}

/// Whether a node is that of a holder by the recipe `simple`.
pub(in crate::engines::zookeeper) fn is_simple(node: &str) -> bool {
    node.rsplit_once('/').is_some_and(|(_, name)| name == SIMPLE)
}

pub(in crate::engines::zookeeper) fn token(stat: &Stat) -> FencingToken {
    FencingToken::new(stat.czxid.unsigned_abs())
}

pub(in crate::engines::zookeeper) fn unexpected(answer: Option<MultiReadResult>) -> Fault {
    match answer {
        Some(MultiReadResult::Error { err }) => err.into(),
        other => Error::UnexpectedError(format!("an answer that is none: {other:?}")).into(),
    }
}
