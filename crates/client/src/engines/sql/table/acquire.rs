//! How a lock is asked for: with one statement if it is free, and else from a place in the queue.

use std::sync::Arc;
use std::time::Duration;

use tenure_table::{GrantId, LockName, Value};

use super::book::{Answer, Ask, Book, PLACE_KEPT};
use super::change::Change;
use super::{MARGIN, TableEngine, milliseconds, term, token};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted, WaitUntil};
use crate::engines::sql::connection::Arg;
use crate::engines::sql::fault::{Fault, What};
use crate::engines::waiting::Waiter;
use crate::error::AcquireError;
use crate::random;
use crate::sql::Dialect;

/// How often who waits looks by itself: those whose turn is next, and all others, who must not lose their places.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
const OTHERS_LOOK: Duration = Duration::from_secs(3);

/// How often the first in line looks while the client hears no messages; each other waiter as much less often as it stands further behind.
const UNHEARD_LOOKS: Duration = Duration::from_millis(200);

/// How long to wait before asking again one who did not answer.
const SILENT_PAUSE: Duration = Duration::from_millis(100);

/// After that long, and then again, what may have been under way on a connection that broke has arrived.
const ARRIVED_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

/// What has been done for a request so far.
struct Attempt {
    waiter: Option<Waiter<()>>,
    /// Whether a request was sent whose answer did not come.
    unknown: bool,
    /// Whether the database answered when it was last asked.
    answered: bool,
}

