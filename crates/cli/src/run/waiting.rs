//! Messages while a run waits for its lock: the holder, the time, and an engine that cannot be reached.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use tenure::clock::BootTime;
use tenure::{Client, EngineError, InspectError, LockInfo, Presence};

use super::job::{Job, Talk};
use crate::duration;
use crate::exit;
use crate::say::say;
use crate::show;
use crate::status::StatusLine;

/// Shows the holder of a lock on stderr while a run waits for it.
pub(super) struct Waiting<'a> {
    client: &'a Client,
    job: &'a Job,
    /// The last result.
    seen: RefCell<Seen>,
}

/// The result of an inspection of the lock, in words that follow `waiting for X`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Seen {
    /// The lock has not been inspected yet.
    #[default]
    Nothing,
    Lock(String),
    /// The lock could not be inspected.
    Outage(String),
}

/// How long a wait lasts before anything is shown.
const PATIENCE: Duration = Duration::from_millis(300);

/// The pause between two inspections, and between two updates of the line.
const REFRESH: Duration = Duration::from_secs(1);

impl<'a> Waiting<'a> {
    pub(super) fn new(client: &'a Client, job: &'a Job) -> Self {
        Self { client, job, seen: RefCell::default() }
    }

    /// Shows the wait until the given future is ready.
    pub(super) async fn show_while<T>(&self, what: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = what => done,
            never = self.show() => match never {},
        }
    }

    async fn show(&self) -> Infallible {
        let began = BootTime::now();
        tokio::time::sleep(PATIENCE).await;
        if let Some(line) = StatusLine::open().filter(|_| self.job.talk >= Talk::Normal) {
            let draw = || {
                let waited = duration::text(BootTime::now().since(began).max(Duration::from_secs(1)));
                let seen = self.seen.borrow();
                line.draw(&format!("waiting for `{}` for {waited}{}", self.job.title(), seen.text()));
            };
            let keep_drawing = async {
                loop {
                    tokio::time::sleep(REFRESH).await;
                    draw();
                }
            };
            // The shown time advances even while an engine does not answer.
            tokio::select! {
                never = self.look(|_, _| draw()) => match never {},
                () = keep_drawing => {}
            }
        }
        if self.job.talk >= Talk::Verbose {
            self.look(|before, now| {
                if let Some(message) = message(before, now) {
                    say(format!("waiting for `{}`{message}", self.job.title()));
                }
            })
            .await;
        }
        std::future::pending().await
    }

    /// Inspects the lock repeatedly, and reports each result with the one before.
    async fn look(&self, report: impl Fn(&Seen, &Seen)) -> Infallible {
        loop {
            let seen = match self.client.inspect(&self.job.name).await {
                Ok(info) => Seen::Lock(held_by(&info, self.client, Ourselves::Waiting)),
                Err(error) => Seen::Outage(outage(&error)),
            };
            let before = self.seen.replace(seen.clone());
            report(&before, &seen);
            tokio::time::sleep(REFRESH).await;
        }
    }
}

impl Seen {
    fn text(&self) -> &str {
        match self {
            Self::Nothing => "",
            Self::Lock(text) | Self::Outage(text) => text,
        }
    }
}

/// Returns the message for two consecutive results: for the first one, and for the beginning and the end of each outage.
fn message<'s>(before: &Seen, now: &'s Seen) -> Option<&'s str> {
    match (before, now) {
        (Seen::Lock(_), Seen::Lock(_)) | (Seen::Outage(_), Seen::Outage(_)) => None,
        _ => Some(now.text()),
    }
}

fn outage(error: &InspectError) -> String {
    match error {
        InspectError::Engine(EngineError::Unreachable { engine, .. }) => {
            format!(": {engine} cannot be reached, retrying")
        }
        error => format!(": {}", exit::with_causes(error)),
    }
}

/// Whether this run is one of the waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ourselves {
    Waiting,
    Gone,
}

/// Returns `: held by …`, or an empty text if there is no holder.
pub(super) fn held_by(info: &LockInfo, client: &Client, ourselves: Ourselves) -> String {
    let now = client.clock().wall();
    let mut holders = info.present_holders();
    let Some(first) = holders.next() else { return String::new() };
    let mut text = format!(": held by {}", show::describe(first, now));
    let more = holders.count();
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    let waiting = info.waiters.iter().filter(|waiter| waiter.presence == Presence::Present).count();
    let others = waiting.saturating_sub(usize::from(ourselves == Ourselves::Waiting));
    if others > 0 {
        let _ = write!(text, "; {others} more wait");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once_and_so_is_its_end() {
        let lock = || Seen::Lock(": held by a".into());
        let outage = || Seen::Outage(": redis cannot be reached, retrying".into());
        assert_eq!(message(&Seen::Nothing, &lock()), Some(": held by a"));
        assert_eq!(message(&lock(), &lock()), None);
        assert_eq!(message(&lock(), &outage()), Some(": redis cannot be reached, retrying"));
        assert_eq!(message(&outage(), &outage()), None);
        assert_eq!(message(&outage(), &lock()), Some(": held by a"));
    }
}
