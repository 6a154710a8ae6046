//! Acquiring a majority of votes, and releasing it.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, RedisWrite, Value as Answer};
use tenure_table::{FencingToken, GrantId};
use tokio::sync::Mutex as AsyncMutex;

use super::cleaner::RequestStatus;
use super::round::Round;
use super::tally::{Progress, Tally, Vote};
use super::{Attempt, KeyRequest, Outcome, RedlockEngine, RequestState};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted};
use crate::engines::redis::connection::Connection;
use crate::engines::redis::entry::{NONE, text_of};
use crate::engines::redis::fault::{Fault, What};
use crate::engines::redis::link::{Answered, Link, Request};
use crate::engines::redis::scripts::{self, Call};
use crate::engines::redis::{milliseconds, term};
use crate::error::{AcquireError, EngineError, RenewError};
use crate::lease::Ttl;
use crate::random;

/// The shortest and the longest mean pause between two attempts. The mean doubles after each attempt, and each pause is random around it.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The longest mean pause after a slow attempt. The mean is the duration of the attempt, up to this bound. Contending clients then keep no
/// votes for most of the time, so that one of them can win.
const LONGEST_TRY: Duration = Duration::from_secs(1);

/// Why an attempt did not get the lock. Its votes are released.
enum TryError {
    /// Another client holds the lock, or the vote was split, or the attempt took too long.
    Busy,
    Failed(EngineError),
}

impl From<Tally> for TryError {
    fn from(tally: Tally) -> Self {
        if tally.is_unreachable() { Self::Failed(tally.unreachable()) } else { Self::Busy }
    }
}