impl TableEngine {
    /// Takes the lock if it is free, nobody waits, and it has no value: one statement.
    async fn take(&self, request: &AcquireRequest, details: &str) -> Result<Option<i64>, Fault> {
        let grant = request.grant.as_u128().to_be_bytes();
        let owner = request.owner.as_u128().to_be_bytes();
        let args = [
            Arg::Bytes(&grant),
            Arg::Bytes(&owner),
            Arg::Text(request.mode.as_str()),
            Arg::Int(milliseconds(request.ttl)),
            Arg::Text(details),
            Arg::Bytes(request.name.as_str().as_bytes()),
        ];
        match self.address.dialect {
            Dialect::Postgres => self.link.once(&self.texts.take, &args, |row| row.int(0)).await,
            Dialect::MySql => {
                let done = self.link.run_once(&self.texts.take, &args).await?;
                Ok((done.rows == 1).then(|| i64::try_from(done.number).unwrap_or(i64::MAX)))
            }
        }
    }

    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let details = self.ourselves.details(&request, self.context.clock.wall(), None).to_string();
        let mut unknown = false;
        if !request.reenter && !self.ear.anybody_waits_for(&request.name) {
            let sent_at = self.now();
            match self.take(&request, &details).await {
                Ok(Some(token)) => return Ok(granted(&request, sent_at, token, Value::default())),
                Ok(None) => {}
                // It may still arrive, also when what is granted now is long released.
                Err(fault) => unknown = fault.what == What::NoAnswer,
            }
        }
        Box::pin(self.wait_from(request, details, unknown)).await
    }

    async fn wait_from(
        self: &Arc<Self>,
        request: AcquireRequest,
        details: String,
        unknown: bool,
    ) -> Result<Granted, AcquireError> {
        let mut attempt = Attempt { waiter: None, unknown, answered: true };
        let answer = self.wait_with(&request, &details, &mut attempt).await;
        if answer.is_err() {
            self.undo(attempt, &request).await;
        } else if attempt.unknown {
            self.doubtful().insert(request.grant);
        }
        answer
    }

    async fn wait_with(
        &self,
        request: &AcquireRequest,
        details: &str,
        attempt: &mut Attempt,
    ) -> Result<Granted, AcquireError> {
        let mut silent_since: Option<BootTime> = None;
        // How many stood before this one when it last asked.
        let mut place = 0;
        let waits = !matches!(request.wait, WaitUntil::Try);
        loop {
            if request.cancel.is_cancelled() {
                return Err(request.not_got());
            }
            if waits && attempt.waiter.is_none() {
                attempt.waiter = Some(self.ear.register(request.grant, &request.name));
            }
            let (sent_at, client) = (self.now(), self.ear.client());
            let ask = Ask {
                grant: request.grant,
                owner: request.owner,
                mode: request.mode,
                reenter: request.reenter,
                ttl: milliseconds(request.ttl),
                details,
                client: waits.then_some(&*client),
            };
            let asked = self.ask(request, &ask, place).await;
            attempt.answered = asked.is_ok();
            let pause = match asked {
                Ok((Answer::Granted { token }, value)) => return Ok(granted(request, sent_at, token, value)),
                Ok((Answer::Held(held), _)) => {
                    let (name, asked) = (request.name.clone(), request.mode);
                    return Err(AcquireError::NotCovered { name, held, asked });
                }
                Ok((Answer::Busy { expires_in, before }, _)) => {
                    silent_since = None;
                    place = before;
                    let mut look = if before > 0 { OTHERS_LOOK } else { FIRST_LOOKS };
                    if client.is_empty() {
                        let behind = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
                        look = look.min(UNHEARD_LOOKS.saturating_mul(behind));
                    }
                    let look = random::jittered(look);
                    // The end of a lease is announced by no message.
                    expires_in.filter(|_| before == 0).map_or(look, |left| look.min(left + MARGIN))
                }
                // Others of this client are before it, and the database is none the worse for it.
                Err(fault) if fault.what == What::Full && !request.wait.is_over(self.now()) => SILENT_PAUSE,
                Err(fault) => {
                    attempt.unknown |= fault.what == What::NoAnswer;
                    // A wait outlasts a restart of the database, but not a longer silence.
                    let since = *silent_since.get_or_insert(sent_at);
                    let silence = fault.what.is_silence() || fault.what == What::LockTimeout;
                    let goes_on = silence && self.now().since(since) < self.link.limit();
                    if !goes_on || request.wait.is_over(self.now()) {
                        return Err(fault.into());
                    }
                    SILENT_PAUSE
                }
            };
            if request.wait.is_over(self.now()) {
                return Err(request.not_got());
            }
            let look_again = request.wait.or_at(self.now() + pause);
            let woken = async {
                match &attempt.waiter {
                    Some(waiter) => waiter.woken().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = request.cancel.cancelled() => return Err(request.not_got()),
                // It may be its turn, or its client may have another name by now.
                () = woken => place = 0,
                () = self.context.clock.sleep_until(look_again) => {}
            }
        }
    }

    /// Asks for the lock: by a look alone where that is enough, since whoever changes something keeps all others from it.
    async fn ask(
        &self,
        request: &AcquireRequest,
        ask: &Ask<'_>,
        place: usize,
    ) -> Result<(Answer, Value), Fault> {
        let name = request.name.as_str().as_bytes();
        if place > 0 {
            let id = request.grant.as_u128().to_be_bytes();
            let (args, keep) = ([Arg::Bytes(name), Arg::Bytes(name), Arg::Bytes(&id)], Arg::Int(PLACE_KEPT));
            // Whoever is first sees to it that all go on.
            if !self.link.rows(&self.texts.before, &args, |row| row.int(0)).await?.is_empty()
                && self.link.run(&self.texts.keep_place, &[keep, args[1], args[2]]).await?.0.rows == 1
            {
                return Ok((Answer::Busy { expires_in: None, before: place }, Value::default()));
            }
        }
        if ask.client.is_none()
            && let Some(mut book) = self.look(name).await?
            && let busy @ Answer::Busy { .. } = book.acquire(ask)
        {
            return Ok((busy, Value::default()));
        }
        let change = |book: &mut Book, _| (book.acquire(ask), book.shown_value());
        self.link.with(Change { engine: self, name, asks: Some(request.grant), how: change }).await
    }

    /// Leaves the queue, and gives back what may have been granted without our having heard of it.
    async fn undo(self: &Arc<Self>, attempt: Attempt, request: &AcquireRequest) {
        if attempt.waiter.is_none() && !attempt.unknown {
            return;
        }
        // If the database answers, or if nobody waits any more: now, so that nothing is left when this has ended.
        let now = attempt.answered || request.cancel.is_cancelled();
        let undone = now && self.let_go(&request.name, request.grant).await.is_ok();
        if undone && !attempt.unknown {
            return;
        }
        let (engine, name, grant) = (self.clone(), request.name.clone(), request.grant);
        let (ttl, unknown) = (request.ttl.get(), attempt.unknown);
        let undoing = async move { engine.go_on_undoing(&name, grant, ttl, undone, unknown).await };
        self.undoing.spawn_on(undoing, &self.context.runtime);
    }

    /// As soon as the database can be reached. After the ttl there is nothing left to give back.
    pub(super) async fn go_on_undoing(
        &self,
        name: &LockName,
        grant: GrantId,
        ttl: Duration,
        undone: bool,
        unknown: bool,
    ) {
        const FIRST_PAUSE: Duration = Duration::from_millis(50);
        const LONGEST_PAUSE: Duration = Duration::from_secs(2);
        let clock = &self.context.clock;
        let gone = clock.now() + self.link.limit() * 2 + ttl;
        let mut pause = FIRST_PAUSE;
        while !undone && self.let_go(name, grant).await.is_err() {
            if clock.now() > gone || self.closing.is_cancelled() {
                return;
            }
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if !unknown {
            return;
        }
        // It may have overtaken the request.
        for after in ARRIVED_AFTER {
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = clock.sleep_until(clock.now() + after) => {}
            }
            let _ = self.let_go(name, grant).await;
        }
    }
}

fn granted(request: &AcquireRequest, sent_at: BootTime, number: i64, value: Value) -> Granted {
    Granted::new(Some(token(number)), term(sent_at, request.ttl)).with_value(value)
}
