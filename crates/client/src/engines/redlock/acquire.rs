//! How a majority is got, and given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tenure_table::{FencingToken, GrantId};

use super::cleaner::Request;
use super::instances::{Late, Tally, Vote};
use super::{Holding, RedlockEngine};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted};
use crate::engines::redis::entry::{NONE, text_of};
use crate::engines::redis::fault::{Fault, What};
use crate::engines::redis::link::{Link, Repeat, Way};
use crate::engines::redis::scripts::{self, Call};
use crate::engines::redis::{milliseconds, term};
use crate::error::{AcquireError, EngineError, RenewError};
use crate::lease::Ttl;
use crate::random;

/// Around which the random pauses lie after which a lock is tried again: ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why a try did not get the lock. What it may have got was given back.
enum NotGot {
    /// Others hold it, or the vote was split, or it took too long.
    Busy,
    Failed(EngineError),
}

impl RedlockEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let key = self.key(&request.name)?;
        let details =
            self.ourselves.details(&request, self.context.clock.wall(), Some(request.grant)).to_string();
        if let Some(granted) = self.already_held(&key, &request).await? {
            return Ok(granted);
        }
        let mut pause = FIRST_PAUSE;
        let mut silent_since: Option<BootTime> = None;
        let clock = &self.context.clock;
        loop {
            match self.try_once(&key, &details, &request).await {
                Ok(granted) => return Ok(granted),
                Err(NotGot::Busy) => silent_since = None,
                Err(NotGot::Failed(error)) => {
                    // A wait outlasts a moment without a majority, but not more.
                    let since = *silent_since.get_or_insert(clock.now());
                    let is_silence = matches!(error, EngineError::Unreachable { .. });
                    let goes_on = is_silence && clock.now().since(since) < self.look_limit();
                    if !goes_on || request.wait.is_over(clock.now()) {
                        return Err(error.into());
                    }
                }
            }
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
        let text = text_of(request, value, NONE, details).to_string();
        let (sent_at, limit) = (self.context.clock.now(), self.limit(request.ttl));
        // On which it is sent, so that a release can go behind it.
        let ways: Vec<Way> = self.instances.links().iter().map(Link::present_way).collect();
        let (tally, late) = self.ask_for_key(key, value, &text, request.ttl, limit).await;
        let silent = tally.silent.clone();
        let result = if tally.has_majority() {
            self.confirm(key, value, request.ttl, sent_at, &tally).await
        } else if tally.is_unreachable() {
            Err(NotGot::Failed(tally.unreachable()))
        } else {
            Err(NotGot::Busy)
        };
        let holding = Arc::new(Holding {
            value,
            token: result.as_ref().ok().and_then(|granted| granted.token),
            released: AtomicBool::new(result.is_err()),
        });
        for (instance, _) in silent.into_iter().filter(|(_, what)| *what == What::NoAnswer) {
            self.follow_up_one(instance, key, &holding, request.ttl, Request::Unanswered);
        }
        self.follow_up(late, key, &holding, request.ttl);
        match result {
            Ok(granted) => {
                self.held().insert(request.grant, holding);
                Ok(granted)
            }
            Err(NotGot::Busy) => {
                self.release_behind(&ways, key, value, request.ttl).await;
                Err(NotGot::Busy)
            }
            Err(NotGot::Failed(error)) => {
                // Nobody who is to be told that is kept waiting for those who do not answer.
                let (engine, key, ttl) = (self.clone(), key.to_owned(), request.ttl);
                self.instances
                    .in_background(async move { engine.release_behind(&ways, &key, value, ttl).await });
                Err(NotGot::Failed(error))
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
        let ask = |_, link: Arc<Link>| {
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
        let ask = |_, link: Arc<Link>| {
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

    /// Hears those who did not answer in time: if one says yes after the release, or says nothing, it is released there.
    fn follow_up(self: &Arc<Self>, mut late: Late, key: &str, holding: &Arc<Holding>, ttl: Ttl) {
        if late.is_empty() {
            return;
        }
        let (engine, key, holding) = (self.clone(), key.to_owned(), holding.clone());
        self.instances.in_background(async move {
            while let Some((instance, answer)) = late.next().await {
                let request = match answer {
                    Ok(Vote::Yes(_)) => Request::Answered,
                    Err(fault) if fault.what == What::NoAnswer => Request::Unanswered,
                    Ok(Vote::No | Vote::Broken) | Err(_) => continue,
                };
                engine.follow_up_one(instance, &key, &holding, ttl, request);
            }
        });
    }

    /// While it is held, the key is where it should be, if it is there.
    fn follow_up_one(&self, instance: usize, key: &str, holding: &Holding, ttl: Ttl, request: Request) {
        if holding.released.load(Ordering::SeqCst) {
            self.instances.clean(instance, key, holding.value, ttl, request);
        }
    }

    /// Releases what a try may have got, behind its requests. Those who do not hear it go on being asked.
    async fn release_behind(self: &Arc<Self>, ways: &[Way], key: &str, value: GrantId, ttl: Ttl) {
        let limit = self.limit(ttl);
        let ask = |instance: usize, link: Arc<Link>| {
            let (key, way) = (key.to_owned(), ways[instance].clone());
            async move {
                let mut script = Call::new(&scripts::RELEASE, &key);
                script.arg(value.to_string());
                match link.script_behind::<u8>(&way, limit, &script).await {
                    Some(_) => Ok(Vote::Yes(0)),
                    None => release_once(&link, &key, value, limit).await,
                }
            }
        };
        let (tally, late) = self.instances.ask_until(Tally::is_answered, ask).await;
        self.clean_up(&tally, late, key, value, ttl);
    }

    /// Releases on all instances, whatever they said before; resolves when a majority said that it was held there, or cannot. The others go
    /// on being asked.
    pub(super) async fn release_on_all(self: &Arc<Self>, key: &str, value: GrantId, ttl: Ttl) -> Tally {
        let limit = self.limit(ttl);
        let ask = |_, link: Arc<Link>| {
            let key = key.to_owned();
            async move { release_once(&link, &key, value, limit).await }
        };
        let (tally, late) = self.instances.ask_until(Tally::is_settled, ask).await;
        self.clean_up(&tally, late, key, value, ttl);
        tally
    }

    fn clean_up(self: &Arc<Self>, tally: &Tally, mut late: Late, key: &str, value: GrantId, ttl: Ttl) {
        for (instance, _) in &tally.silent {
            self.instances.clean(*instance, key, value, ttl, Request::Answered);
        }
        if late.is_empty() {
            return;
        }
        let (engine, key) = (self.clone(), key.to_owned());
        self.instances.in_background(async move {
            while let Some((instance, answer)) = late.next().await {
                if answer.is_err() {
                    engine.instances.clean(instance, &key, value, ttl, Request::Answered);
                }
            }
        });
    }
}

/// Yes if it was held there.
pub(super) async fn release_once(
    link: &Arc<Link>,
    key: &str,
    value: GrantId,
    limit: Duration,
) -> Result<Vote, Fault> {
    let mut script = Call::new(&scripts::RELEASE, key);
    script.arg(value.to_string());
    match link.script::<u8>(limit, Repeat::Harmless, &script).await {
        Ok(1) => Ok(Vote::Yes(0)),
        Ok(_) => Ok(Vote::No),
        Err(fault) if fault.what == What::WrongType => Ok(Vote::No),
        Err(fault) => Err(fault),
    }
}
