//! How a lock is got, and waited for.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_table::{GrantId, Mode, Value};
use zookeeper_client::Error;

use super::fault::{Fault, What};
use super::link::{Link, Made, Node, Seen, is_simple, within};
use super::paths::{SIMPLE, VALUE};
use super::{Recipe, ZooKeeperEngine};
use crate::engine::{AcquireRequest, Granted, WaitUntil};
use crate::engines::kept_value::KeptValue;
use crate::engines::session::{HasSession, InUse};
use crate::error::{AcquireError, EngineError, RenewError};
use crate::random;

/// How long one who waits pauses before it asks again one who did not answer.
const SILENT_PAUSE: Duration = Duration::from_millis(200);

/// So long is what the servers add to the path of an entry, at the most.
const SEQUENCE: usize = 12;

/// Why there is no lock.
enum NotGot {
    /// There will be none.
    Ended(AcquireError),
    /// What stood for the request is gone, with the session or by an operator's hand: it can be asked for anew.
    Gone(Fault),
}

impl ZooKeeperEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        if let Some((link, held)) = self.sessions.with(request.grant, request.ttl, self.now()) {
            // The answer to the first such request was lost.
            return match self.confirm(&link, request.grant, &held.node).await {
                Ok(term) => Ok(Granted::new(Some(held.token), term)),
                Err(RenewError::Engine(error)) => Err(error.into()),
                Err(RenewError::Lost(_)) => Err(request.not_got()),
            };
        }
        let lock = self.address.root.lock(&request.name);
        let mut in_line = false;
        let mut is_first = true;
        loop {
            let link = tokio::select! {
                biased;
                () = request.cancel.cancelled() => return Err(request.not_got()),
                link = self.link(request.ttl) => link,
            };
            let fault = match link {
                Ok(link) => {
                    let asked: BoxFuture<'_, _> = match self.address.recipe {
                        Recipe::Sequential => Box::pin(self.queue(&link, &request, &lock, &mut in_line)),
                        Recipe::Simple => Box::pin(self.take(&link, &request, &lock, &mut in_line)),
                    };
                    match asked.await {
                        Ok(granted) => return Ok(granted),
                        Err(NotGot::Ended(error)) => return Err(error),
                        Err(NotGot::Gone(fault)) => {
                            if fault.what() == What::SessionOver {
                                link.session().end();
                            }
                            // It may have been over before it was asked.
                            if std::mem::take(&mut is_first) {
                                continue;
                            }
                            self.told(fault)
                        }
                    }
                }
                Err(error) => error,
            };
            // A waiter outlasts its session, but a wait does not begin without one, unless others of the client wait already.
            let is_denied = matches!(fault, EngineError::Denied { .. });
            if !in_line || is_denied || request.wait.is_over(self.now()) {
                return Err(fault.into());
            }
            tracing::debug!(name = %request.name, %fault, "a place in the queue is gone: it is asked for anew");
            self.pause(&request).await?;
        }
    }

    /// By the recipe `sequential`: an entry in the queue, until nobody before it is in its way.
    async fn queue(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        in_line: &mut bool,
    ) -> Result<Granted, NotGot> {
        if matches!(request.wait, WaitUntil::Try) {
            // Whoever does not wait has nothing to write if the lock is taken.
            let seen = self.asked(request, link.see_now(lock)).await?;
            let is_in_its_way = |mode: Mode| !mode.compatible_with(request.mode);
            if seen.children.queue.entries().iter().any(|entry| is_in_its_way(entry.mode)) {
                return Err(NotGot::Ended(request.not_got()));
            }
        }
        let entry = self.address.names.entry(request.grant, request.mode);
        let _room = link.room(lock.len() + entry.len() + SEQUENCE);
        let (lock_of_it, details) = (lock.to_owned(), self.details(request));
        let entering = |given_up| (**link).clone().enter(lock_of_it, entry, details, given_up);
        let Some((node, seen)) = self.settled(link, request, *in_line, entering).await? else {
            unreachable!("an entry is made, whoever else is there")
        };
        *in_line = true;
        let answer = self.until_first(link, request, lock, &node, seen).await;
        if answer.is_err() {
            self.leave(link, node.path, request.grant).await;
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
    ) -> Result<Granted, NotGot> {
        loop {
            let seen = self.seen(link, request, lock, seen.take()).await?;
            let queue = &seen.children.queue;
            // By its own node: one of an earlier session may still be there, which is not ours any more.
            let own = node.path.rsplit_once('/').map_or("", |(_, own)| own);
            let Some(place) = queue.place(own) else {
                return Err(NotGot::Gone(Fault::Said(Error::NoNode)));
            };
            let Some(before) = queue.waits_for(place) else {
                return self.grant(link, request, lock, node, &seen).await;
            };
            self.until_gone(link, request, &format!("{lock}/{}", before.node)).await?;
        }
    }

    /// What was seen of the lock, or is now.
    async fn seen(
        &self,
        link: &Link,
        request: &AcquireRequest,
        lock: &str,
        mut seen: Option<Seen>,
    ) -> Result<Seen, NotGot> {
        loop {
            match seen {
                Some(seen) => return Ok(seen),
                None => seen = self.heard(request, link.see(lock)).await?,
            }
        }
    }

    /// By the recipe `simple`: one node, which only one can make.
    async fn take(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        in_line: &mut bool,
    ) -> Result<Granted, NotGot> {
        let _room = link.room(lock.len() + SIMPLE.len() + 1);
        let mut turn = None;
        // Who comes to others of its session does not ask before them.
        let comes_to_others =
            !request.wait.is_over(self.now()) && link.turns().anybody_waits_for(&request.name);
        let mut in_the_way = comes_to_others.then(|| SIMPLE.to_owned());
        loop {
            if let Some(node) = in_the_way {
                *in_line = true;
                if turn.is_none() {
                    // Without one if the session has ended, which shows in the next request.
                    turn = self.waited(link, request, link.turns().turn(&request.name)).await?;
                }
                self.until_gone(link, request, &format!("{lock}/{node}")).await?;
            }
            let (lock_of_it, details) = (lock.to_owned(), self.details(request));
            let was_busy = *in_line;
            let taking =
                |given_up| (**link).clone().take(lock_of_it, request.grant, details, was_busy, given_up);
            let taken = self.settled(link, request, *in_line, taking).await?;
            in_the_way = match taken {
                None => Some(SIMPLE.to_owned()),
                Some((node, seen)) => match self.alone(link, request, lock, &node, seen).await {
                    Ok(Ok(granted)) => return Ok(granted),
                    not_granted => {
                        self.leave(link, node.path, request.grant).await;
                        not_granted?.err()
                    }
                },
            };
        }
    }

    /// Who came by the queue goes first: whichever of the two was later sees the other. What is in the way, if something is.
    async fn alone(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        node: &Node,
        seen: Option<Seen>,
    ) -> Result<Result<Granted, String>, NotGot> {
        let seen = self.seen(link, request, lock, seen).await?;
        let queued = seen.children.queue.entries().iter().filter(|entry| entry.node != SIMPLE);
        let queued = queued.filter(|entry| entry.mode != Mode::Nl).max_by_key(|entry| entry.order);
        match queued {
            Some(queued) => Ok(Err(queued.node.clone())),
            None => Ok(Ok(self.grant(link, request, lock, node, &seen).await?)),
        }
    }

    /// Waits until a node is gone or the session has ended, and the queue is to be looked at again.
    ///
    /// No waiter relies on its watch alone: about once in a session's timeout it looks whether the node is still there. That is one read,
    /// which the server that it is connected to answers by itself.
    async fn until_gone(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        node: &str,
    ) -> Result<(), NotGot> {
        if request.wait.is_over(self.now()) {
            return Err(NotGot::Ended(request.not_got()));
        }
        let Some(watcher) = self.heard(request, link.watch(node)).await?.flatten() else { return Ok(()) };
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

    /// Waits for something, for as long as the request may wait; nothing, if the session has ended before it came.
    async fn waited<T>(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        coming: impl Future<Output = T>,
    ) -> Result<Option<T>, NotGot> {
        let over = async {
            match request.wait {
                WaitUntil::Try => {}
                WaitUntil::At { at, .. } => self.context.clock.sleep_until(at).await,
                WaitUntil::Forever => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = request.cancel.cancelled() => Err(NotGot::Ended(request.not_got())),
            came = coming => Ok(Some(came)),
            () = link.session().ended().cancelled() => Ok(None),
            () = over => Err(NotGot::Ended(request.not_got())),
        }
    }

    /// The lock is this request's: what is to be done before it is told so.
    async fn grant(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        lock: &str,
        node: &Node,
        seen: &Seen,
    ) -> Result<Granted, NotGot> {
        let value = match &seen.value {
            Some(kept) => kept.value(|grant| seen.children.queue.has(grant)),
            None => Value::default(),
        };
        let mut marked = None;
        if request.mode.may_write() && seen.value.is_some() {
            let mark = KeptValue::marked(value.clone(), request.grant);
            loop {
                match self.heard(request, self.write_value(link, &node.path, lock, &mark)).await {
                    Ok(Some(())) => break,
                    Ok(None) => {}
                    Err(error) => {
                        // Whether it was done or not, the mark goes together with what it stands for.
                        let _ = self.answer(link.free(&node.path, Some(&mark.unmarked()))).await;
                        return Err(error);
                    }
                }
            }
            marked = Some(mark);
        }
        while self.heard(request, link.freshen()).await?.is_none() {}
        let (path, events) = (node.path.clone(), request.events.clone());
        let term = link.session().keep(request.grant, path, node.token, marked, events);
        let term = term.ok_or(NotGot::Gone(Fault::Said(Error::SessionExpired)))?;
        Ok(Granted::new(Some(node.token), term).with_value(value))
    }

    /// Writes the lock's value, if what stands for the grant is still there.
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

    /// Waits until it is known what became of a request that makes something. If nobody waits for that any more, what it makes is taken
    /// away again.
    async fn settled<F>(
        &self,
        link: &InUse<Link>,
        request: &AcquireRequest,
        in_line: bool,
        make: impl FnOnce(Arc<AtomicBool>) -> F,
    ) -> Result<Option<(Node, Option<Seen>)>, NotGot>
    where
        F: Future<Output = Made> + Send + 'static,
    {
        let (sent_at, limit) = (self.now(), self.address.limit);
        let given_up = Arc::new(AtomicBool::new(false));
        let mut making = Box::pin(make(given_up.clone()));
        let why = tokio::select! {
            biased;
            answer = &mut making => {
                let answer = answer.map_err(|error| self.not_got(error.into()))?;
                link.proven(sent_at);
                return Ok(answer);
            }
            () = request.cancel.cancelled() => NotGot::Ended(request.not_got()),
            // Who had a place before goes on, and asks for another one.
            () = self.context.clock.sleep_until(sent_at + limit) => match Fault::Silent(limit) {
                fault if in_line => NotGot::Gone(fault),
                fault => NotGot::Ended(self.told(fault).into()),
            }
        };
        given_up.store(true, Ordering::Relaxed);
        let (link, grant) = ((**link).clone(), request.grant);
        let undo = async move {
            if let Ok(Some((node, _))) = making.await {
                link.free_for_sure(node.path, grant).await;
            }
        };
        self.undoing.spawn_on(undo, &self.context.runtime);
        Err(why)
    }

    /// Takes away what stands for a request, now if the servers answer.
    async fn leave(&self, link: &InUse<Link>, node: String, grant: GrantId) {
        if is_simple(&node) {
            // It may have been tried before, and be another's by now: that is looked at first.
            let freeing = (**link).clone().free_for_sure(node, grant);
            let freeing = self.undoing.spawn_on(freeing, &self.context.runtime);
            let freed = async {
                // What went wrong in there goes with the session.
                let _ = freeing.await;
                Ok(())
            };
            let _ = self.answer(freed).await;
            return;
        }
        let freed = within(&self.context, self.address.limit, link.free(&node, None)).await;
        if freed.is_err_and(|fault| fault.what() == What::AnswerLost) {
            self.undoing.spawn_on((**link).clone().free_for_sure(node, grant), &self.context.runtime);
        }
    }

    /// The answer to a request that does nothing if it is not answered.
    async fn asked<T>(
        &self,
        request: &AcquireRequest,
        asking: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, NotGot> {
        tokio::select! {
            biased;
            () = request.cancel.cancelled() => Err(NotGot::Ended(request.not_got())),
            answer = within(&self.context, self.address.limit, asking) => {
                answer.map_err(|fault| self.not_got(fault))
            }
        }
    }

    /// The same of one who waits, who outlasts a silence: nothing, if it is to ask again.
    async fn heard<T>(
        &self,
        request: &AcquireRequest,
        asking: impl Future<Output = Result<T, Fault>>,
    ) -> Result<Option<T>, NotGot> {
        let asking = async {
            match within(&self.context, self.address.limit, asking).await {
                Err(fault) if fault.what() == What::AnswerLost && !request.wait.is_over(self.now()) => {
                    Ok(None)
                }
                answer => answer.map(Some),
            }
        };
        let heard = self.asked(request, asking).await?;
        if heard.is_none() {
            self.pause(request).await.map_err(NotGot::Ended)?;
        }
        Ok(heard)
    }

    async fn pause(&self, request: &AcquireRequest) -> Result<(), AcquireError> {
        let until = request.wait.or_at(self.now() + random::jittered(SILENT_PAUSE));
        tokio::select! {
            biased;
            () = request.cancel.cancelled() => Err(request.not_got()),
            () = self.context.clock.sleep_until(until) => Ok(()),
        }
    }

    fn details(&self, request: &AcquireRequest) -> String {
        let details = self.ourselves.details(request, self.context.clock.wall(), None);
        format!("{}/{} {details}", request.grant, request.owner)
    }

    fn not_got(&self, fault: Fault) -> NotGot {
        match fault.what() {
            What::SessionOver => NotGot::Gone(fault),
            What::AnswerLost | What::Refused => NotGot::Ended(self.told(fault).into()),
        }
    }
}
