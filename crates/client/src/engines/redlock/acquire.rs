//! How a majority is got, and given back.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, RedisWrite, Value as Answer};
use tenure_table::{FencingToken, GrantId};

use super::cleaner::Asked;
use super::instances::{Tally, Vote};
use super::round::Round;
use super::{Holding, RedlockEngine, Sent};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted};
use crate::engines::redis::entry::{NONE, text_of};
use crate::engines::redis::fault::{Fault, What};
use crate::engines::redis::link::{Answered, Link, Request};
use crate::engines::redis::scripts::{self, Call};
use crate::engines::redis::way::Way;
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
        let text = text_of(request, value, NONE, details);
        let (sent_at, limit) = (self.context.clock.now(), self.limit(request.ttl));
        // So that a release can go behind it.
        let ways: Vec<_> = self.instances.links().iter().map(Link::present_way).collect();
        let (tally, late) = self.ask_for_key(&ways, limit, self.ballot(key, value, text, request.ttl)).await;
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
            sent: ways.iter().map(|_| Sent::default()).collect(),
        });
        for (instance, _) in silent.into_iter().filter(|(_, what)| *what == What::NoAnswer) {
            self.is_unheard(instance, key, &holding, request.ttl);
        }
        self.follow_up(late, key, &holding, request.ttl);
        // Behind what was asked, whoever did that.
        let behind = move |instance: usize, link: &Arc<Link>| {
            let way = &ways[instance];
            if link.has(way) { way.clone() } else { link.present_way() }
        };
        match &result {
            Ok(_) => drop(self.held().insert(request.grant, holding)),
            Err(NotGot::Busy) => {
                self.release_on_all(&holding, behind, key, request.ttl, Tally::is_answered).await;
            }
            Err(NotGot::Failed(_)) => {
                // Nobody who is to be told that is kept waiting for those who do not answer.
                let (engine, key, ttl) = (self.clone(), key.to_owned(), request.ttl);
                self.instances.in_background(async move {
                    engine.release_on_all(&holding, behind, &key, ttl, Tally::is_answered).await;
                });
            }
        }
        result
    }

    fn ballot(&self, key: &str, value: GrantId, text: impl Display, ttl: Ttl) -> Arc<Ballot> {
        let ttl_ms = milliseconds(ttl);
        Arc::new(if self.address.fencing {
            let mut script = Call::new(&scripts::REDLOCK_VOTE, key);
            script.arg(value.to_string()).arg(text.to_string()).arg(ttl_ms);
            Ballot::Counting(script)
        } else {
            let mut set = Cmd::with_capacity(6, key.len() + 256);
            set.arg("SET").arg(key);
            set.write_arg_fmt(text);
            set.arg("NX").arg("PX").arg(ttl_ms);
            Ballot::Plain(set)
        })
    }

    async fn ask_for_key(
        &self,
        ways: &[Way],
        limit: Duration,
        ballot: Arc<Ballot>,
    ) -> (Tally, Round<impl Future<Output = Result<Vote, Fault>> + Send + use<>>) {
        let ask = |instance: usize, link: Arc<Link>| {
            let (way, ballot) = (ways[instance].clone(), ballot.clone());
            async move {
                let answer = link.ask(&way, ballot.request()).await?.answer;
                ballot.vote(&answer).ok_or_else(|| link.is_confused(&answer))
            }
        };
        self.instances.ask_until(limit, Tally::is_decided, ask).await
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
        let mut script = Call::new(&scripts::REDLOCK_FENCE, key);
        script.arg(value.to_string()).arg(token);
        let script = Arc::new(script);
        let ask = |_, link: Arc<Link>| {
            let (way, script) = (link.present_way(), script.clone());
            async move {
                let accepted: u8 = link.ask(&way, Request::Script(&script)).await?.answer;
                Ok(if accepted == 1 { Vote::Yes(0) } else { Vote::No })
            }
        };
        let (tally, late) = self.instances.ask_until(limit, Tally::is_decided, ask).await;
        // Those who come late are asked all the same: the more of them know it, the more may forget it.
        self.instances.finish(late, drop);
        if tally.has_majority() {
            Ok(())
        } else if tally.is_unreachable() {
            Err(NotGot::Failed(tally.unreachable()))
        } else {
            Err(NotGot::Busy)
        }
    }

    /// Hears those who did not answer in time.
    fn follow_up<F>(self: &Arc<Self>, late: Round<F>, key: &str, holding: &Arc<Holding>, ttl: Ttl)
    where
        F: Future<Output = Result<Vote, Fault>> + Send + 'static,
    {
        if late.is_over() {
            return;
        }
        let (engine, key, holding) = (self.clone(), key.to_owned(), holding.clone());
        self.instances.finish(late, move |(instance, answer)| match answer {
            Ok(Vote::Yes(_)) => engine.says_yes_late(instance, &key, &holding, ttl),
            Err(fault) if fault.what == What::NoAnswer => engine.is_unheard(instance, &key, &holding, ttl),
            Ok(Vote::No | Vote::Broken) | Err(_) => {}
        });
    }

    /// That is as it should be while it is held, and also if the release came behind it.
    fn says_yes_late(&self, instance: usize, key: &str, holding: &Holding, ttl: Ttl) {
        let sent = &holding.sent[instance];
        sent.late_yes.store(true, Ordering::SeqCst);
        if sent.was_free.load(Ordering::SeqCst) {
            self.instances.clean(instance, key, holding.value, ttl, Asked::Answered);
        }
    }

    fn is_unheard(&self, instance: usize, key: &str, holding: &Holding, ttl: Ttl) {
        holding.sent[instance].unheard.store(true, Ordering::SeqCst);
        if holding.released.load(Ordering::SeqCst) {
            self.instances.clean(instance, key, holding.value, ttl, Asked::Unanswered);
        }
    }

    /// An instance that was to release the key did not have it: not any more, or not yet.
    fn was_free(&self, instance: usize, key: &str, holding: &Holding, ttl: Ttl) {
        let sent = &holding.sent[instance];
        sent.was_free.store(true, Ordering::SeqCst);
        let request = match (sent.late_yes.load(Ordering::SeqCst), sent.unheard.load(Ordering::SeqCst)) {
            (_, true) => Asked::Unanswered,
            (true, false) => Asked::Answered,
            (false, false) => return,
        };
        self.instances.clean(instance, key, holding.value, ttl, request);
    }

    /// Releases on all instances, whatever they said before, on these ways. Those who do not hear it go on being asked.
    pub(super) async fn release_on_all(
        self: &Arc<Self>,
        holding: &Arc<Holding>,
        way: impl Fn(usize, &Arc<Link>) -> Way,
        key: &str,
        ttl: Ttl,
        enough: impl Fn(&Tally) -> bool,
    ) -> Tally {
        let (value, key) = (holding.value, Arc::<str>::from(key));
        let script = Arc::new(scripts::release(&key, value));
        let ask = |instance: usize, link: Arc<Link>| {
            let way = way(instance, &link);
            let (engine, holding, key, script) = (self.clone(), holding.clone(), key.clone(), script.clone());
            async move {
                let answer = release_once(&link, &way, &script).await;
                if let Ok(Vote::No) = answer {
                    engine.was_free(instance, &key, &holding, ttl);
                }
                answer
            }
        };
        let (tally, late) = self.instances.ask_until(self.limit(ttl), enough, ask).await;
        // What was asked of who is silent may be under way as well.
        for (instance, _) in &tally.silent {
            self.instances.clean(*instance, &key, value, ttl, Asked::Unanswered);
        }
        let (engine, key) = (self.clone(), key.clone());
        self.instances.finish(late, move |(instance, answer)| {
            if answer.is_err() {
                engine.instances.clean(instance, &key, value, ttl, Asked::Unanswered);
            }
        });
        tally
    }
}

