//! How a majority is got, and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;

use super::instances::{Late, Tally, Vote};
use super::{Holding, RedlockEngine};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted};
use crate::engines::redis::entry::text_of;
use crate::engines::redis::fault::{Fault, What};
use crate::engines::redis::link::{Link, Repeat};
use crate::engines::redis::scripts::{self, Call};
use crate::engines::redis::{milliseconds, term};
use crate::error::{AcquireError, EngineError, RenewError};
use crate::ids::GrantId;
use crate::lease::Ttl;
use crate::random;
use crate::token::FencingToken;

/// Around which the random pauses lie after which a lock is tried again: ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Why a try did not get the lock. What it may have got was given back.
enum NotGot {
    /// Others hold it, or the vote was split, or it took too long.
    Busy,
    Failed(EngineError),
}

impl RedlockEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let key = self.key(&request.name)?;
        let details = self.ourselves.details(&request, self.context.clock.wall(), Some(request.grant));
        if let Some(granted) = self.already_held(&key, &request).await? {
            return Ok(granted);
        }
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_once(&key, &details, &request).await {
                Ok(granted) => return Ok(granted),
                Err(NotGot::Failed(error)) => return Err(error.into()),
                Err(NotGot::Busy) => {}
            }
            let clock = &self.context.clock;
            if request.wait.is_over(clock.now()) || request.cancel.is_cancelled() {
                return Err(request.not_got());
            }
            let again = request.wait.or_at(clock.now() + random::jittered(pause));
            tokio::select! {
                () = request.cancel.cancelled() => return Err(request.not_got()),
                () = clock.sleep_until(again) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The same request once more: the grant that it has.
    async fn already_held(
        &self,
        key: &str,
        request: &AcquireRequest,
    ) -> Result<Option<Granted>, AcquireError> {
        let Some(holding) = self.holding(request.grant) else { return Ok(None) };
        match self.extend(key, holding.value, request.ttl).await {
            Ok(term) => Ok(Some(Granted::new(holding.token, term))),
            Err(RenewError::Lost(_)) => Ok(None),
            Err(RenewError::Engine(error)) => Err(error.into()),
        }
    }

    async fn try_once(
        self: &Arc<Self>,
        key: &str,
        details: &str,
        request: &AcquireRequest,
    ) -> Result<Granted, NotGot> {
        let value = GrantId::random();
        let text = text_of(request, value, details);
        let sent_at = self.context.clock.now();
        let limit = self.limit(request.ttl);
        let (tally, late) = self.ask_for_key(key, value, &text, request.ttl, limit).await;
        let result = if tally.has_majority() {
            self.confirm(key, value, request.ttl, sent_at, &tally).await
        } else if tally.is_unreachable() {
            Err(NotGot::Failed(tally.unreachable()))
        } else {
            Err(NotGot::Busy)
        };
        match result {
            Ok(granted) => {
                self.follow_up(late, key, value, request, granted.token);
                Ok(granted)
            }
            Err(not_got) => {
                // What was not sent yet is not sent any more; what was, is overtaken by nothing on its way.
                drop(late);
                self.release_on_all(key, value, request.ttl).await;
                Err(not_got)
            }
        }
    }

    async fn ask_for_key(
        &self,
        key: &str,
        value: GrantId,
        text: &str,
        ttl: Ttl,
        limit: Duration,
    ) -> (Tally, Late) {
        let fencing = self.address.fencing;
        let ask = |link: Arc<Link>| {
            let (key, text, id) = (key.to_owned(), text.to_owned(), value.to_string());
            let ttl_ms = milliseconds(ttl);
            async move {
                if fencing {
                    let mut script = Call::new(&scripts::REDLOCK_VOTE, &key);
                    script.arg(id).arg(text).arg(ttl_ms);
                    let counter: i64 = link.script(limit, Repeat::Harmless, &script).await?;
                    return Ok(u64::try_from(counter).map_or(Vote::No, Vote::Yes));
                }
                let mut set = redis::cmd("SET");
                set.arg(key).arg(text).arg("NX").arg("PX").arg(ttl_ms);
                let done: bool = link.command(limit, &set).await?;
                Ok(if done { Vote::Yes(0) } else { Vote::No })
            }
        };
        self.instances.ask_until(Tally::is_decided, ask).await
    }

    /// A majority said yes: agrees on a token, if it is to have one, and sees whether there is time left.
    async fn confirm(
        &self,
        key: &str,
        value: GrantId,
        ttl: Ttl,
        sent_at: BootTime,
        tally: &Tally,
    ) -> Result<Granted, NotGot> {
        let mut token = None;
        if self.address.fencing {
            // One more than any of them has seen.
            let number = tally.yes.iter().max().map_or(1, |most| most + 1);
            self.agree_on(key, value, number, self.limit(ttl)).await?;
            token = Some(FencingToken::new(number));
        }
        let term = term(sent_at, ttl);
        if term.deadline().is_some_and(|deadline| deadline <= self.context.clock.now()) {
            return Err(NotGot::Busy);
        }
        Ok(Granted::new(token, term))
    }

    /// The second round: a majority that still holds the key promises not to fall behind this token.
    async fn agree_on(&self, key: &str, value: GrantId, token: u64, limit: Duration) -> Result<(), NotGot> {
        let ask = |link: Arc<Link>| {
            let (key, id) = (key.to_owned(), value.to_string());
            async move {
                let mut script = Call::new(&scripts::REDLOCK_FENCE, &key);
                script.arg(id).arg(token);
                let accepted: u8 = link.script(limit, Repeat::Harmless, &script).await?;
                Ok(if accepted == 1 { Vote::Yes(0) } else { Vote::No })
            }
        };
        let (tally, late) = self.instances.ask_until(Tally::is_decided, ask).await;
        // Those who come late are asked all the same: the more of them know it, the more may forget it.
        self.instances.finish(late);
        if tally.has_majority() {
            Ok(())
        } else if tally.is_unreachable() {
            Err(NotGot::Failed(tally.unreachable()))
        } else {
            Err(NotGot::Busy)
        }
    }

    /// Notes down what is held, and hears those who did not answer in time: if one says yes after the release, it is released there.
    fn follow_up(
        self: &Arc<Self>,
        mut late: Late,
        key: &str,
        value: GrantId,
        request: &AcquireRequest,
        token: Option<FencingToken>,
    ) {
        let holding = Arc::new(Holding { value, token, released: AtomicBool::new(false) });
        self.held().insert(request.grant, holding.clone());
        if late.is_empty() {
            return;
        }
        let (engine, key, ttl) = (self.clone(), key.to_owned(), request.ttl);
        self.instances.in_background(async move {
            while let Some((link, answer)) = late.next().await {
                if !matches!(answer, Ok(Vote::No)) && holding.released.load(Ordering::SeqCst) {
                    engine.release_there(link, key.clone(), value, ttl);
                }
            }
        });
    }

    /// Releases on all instances, whatever they said before; resolves when a majority has answered. The others go on being asked.
    pub(super) async fn release_on_all(self: &Arc<Self>, key: &str, value: GrantId, ttl: Ttl) -> Tally {
        let limit = self.limit(ttl);
        let ask = |link: Arc<Link>| {
            let key = key.to_owned();
            async move { release_once(&link, &key, value, limit).await }
        };
        let (tally, mut late) = self.instances.ask_until(Tally::is_answered, ask).await;
        for link in &tally.silent {
            self.release_there(link.clone(), key.to_owned(), value, ttl);
        }
        if !late.is_empty() {
            let (engine, key) = (self.clone(), key.to_owned());
            self.instances.in_background(async move {
                while let Some((link, answer)) = late.next().await {
                    if answer.is_err() {
                        engine.release_there(link, key.clone(), value, ttl);
                    }
                }
            });
        }
        tally
    }

    /// Goes on trying where no answer came, until there is nothing left to release.
    fn release_there(self: &Arc<Self>, link: Arc<Link>, key: String, value: GrantId, ttl: Ttl) {
        const FIRST_PAUSE: Duration = Duration::from_millis(50);
        const LONGEST_PAUSE: Duration = Duration::from_secs(2);
        let (clock, limit) = (self.context.clock.clone(), self.limit(ttl));
        let until = clock.now() + ttl.get() + limit;
        self.instances.in_background(async move {
            let mut pause = FIRST_PAUSE;
            while release_once(&link, &key, value, limit).await.is_err() && clock.now() < until {
                clock.sleep_until(clock.now() + random::jittered(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
    }
}

/// Yes if it was held there.
async fn release_once(link: &Arc<Link>, key: &str, value: GrantId, limit: Duration) -> Result<Vote, Fault> {
    let mut script = Call::new(&scripts::RELEASE, key);
    script.arg(value.to_string());
    match link.freeing(limit, &script).await {
        Ok(true) => Ok(Vote::Yes(0)),
        Ok(false) => Ok(Vote::No),
        Err(fault) if fault.what == What::WrongType => Ok(Vote::No),
        Err(fault) => Err(fault),
    }
}
