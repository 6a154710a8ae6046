//! The nodes that locks are made of: how they are made, looked at, found again and freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId};
use zookeeper_client::{CreateMode, Error, MultiReadResult, MultiWriteError, OneshotWatcher, Stat};

use super::{Counted, Link};
use crate::engines::kept_value::KeptValue;
use crate::engines::session::Held;
use crate::engines::zookeeper::fault::{Fault, What, what};
use crate::engines::zookeeper::look;
use crate::engines::zookeeper::paths::{Children, SIMPLE, VALUE};
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

/// What was made, and what was seen just after that; nothing, if the lock is taken.
pub(in crate::engines::zookeeper) type Made = Result<Option<(Node, Option<Seen>)>, Error>;

impl Link {
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

    /// Makes an entry in the queue of a lock, or finds the one that was made if the answer was lost. Goes on until that is known, at the
    /// latest with the end of the session. And [looks](Self::and_look) at the lock just after that.
    pub(in crate::engines::zookeeper) async fn enter(
        self: Arc<Self>,
        lock: String,
        entry: String,
        data: String,
        given_up: Arc<AtomicBool>,
    ) -> Made {
        let path = format!("{lock}/{entry}");
        let ephemeral = CreateMode::EphemeralSequential.with_acls(self.address.acls());
        while !given_up.load(Ordering::Relaxed) {
            let making = self.client.create(&path, data.as_bytes(), &ephemeral);
            let (made, seen) = self.and_look(making, &lock).await;
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
    pub(in crate::engines::zookeeper) async fn take(
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
                self.and_look(making, &lock).await
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

    /// Frees what stands for a grant, however long that takes, and whatever was tried before; at the latest it goes with the session.
    pub(in crate::engines::zookeeper) async fn free_for_sure(self: Arc<Self>, node: String, grant: GrantId) {
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

    /// The same of a grant that may be about to write.
    pub(in crate::engines::zookeeper) async fn free_when_written(
        self: Arc<Self>,
        held: Held,
        grant: GrantId,
    ) {
        let _written = held.writing.lock().await;
        self.free_for_sure(held.node.clone(), grant).await;
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
