//! The nodes that locks are made of: how they are made, looked at, found again and freed.

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

/// How long to wait before asking again on a connection that broke.
const PAUSE: Duration = Duration::from_millis(50);

/// So many are many who make nodes at once.
const MANY: usize = 3;

/// What stands for a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engines::zookeeper) struct Node {
    pub(in crate::engines::zookeeper) path: String,
    /// When it was made, in the order of all changes.
    pub(in crate::engines::zookeeper) token: FencingToken,
}

/// What is seen of a lock.
#[derive(Debug)]
pub(in crate::engines::zookeeper) struct Seen {
    pub(in crate::engines::zookeeper) children: Children,
    pub(in crate::engines::zookeeper) value: Option<KeptValue>,
}

/// What a request may have made that is not granted yet.
#[derive(Clone, Debug, Default)]
pub(in crate::engines::zookeeper) struct Request {
    /// By the recipe `sequential`. If there is none, it may have been made or not.
    node: Option<Node>,
    /// The lock's value, as it may be marked by now.
    mark: Option<KeptValue>,
}

/// What was made, and what was seen just after that; nothing, if the lock is taken.
pub(in crate::engines::zookeeper) type Made = Result<Option<(Node, Option<Seen>)>, Error>;

impl Link {
    fn requests(&self) -> MutexGuard<'_, HashMap<GrantId, Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a node is about to be made for a request; with what is known of an earlier one for the same grant.
    fn begin_request(&self, grant: GrantId) -> Option<Request> {
        match self.requests().entry(grant) {
            Entry::Occupied(earlier) => Some(earlier.get().clone()),
            Entry::Vacant(new) => {
                new.insert(Request::default());
                None
            }
        }
    }

    /// Notes which node stands for a request: one that has marked no value yet.
    fn note_made(&self, grant: GrantId, node: Option<&Node>) {
        self.requests().insert(grant, Request { node: node.cloned(), mark: None });
    }

    /// Notes that the lock's value may be marked by a request that is not granted yet.
    pub(in crate::engines::zookeeper) fn may_be_marked(&self, grant: GrantId, mark: KeptValue) {
        self.requests().entry(grant).or_default().mark = Some(mark);
    }

    /// Notes that it is not known whether what stands for a grant was freed.
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

    /// Nothing is left of a grant.
    pub(in crate::engines::zookeeper) fn forget(&self, grant: GrantId) {
        self.session.forget(grant);
        self.forget_request(grant);
    }

    /// Looks at a lock: who is there, and the value.
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
    pub(in crate::engines::zookeeper) async fn see_now(&self, lock: &str) -> Result<Seen, Fault> {
        // Sent before the look, and so answered before it.
        let synced = self.client.sync("/");
        let (synced, seen) = futures_util::future::join(synced, self.see(lock)).await;
        synced?;
        seen
    }

    /// A watch on a node; nothing, if it is gone.
    pub(in crate::engines::zookeeper) async fn watch(
        &self,
        node: &str,
    ) -> Result<Option<OneshotWatcher>, Fault> {
        // By reading it: of a node that we may not read, ZooKeeper would not tell us that it is gone.
        match self.client.get_and_watch_data(node).await {
            Ok((_, _, watcher)) => Ok(Some(watcher)),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A watch on who holds a lock or waits for it, also if there is no node of the lock yet.
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
            // Made meanwhile, it can be watched.
            if let (None, watcher) = self.client.check_and_watch_stat(lock).await? {
                return Ok(watcher);
            }
        }
    }

    /// Makes an entry in the queue of a lock, or finds the one that this grant has. Goes on until that is known, at the latest with the end of
    /// the session. And [looks](Self::and_look) at the lock just after that.
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

    /// Takes a lock by the recipe `simple`, or finds that it is taken, in the same way: by this grant or by another one.
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
                // All but one of those who were woken would look in vain.
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

    /// Leaves nothing of a request in this session. The node by the recipe `simple` is called as that of the next holder, so it is looked at
    /// first. Requests of a session are done in their order: what was sent before is done by then.
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

    /// What became of a node that is being made, and what is seen of its lock just after that.
    ///
    /// The look is sent behind the making without waiting for it, and so is done after it: one way there and back is saved. But of several
    /// servers, each lets the changes and looks of one session wait for each other, one by one. So where many are making nodes, all of
    /// them look when they have made theirs: then changes come to the servers together, and are written to the disk together.
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

    /// The token of a lock that is taken by the recipe `simple`, if it is by this grant. What was asked for before is done by then, as in
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

    pub(super) async fn pause(&self) {
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
            // The value was taken away by hand.
            Err(MultiWriteError::OperationFailed { index: 1.., source: Error::NoNode }) => {
                Box::pin(self.free(node, None)).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Frees what stands for a grant that was not renewed, however long that takes; at the latest it goes with the session.
    pub(super) async fn put_out(self: Arc<Self>, held: Held, grant: GrantId) {
        // It may be about to write.
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

    /// Takes away the node of a lock if it is empty, where the server does not do so by itself. Nobody waits for it.
    fn tidy(&self, lock: &str) {
        if !self.has_containers.load(Ordering::Relaxed) {
            // Sent at once, and refused if something is below it.
            drop(self.client.delete(lock, None));
        }
    }
}

/// Whether a node stands for a holder by the recipe `simple`.
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