/// What is asked of an instance that is to vote.
enum Ballot {
    Plain(Cmd),
    /// To which it answers with its counter.
    Counting(Call),
}

impl Ballot {
    fn request(&self) -> Request<'_> {
        match self {
            Self::Plain(set) => Request::Command(set),
            Self::Counting(script) => Request::Script(script),
        }
    }

    /// What the answer says.
    fn vote(&self, answer: &Answer) -> Option<Vote> {
        match (self, answer) {
            (Self::Plain(_), Answer::Okay) => Some(Vote::Yes(0)),
            (Self::Plain(_), Answer::Nil) => Some(Vote::No),
            (Self::Counting(_), Answer::Int(counter)) => {
                Some(u64::try_from(*counter).map_or(Vote::No, Vote::Yes))
            }
            _ => None,
        }
    }
}

/// Yes if it was held there.
pub(super) async fn release_once(link: &Arc<Link>, way: &Way, script: &Call) -> Result<Vote, Fault> {
    match link.ask(way, Request::Script(script)).await {
        Ok(Answered { answer: Answer::Int(1), .. }) => Ok(Vote::Yes(0)),
        Ok(_) => Ok(Vote::No),
        Err(fault) if fault.what == What::WrongType => Ok(Vote::No),
        Err(fault) => Err(fault),
    }
}