impl RedlockEngine {
    pub(super) async fn acquire_lock(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> Result<Granted, AcquireError> {
        let key = self.key(&request.name)?;
        let details =
            self.process.details(&request, self.context.clock.wall(), Some(request.grant)).to_string();
        if let Some(granted) = self.already_held(&key, &request).await? {
            return Ok(granted);
        }
        let mut pause = FIRST_PAUSE;
        let clock = &self.context.clock;
        loop {
            let began = clock.now();
            match self.try_once(&key, &details, &request).await {
                Ok(granted) => return Ok(granted),
                Err(TryError::Busy) => {}
                Err(TryError::Failed(error)) => return Err(error.into()),
            }
            let now = clock.now();
            if !request.waits() {
                return Err(request.not_granted());
            }
            let around = now.since(began).min(LONGEST_TRY).max(pause);
            let again = now + random::jittered(around);
            request.woken_before(&**clock, again, std::future::pending::<()>()).await?;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the grant of a repeated request.
    async fn already_held(
        &self,
        key: &str,
        request: &AcquireRequest,
    ) -> Result<Option<Granted>, AcquireError> {
        let Some(attempt) = self.attempt(request.grant) else { return Ok(None) };
        match self.renew_key(key, attempt.value, request.ttl).await {
            Ok(term) => Ok(Some(Granted::new(attempt.token, term))),
            Err(RenewError::Lost(_)) => Ok(None),
            Err(RenewError::Engine(error)) => Err(error.into()),
        }
    }

    async fn try_once(
        self: &Arc<Self>,
        key: &str,
        details: &str,
        request: &AcquireRequest,
    ) -> Result<Granted, TryError> {
        let value = random::grant_id();
        let text = text_of(request, value, NONE, details);
        let (sent_at, limit) = (self.context.clock.now(), self.limit(request.ttl));
        let connections: Vec<_> = self.instances.links().iter().map(Link::current_connection).collect();
        let (tally, late) =
            self.request_votes(&connections, limit, self.ballot(key, value, text, request.ttl)).await;
        let unanswered: Vec<_> = tally.unanswered().collect();
        let result = if tally.has_majority() {
            self.confirm(key, value, request.ttl, sent_at, &tally).await
        } else {
            Err(tally.into())
        };
        let requests = connections.into_iter().enumerate().map(|(instance, connection)| {
            let is_awaited = late.awaited().any(|awaited| awaited == instance);
            let outcome = if is_awaited { Outcome::Awaited } else { Outcome::Answered };
            KeyRequest { connection, state: Mutex::new(RequestState { outcome, was_free: false }) }
        });
        let attempt = Arc::new(Attempt {
            value,
            token: result.as_ref().ok().and_then(|granted| granted.token),
            released: AtomicBool::new(result.is_err()),
            starting: AsyncMutex::default(),
            requests: requests.collect(),
        });
        for instance in unanswered {
            self.record_unanswered(instance, key, &attempt, request.ttl);
        }
        self.follow_up(late, key, &attempt, request.ttl);
        match &result {
            Ok(_) => drop(self.held().insert(request.grant, attempt)),
            Err(TryError::Busy) => {
                self.release_on_all(&attempt, key, request.ttl, Tally::answered).await;
            }
            Err(TryError::Failed(_)) => {
                // The caller does not wait for instances that do not answer.
                let (engine, key, ttl) = (self.clone(), key.to_owned(), request.ttl);
                self.instances.in_background(async move {
                    engine.release_on_all(&attempt, &key, ttl, Tally::answered).await;
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

    async fn request_votes(
        &self,
        connections: &[Connection],
        limit: Duration,
        ballot: Arc<Ballot>,
    ) -> (Tally, Round<impl Future<Output = Result<Vote, Fault>> + Send + use<>>) {
        let ask = |instance: usize, link: Arc<Link>| {
            let (connection, ballot) = (connections[instance].clone(), ballot.clone());
            async move {
                let answer = link.ask(&connection, ballot.request()).await?.answer;
                ballot.vote(&answer).ok_or_else(|| link.is_confused(&answer))
            }
        };
        self.instances.ask_until(limit, Tally::vote, ask).await
    }

    /// Completes a majority: agrees on a token with `fencing`, and checks that the lease is not over.
    async fn confirm(
        &self,
        key: &str,
        value: GrantId,
        ttl: Ttl,
        sent_at: BootTime,
        tally: &Tally,
    ) -> Result<Granted, TryError> {
        let mut token = None;
        if self.address.fencing {
            // One more than the highest counter of the majority.
            let number = tally.yes.iter().max().map_or(1, |most| most + 1);
            self.agree_on_token(key, value, number, self.limit(ttl)).await?;
            token = Some(FencingToken::new(number));
        }
        let term = term(sent_at, ttl);
        if term.deadline().is_some_and(|deadline| deadline <= self.context.clock.now()) {
            return Err(TryError::Busy);
        }
        Ok(Granted::new(token, term))
    }

    /// Runs the second round: a majority that still has the key raises its counters to this token.
    async fn agree_on_token(
        &self,
        key: &str,
        value: GrantId,
        token: u64,
        limit: Duration,
    ) -> Result<(), TryError> {
        let mut script = Call::new(&scripts::REDLOCK_FENCE, key);
        script.arg(value.to_string()).arg(token);
        let script = Arc::new(script);
        let ask = |_, link: Arc<Link>| {
            let (connection, script) = (link.current_connection(), script.clone());
            async move {
                let accepted: u8 = link.ask(&connection, Request::Script(&script)).await?.answer;
                Ok(if accepted == 1 { Vote::Yes(0) } else { Vote::No })
            }
        };
        let (tally, late) = self.instances.ask_until(limit, Tally::vote, ask).await;
        // With more instances that know the token, more of them may lose it.
        self.instances.finish(late, drop);
        if tally.has_majority() { Ok(()) } else { Err(tally.into()) }
    }

    /// Handles late answers to the request for the key.
    fn follow_up<F>(self: &Arc<Self>, late: Round<F>, key: &str, attempt: &Arc<Attempt>, ttl: Ttl)
    where
        F: Future<Output = Result<Vote, Fault>> + Send + 'static,
    {
        if late.is_finished() {
            return;
        }
        let (engine, key, attempt) = (self.clone(), key.to_owned(), attempt.clone());
        self.instances.finish(late, move |(instance, answer)| match answer {
            Ok(Vote::Yes(_)) => engine.record_late_yes(instance, &key, &attempt, ttl),
            Err(fault) if fault.what == What::NoAnswer => {
                engine.record_unanswered(instance, &key, &attempt, ttl);
            }
            Ok(Vote::No | Vote::Broken) | Err(_) => {
                attempt.requests[instance].state().outcome = Outcome::Answered;
            }
        });
    }

    /// Records a late yes. Nothing is to be done while the lock is held, or if the release followed the request.
    fn record_late_yes(&self, instance: usize, key: &str, attempt: &Attempt, ttl: Ttl) {
        let mut state = attempt.requests[instance].state();
        state.outcome = Outcome::LateYes;
        if state.was_free {
            self.instances.clean(instance, key, attempt.value, ttl, RequestStatus::Answered);
        }
    }

    fn record_unanswered(&self, instance: usize, key: &str, attempt: &Attempt, ttl: Ttl) {
        attempt.requests[instance].state().outcome = Outcome::Unanswered;
        if attempt.released.load(Ordering::SeqCst) {
            self.instances.clean(instance, key, attempt.value, ttl, RequestStatus::Unanswered);
        }
    }

    /// Records that the release found no key: it has expired, or the request for it has not arrived yet.
    fn record_free(&self, instance: usize, key: &str, attempt: &Attempt, ttl: Ttl) {
        let mut state = attempt.requests[instance].state();
        state.was_free = true;
        let status = match state.outcome {
            Outcome::Unanswered => RequestStatus::Unanswered,
            Outcome::LateYes => RequestStatus::Answered,
            Outcome::Awaited | Outcome::Answered => return,
        };
        self.instances.clean(instance, key, attempt.value, ttl, status);
    }

    /// Releases on all instances, whatever they answered before. Instances that do not answer get the release again in the background.
    pub(super) async fn release_on_all(
        self: &Arc<Self>,
        attempt: &Arc<Attempt>,
        key: &str,
        ttl: Ttl,
        progress: impl Fn(&Tally) -> Progress,
    ) -> Tally {
        let (value, key) = (attempt.value, Arc::<str>::from(key));
        let release = Arc::new(release_command(&key, value));
        let ask = |instance: usize, link: Arc<Link>| {
            let (engine, attempt, key, release) =
                (self.clone(), attempt.clone(), key.clone(), release.clone());
            async move {
                let answer = release_behind(&link, &attempt.requests[instance], &release).await;
                if let Ok(Vote::No) = answer {
                    engine.record_free(instance, &key, &attempt, ttl);
                }
                answer
            }
        };
        let (tally, late) = self.instances.ask_until(self.limit(ttl), progress, ask).await;
        // The request for the key may still be under way, too.
        for instance in tally.failed() {
            self.instances.clean(instance, &key, value, ttl, RequestStatus::Unanswered);
        }
        let (engine, key) = (self.clone(), key.clone());
        self.instances.finish(late, move |(instance, answer)| {
            if answer.is_err() {
                engine.instances.clean(instance, &key, value, ttl, RequestStatus::Unanswered);
            }
        });
        tally
    }
}

/// The request for a vote.
enum Ballot {
    Plain(Cmd),
    /// The instance answers with its counter.
    Counting(Call),
}

impl Ballot {
    fn request(&self) -> Request<'_> {
        match self {
            Self::Plain(set) => Request::Command(set),
            Self::Counting(script) => Request::Script(script),
        }
    }

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

/// Releases on this runtime's connection. The request for the key may have been sent on another one, whose runtime may have ended or may be
/// blocked. The release is also sent on that connection if only there it is sure to arrive, or to arrive after the request: a silent
/// instance reads it from an open connection when it resumes, but accepts no new connection.
async fn release_behind(link: &Arc<Link>, request: &KeyRequest, release: &Cmd) -> Result<Vote, Fault> {
    let present = link.current_connection();
    let is_answered = matches!(request.state().outcome, Outcome::Answered | Outcome::LateYes);
    if Arc::ptr_eq(&present, &request.connection)
        || !link.has(&request.connection)
        || (is_answered && present.is_open())
    {
        return release_once(link, &present, release).await;
    }
    let both = [&request.connection, &present].map(|connection| release_once(link, connection, release));
    let mut answers = both.into_iter().collect::<FuturesUnordered<_>>();
    let mut last = Ok(Vote::No);
    while let Some(answer) = answers.next().await {
        last = answer;
        if let Ok(Vote::Yes(_)) = last {
            break;
        }
    }
    last
}

/// Returns the command that deletes a key if it has this value. The short script is sent as text: a silent instance may read it when the
/// client is gone, and no client could then send a script for an unknown hash.
pub(super) fn release_command(key: &str, value: GrantId) -> Cmd {
    let mut release = redis::cmd("EVAL");
    release.arg(include_str!("release.lua")).arg(1).arg(key);
    release.write_arg_fmt(value);
    release
}

/// Releases a key. Yes if the instance had it.
pub(super) async fn release_once(
    link: &Arc<Link>,
    connection: &Connection,
    release: &Cmd,
) -> Result<Vote, Fault> {
    match link.ask(connection, Request::Command(release)).await {
        // A repeated request that finds nothing was carried out the first time.
        Ok(Answered { answer: Answer::Int(1), .. } | Answered { repeated: true, .. }) => Ok(Vote::Yes(0)),
        Ok(_) => Ok(Vote::No),
        Err(fault) if fault.what == What::WrongType => Ok(Vote::No),
        Err(fault) => Err(fault),
    }
}
