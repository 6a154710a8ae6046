//! While one waits: for whom, and for how long.

use std::convert::Infallible;
use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tenure::clock::BootTime;
use tenure::{Client, LockName, Presence};

use super::job::Talk;
use crate::duration;
use crate::say::say;
use crate::show;

/// Shows, on stderr, who holds the lock that is waited for.
pub(super) struct Waiting<'a> {
    client: &'a Client,
    name: &'a LockName,
    talk: Talk,
}

/// Whoever waits less than this need not be told why.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often the line is brought up to date.
const REFRESH: Duration = Duration::from_secs(1);

impl<'a> Waiting<'a> {
    pub(super) const fn new(client: &'a Client, name: &'a LockName, talk: Talk) -> Self {
        Self { client, name, talk }
    }

    /// Shows it for as long as that takes.
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
        if std::io::stderr().is_terminal() && self.talk >= Talk::Normal {
            let line = Line::new();
            loop {
                if !in_foreground() {
                    line.0.set_draw_target(ProgressDrawTarget::hidden());
                    tokio::time::sleep(REFRESH).await;
                    continue;
                }
                line.0.set_draw_target(ProgressDrawTarget::stderr());
                let held = held_by(self.client, self.name, Ourselves::Waiting).await;
                let waited = duration::text(BootTime::now().since(began).max(Duration::from_secs(1)));
                line.0.set_message(format!("waiting for `{}` for {waited}{held}", self.name));
                line.0.tick();
                tokio::time::sleep(REFRESH).await;
            }
        }
        if self.talk >= Talk::Verbose {
            say(format!(
                "waiting for `{}`{}",
                self.name,
                held_by(self.client, self.name, Ourselves::Waiting).await
            ));
        }
        std::future::pending().await
    }
}

/// Whether we are one of those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ourselves {
    Waiting,
    Gone,
}

/// `: held by …`, or nothing if nobody is seen to hold it.
pub(super) async fn held_by(client: &Client, name: &LockName, ourselves: Ourselves) -> String {
    let Ok(info) = client.inspect(name).await else { return String::new() };
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

/// Whether the terminal is ours to draw on, and not the prompt's of a shell that has sent us to the background.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(std::io::stderr()) == Ok(rustix::process::getpgrp())
}

/// The line on the terminal. It is gone when this is.
struct Line(ProgressBar);

impl Line {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(
            ProgressStyle::with_template("{spinner} {wide_msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        Self(bar)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
