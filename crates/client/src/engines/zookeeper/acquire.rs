//! Acquiring a lock, and waiting for it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_table::{Mode, Value};
use zookeeper_client::Error;

use super::fault::{Fault, What};
use super::link::{Link, Node, Seen, within};
use super::paths::{SIMPLE, VALUE};
use super::{Recipe, ZooKeeperEngine};
use crate::engine::{AcquireRequest, Granted};
use crate::engines::kept_value::KeptValue;
use crate::engines::session::{HasSession, InUse};
use crate::error::{AcquireError, RenewError};
use crate::random;

/// The pause before a waiter asks again for a place that was removed.
const GONE_PAUSE: Duration = Duration::from_millis(200);

/// The greatest length that the servers add to the path of an entry.
const SEQUENCE: usize = 12;

/// The reason why an attempt ended without a grant.
enum Failure {
    /// The request has failed.
    Ended(AcquireError),
    /// The node of the request is gone, with its session or removed by an operator: the request can be repeated.
    Gone(Fault),
}

impl ZooKeeperEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        if let Some((link, held)) = self.sessions.with(request.grant, request.ttl) {
            // The response to the first such request was lost.
            match self.confirm(&link, request.grant, &held.node).await {
                Ok(term) => return Ok(Granted::new(Some(held.token), term)),
                Err(RenewError::Engine(error)) => return Err(error.into()),
                Err(RenewError::Lost(_)) => {}
            }
        }
        let lock = self.address.root.lock(&request.name);
        let mut is_first = true;
        loop {
            // A repeated request keeps its place, even if the session has no room for others.
            let earlier = self.sessions.find(request.ttl, |link| link.has_request(request.grant));
            let link = if let Some(link) = earlier {
                link
            } else {
                let link = request.cancel.run_until_cancelled(self.link(request.ttl)).await;
                link.ok_or_else(|| request.not_granted())??
            };
            let asked: BoxFuture<'_, _> = match self.address.recipe {
                Recipe::Sequential => Box::pin(self.queue(&link, &request, &lock)),
                Recipe::Simple => Box::pin(self.take(&link, &request, &lock)),
            };
            let fault = match asked.await {
                Ok(granted) => return Ok(granted),
                Err(Failure::Ended(error)) => return Err(error),
                Err(Failure::Gone(fault)) => fault,
            };
            link.forget_request(request.grant);
            if fault.what() == What::SessionOver {
                link.session().end();
            }
            // The session may have ended before the request was sent.
            if std::mem::take(&mut is_first) {
                continue;
            }
            let fault = self.told(fault);
            if !request.waits() {
                return Err(fault.into());
            }
            tracing::debug!(name = %request.name, %fault, "a place in the queue is gone: it is asked for anew");
            let again = self.now() + random::jittered(GONE_PAUSE);
            request.woken_before(&*self.context.clock, again, std::future::pending::<()>()).await?;
        }
    }

    /// Acquires by the recipe `sequential`: an entry in the queue, until no earlier entry conflicts with it.
    async fn queue(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
    ) -> Result<Granted, Failure> {
        if !request.waits() && !link.has_request(request.grant) {
            // A request that does not wait writes nothing if the lock is taken.
            let seen = self.asked(request, link.see_now(lock)).await?;
            let is_in_its_way = |mode: Mode| !mode.compatible_with(request.mode);
            if seen.children.queue.entries().iter().any(|entry| is_in_its_way(entry.mode)) {
                return Err(Failure::Ended(request.not_granted()));
            }
        }
        let entry = self.address.names.entry(request.grant, request.mode);
        let _room = link.room(lock.len() + entry.len() + SEQUENCE);
        let details = self.details(request);
        let (node, seen) = self.asked(request, link.enter(lock, &entry, request.grant, &details)).await?;
        let answer = self.until_first(link, request, lock, &node, seen).await;
        if answer.is_err() && !request.waits() {
            self.asked(request, self.leave(link, request, lock)).await?;
        }
        answer
    }

    async fn until_first(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        node: &Node,
        mut seen: Option<Seen>,
    ) -> Result<Granted, Failure> {
        loop {
            let seen = self.seen(link, request, lock, seen.take()).await?;
            let queue = &seen.children.queue;
            // By the full name of its node: a node of an earlier session may still exist, and does not belong to this request any more.
            let own = node.path.rsplit_once('/').map_or("", |(_, own)| own);
            let Some(place) = queue.place(own) else {
                return Err(Failure::Gone(Fault::Said(Error::NoNode)));
            };
            let Some(before) = queue.waits_for(place) else {
                return self.grant(link, request, lock, node, &seen).await;
            };
            self.until_gone(link, request, &format!("{lock}/{}", before.node)).await?;
        }
    }

    /// Returns the state of the lock that was seen already, or reads it.
    async fn seen(
        &self,
        link: &Link,
        request: &AcquireRequest,
        lock: &str,
        seen: Option<Seen>,
    ) -> Result<Seen, Failure> {
        match seen {
            Some(seen) => Ok(seen),
            None => self.asked(request, link.see(lock)).await,
        }
    }

    /// Acquires by the recipe `simple`: one node, which only one session can create.
    async fn take(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
    ) -> Result<Granted, Failure> {
        let _room = link.room(lock.len() + SIMPLE.len() + 1);
        let mut turn = None;
        // A request that joins other waiters of its session does not ask before them.
        let comes_to_others = request.waits()
            && link.turns().anybody_waits_for(&request.name)
            && !link.has_request(request.grant);
        let mut in_the_way = comes_to_others.then(|| SIMPLE.to_owned());
        let mut was_busy = false;
        loop {
            if let Some(node) = in_the_way {
                was_busy = true;
                if turn.is_none() && request.waits() {
                    // `None` if the session has ended, which shows in the next request.
                    turn = self.waited(link, request, link.turns().turn(&request.name)).await?;
                }
                self.until_gone(link, request, &format!("{lock}/{node}")).await?;
            }
            let details = self.details(request);
            let taken = self.asked(request, link.take(lock, request.grant, &details, was_busy)).await?;
            in_the_way = match taken {
                None => Some(SIMPLE.to_owned()),
                Some((node, seen)) => match self.alone(link, request, lock, &node, seen).await? {
                    Ok(granted) => return Ok(granted),
                    Err(in_the_way) => {
                        self.asked(request, self.leave(link, request, lock)).await?;
                        Some(in_the_way)
                    }
                },
            };
        }
    }

    /// Grants the lock unless the queue has an entry; returns that entry if so. An entry of the queue takes precedence: of the two, the
    /// later one sees the other.
    async fn alone(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        node: &Node,
        seen: Option<Seen>,
    ) -> Result<Result<Granted, String>, Failure> {
        let seen = self.seen(link, request, lock, seen).await?;
        let queued = seen.children.queue.entries().iter().filter(|entry| entry.node != SIMPLE);
        let queued = queued.filter(|entry| entry.mode != Mode::Nl).max_by_key(|entry| entry.order);
        match queued {
            Some(queued) => Ok(Err(queued.node.clone())),
            None => Ok(Ok(self.grant(link, request, lock, node, &seen).await?)),
        }
    }

    /// Waits until a node is gone or the session has ended, so that the queue is to be looked at again.
    ///
    /// No waiter relies on its watch alone: about once in a session's timeout, it checks whether the node still exists. That is one read,
    /// which the connected server answers without the others.
    async fn until_gone(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        node: &str,
    ) -> Result<(), Failure> {
        if !request.waits() {
            return Err(Failure::Ended(request.not_granted()));
        }
        let Some(watcher) = self.asked(request, link.watch(node)).await? else { return Ok(()) };
        let gone = async {
            let mut changed = pin!(watcher.changed());
            loop {
                let look_at = self.now() + random::jittered(link.session().timeout());
                tokio::select! {
                    biased;
                    _ = &mut changed => return,
                    () = self.context.clock.sleep_until(look_at) => {}
                }
                let stands = self.answer(self.stands(link, node)).await;
                if stands.is_err_and(|fault| fault.is(&Error::NoNode)) {
                    tracing::debug!(name = %request.name, "a watch did not fire, and what it watched is gone");
                    return;
                }
            }
        };
        self.waited(link, request, gone).await?;
        Ok(())
    }

    /// Waits for a future. Returns `None` if the session ends first.
    async fn waited<T>(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        coming: impl Future<Output = T>,
    ) -> Result<Option<T>, Failure> {
        tokio::select! {
            biased;
            () = request.cancel.cancelled() => Err(Failure::Ended(request.not_granted())),
            came = coming => Ok(Some(came)),
            () = link.session().ended().cancelled() => Ok(None),
        }
    }

    /// Completes a grant: marks the value and makes sure that the session has time left.
    async fn grant(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        node: &Node,
        seen: &Seen,
    ) -> Result<Granted, Failure> {
        let value = match &seen.value {
            Some(kept) => kept.value(|grant| seen.children.queue.has(grant)),
            None => Value::default(),
        };
        let mut marked = None;
        if request.mode.may_write() && seen.value.is_some() {
            let mark = KeptValue::marked(value.clone(), request.grant);
            // Recorded before the write is sent: a withdrawal of the request then leaves the value without the mark.
            link.may_be_marked(request.grant, mark.clone());
            self.asked(request, self.write_value(link, &node.path, lock, &mark)).await?;
            marked = Some(mark);
        }
        self.asked(request, link.freshen()).await?;
        let term = link.session().keep(request, node.path.clone(), node.token, marked);
        let term = term.ok_or(Failure::Gone(Fault::Said(Error::SessionExpired)))?;
        link.forget_request(request.grant);
        Ok(Granted::new(Some(node.token), term).with_value(value))
    }

    /// Writes the lock's value, if the grant's node still exists.
    pub(super) async fn write_value(
        &self,
        link: &Link,
        node: &str,
        lock: &str,
        value: &KeptValue,
    ) -> Result<(), Fault> {
        let mut writer = link.client().new_multi_writer();
        writer.add_check_version(node, -1)?;
        writer.add_set_data(&format!("{lock}/{VALUE}"), &value.text(), None)?;
        writer.commit().await?;
        Ok(())
    }

    /// Removes all that a request left in its session.
    pub(super) async fn leave(&self, link: &Link, request: &AcquireRequest, lock: &str) -> Result<(), Fault> {
        link.withdraw(lock, &self.address.names.entry(request.grant, request.mode), request.grant).await
    }

    /// Waits for the response to a request, unless the acquire is cancelled.
    async fn asked<T, E>(
        &self,
        request: &AcquireRequest,
        asking: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure>
    where
        Fault: From<E>,
    {
        tokio::select! {
            biased;
            () = request.cancel.cancelled() => Err(Failure::Ended(request.not_granted())),
            answer = within(&self.context, self.address.limit, asking) => {
                answer.map_err(|fault| self.failure(fault))
            }
        }
    }

    fn details(&self, request: &AcquireRequest) -> String {
        let details = self.process.details(request, self.context.clock.wall(), None);
        format!("{}/{} {details}", request.grant, request.owner)
    }

    fn failure(&self, fault: Fault) -> Failure {
        match fault.what() {
            What::SessionOver => Failure::Gone(fault),
            What::AnswerLost | What::Refused => Failure::Ended(self.told(fault).into()),
        }
    }
}
