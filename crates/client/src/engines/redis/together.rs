//! Requests that are sent together: where much is under way on a connection, those who come next are gathered into one message.
//!
//! A message costs as much as what is in it, on both sides: it is handed to the connection, kept until it is answered, and its answer is
//! handed back. And locks that are released together are released by one script.
//!
//! **A connection is a line.** What is asked for later is done later, whether it was gathered or sent by itself: so what undoes a request
//! can follow it, and does not overtake it. Whoever finds others gathered joins them.

use std::collections::VecDeque;
use std::fmt;
use std::future::ready;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value as Answer};
use tenure_table::GrantId;
use tokio::sync::oneshot;
use tokio::task::{unconstrained, yield_now};
use tokio_util::sync::CancellationToken;

use super::scripts;
use super::way::{Connected, Way};

/// So many go into one message. It is large enough to be worth its while, and small enough that Redis does one while the next is made, and
/// that no script takes long.
const MOST: usize = 16;

/// So many messages are under way at once.
const MESSAGES: usize = 64;

/// Those who are gathered on one connection.
#[derive(Default)]
pub(super) struct Together {
    gathered: Mutex<Gathered>,
    /// How many have come and are not yet with the connection.
    waiting: AtomicUsize,
    /// Whether Redis has been told how locks are released together, and has not forgotten it.
    is_known: AtomicBool,
}

#[derive(Default)]
struct Gathered {
    requests: VecDeque<Request>,
    /// Messages that are not answered, or whose answers are not yet told.
    under_way: VecDeque<Message>,
    /// Whether somebody sees to it that they are sent and told.
    carried: bool,
}

/// A message that was handed to the connection, and who hears of it.
struct Message {
    answers: BoxFuture<'static, RedisResult<Vec<Answer>>>,
    listeners: Vec<Listener>,
}

/// What is asked for.
enum Request {
    /// Commands, and who hears their answers.
    Commands { commands: Vec<Cmd>, unheard: Unheard, heard: oneshot::Sender<RedisResult<Vec<Answer>>> },
    /// The release of what a grant holds alone, and who hears whether it was freed.
    Release(Release),
}

/// What becomes of commands that nobody waits for any more when they are about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unheard {
    Dropped,
    /// They undo what may have been sent before.
    Sent,
}

struct Release {
    key: String,
    grant: GrantId,
    heard: oneshot::Sender<RedisResult<bool>>,
}

/// Who hears of the answers, in their order.
enum Listener {
    Nobody,
    Commands(usize, oneshot::Sender<RedisResult<Vec<Answer>>>),
    Releases(Vec<oneshot::Sender<RedisResult<bool>>>),
}

impl Gathered {
    /// The requests of the next message, without those that are not to be sent any more.
    fn take_next(&mut self) -> Vec<Request> {
        let mut next = Vec::with_capacity(self.requests.len().min(MOST));
        while next.len() < MOST
            && let Some(request) = self.requests.pop_front()
        {
            if !request.is_dropped() {
                next.push(request);
            }
        }
        next
    }
}

impl Request {
    /// Whether nobody waits for the answer any more, and the request need not be sent then.
    fn is_dropped(&self) -> bool {
        matches!(self, Self::Commands { unheard: Unheard::Dropped, heard, .. } if heard.is_closed())
    }
}

impl Together {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any whom others must not overtake.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Hands a message to the connection, if there is anything to send.
    fn hand_over(&self, gathered: &mut Gathered, way: &Connected) {
        if gathered.under_way.len() == MESSAGES {
            return;
        }
        let before = gathered.requests.len();
        let requests = gathered.take_next();
        let taken = before - gathered.requests.len();
        if requests.is_empty() {
            // The connection refuses an empty message with an error.
            self.waiting.fetch_sub(taken, Ordering::AcqRel);
            return;
        }
        let (commands, listeners) = message(requests, self.is_known.load(Ordering::Relaxed));
        let connection = way.connection();
        let mut answers = unconstrained(async move {
            let mut connection = connection.ok_or_else(broken)?;
            connection.send_packed_commands(&commands, 0, commands.len()).await
        })
        .boxed();
        // When it is polled for the first time, it is in line: also if whoever does it has used up its turn.
        let first = answers.as_mut().now_or_never();
        self.waiting.fetch_sub(taken, Ordering::AcqRel);
        if let Some(Err(_)) = first {
            // It is closed. Messages may be left in it of which nothing is heard any more.
            way.is_gone();
        }
        let answers = first.map_or(answers, |answers| ready(answers).boxed());
        gathered.under_way.push_back(Message { answers, listeners });
    }

    /// Tells each what it is to hear. Some may have gone.
    fn tell(&self, listeners: Vec<Listener>, answers: RedisResult<Vec<Answer>>) {
        let mut answers = answers.map(Vec::into_iter);
        for listener in listeners {
            match (listener, &mut answers) {
                (Listener::Nobody, Ok(answers)) => drop(answers.next()),
                (Listener::Nobody, Err(_)) => {}
                (Listener::Commands(many, heard), Ok(answers)) => {
                    let _ = heard.send(Ok(answers.by_ref().take(many).collect()));
                }
                (Listener::Releases(all), Ok(answers)) => {
                    let freed = match answers.next() {
                        Some(Answer::BulkString(freed)) => freed,
                        // Whatever the reason is, nothing was done.
                        _ => Vec::new(),
                    };
                    self.is_known.store(!freed.is_empty(), Ordering::Relaxed);
                    for (nth, heard) in all.into_iter().enumerate() {
                        let _ = heard.send(Ok(freed.get(nth) == Some(&b'1')));
                    }
                }
                (Listener::Commands(_, heard), Err(error)) => drop(heard.send(Err(error.clone()))),
                (Listener::Releases(all), Err(error)) => {
                    for heard in all {
                        let _ = heard.send(Err(error.clone()));
                    }
                }
            }
        }
    }
}

/// What Redis answers to a command, which is sent behind all that was asked for on this way before. The client crate's own way to ask puts each
/// request into a box, which is large.
pub(super) async fn answer_of<T: FromRedisValue>(
    command: &Cmd,
    way: &Way,
    connection: &mut MultiplexedConnection,
) -> RedisResult<T> {
    let answer = if way.together.is_waiting() {
        only(send(way, vec![command.clone()]).await?)
    } else {
        connection.send_packed_command(command).await?
    };
    Ok(redis::from_redis_value(answer.extract_error()?)?)
}

/// The same of a command that undoes one which may be with the connection: it stays in line also if nobody waits for its answer any more, as what
/// was sent together does.
pub(super) async fn answer_in_any_case<T: FromRedisValue>(command: &Cmd, way: &Way) -> RedisResult<T> {
    let answer = only(send_unless(Unheard::Sent, way, vec![command.clone()]).await?);
    Ok(redis::from_redis_value(answer.extract_error()?)?)
}

fn only(mut answers: Vec<Answer>) -> Answer {
    answers.pop().unwrap_or(Answer::Nil)
}

/// Sends commands with those of others; what they are answered.
pub(super) async fn send(way: &Way, commands: Vec<Cmd>) -> RedisResult<Vec<Answer>> {
    send_unless(Unheard::Dropped, way, commands).await
}

async fn send_unless(unheard: Unheard, way: &Way, commands: Vec<Cmd>) -> RedisResult<Vec<Answer>> {
    let (heard, answer) = oneshot::channel();
    join(way, Request::Commands { commands, unheard, heard });
    answer.await.unwrap_or_else(|_| Err(broken()))
}

/// Releases a lock with others; whether it was freed. If not, this grant does not hold it, or there is more to it: that is for the script
/// that knows what to do about it.
pub(super) async fn release(way: &Way, key: &str, grant: GrantId) -> RedisResult<bool> {
    let (heard, answer) = oneshot::channel();
    join(way, Request::Release(Release { key: key.to_owned(), grant, heard }));
    answer.await.unwrap_or_else(|_| Err(broken()))
}

/// Nobody sees to the connection any more.
fn broken() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}

fn join(way: &Way, request: Request) {
    let together = &way.together;
    let mut gathered = together.gathered();
    together.waiting.fetch_add(1, Ordering::AcqRel);
    gathered.requests.push_back(request);
    if !mem::replace(&mut gathered.carried, true) {
        drop(gathered);
        // It is there before it is polled: a runtime that has ended does not begin with it.
        let carrier = Carrier { way: Arc::downgrade(way), has_ended: false };
        way.runtime().spawn(carrier.carry(way.gone()));
    } else if gathered.requests.len() >= MOST {
        together.hand_over(&mut gathered, way);
    }
}

/// Who sees to it that what is gathered is sent, and that all hear of it, until there is nothing left.
struct Carrier {
    way: Weak<Connected>,
    has_ended: bool,
}

impl Carrier {
    async fn carry(mut self, gone: CancellationToken) {
        loop {
            // Those are let come first who are about to; and those who were told go on before the next are, so that what they ask for is on
            // its way by then.
            yield_now().await;
            let Some(Message { answers, listeners }) = self.next() else { return };
            tokio::select! {
                biased;
                answers = answers => {
                    let Some(way) = self.way.upgrade() else { return };
                    way.together.tell(listeners, answers);
                }
                // It does not keep a connection open that nobody uses any more, nor wait for one that is closed.
                () = gone.cancelled() => return,
            }
        }
    }

    /// The message that is answered next. If there is none, the next who comes has to see to it.
    fn next(&mut self) -> Option<Message> {
        let way = self.way.upgrade()?;
        let mut gathered = way.together.gathered();
        way.together.hand_over(&mut gathered, &way);
        let next = gathered.under_way.pop_front();
        if next.is_none() {
            gathered.carried = false;
            self.has_ended = true;
        }
        next
    }
}

impl Drop for Carrier {
    /// What nobody carries any more is not sent.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let Some(way) = self.way.upgrade() else { return };
        let left = mem::take(&mut *way.together.gathered());
        way.together.waiting.fetch_sub(left.requests.len(), Ordering::AcqRel);
    }
}

/// All requests as one message, and who hears what of its answers. Releases that follow each other are one command.
fn message(requests: Vec<Request>, is_known: bool) -> (Pipeline, Vec<Listener>) {
    let mut commands = Pipeline::with_capacity(3 * requests.len());
    let mut listeners = Vec::with_capacity(requests.len());
    let mut requests = requests.into_iter().peekable();
    while let Some(request) = requests.next() {
        match request {
            Request::Commands { commands: some, heard, .. } => {
                listeners.push(Listener::Commands(some.len(), heard));
                for command in some {
                    commands.add_command(command);
                }
            }
            Request::Release(first) => {
                let mut releases = vec![first];
                while let Some(Request::Release(next)) =
                    requests.next_if(|next| matches!(next, Request::Release(_)))
                {
                    releases.push(next);
                }
                if !is_known {
                    commands.add_command(scripts::load_release_each());
                    listeners.push(Listener::Nobody);
                }
                let grants = releases.iter().map(|release| (&*release.key, release.grant));
                commands.add_command(scripts::release_each(grants));
                listeners
                    .push(Listener::Releases(releases.into_iter().map(|release| release.heard).collect()));
            }
        }
    }
    (commands, listeners)
}

impl fmt::Debug for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Together({})", self.waiting.load(Ordering::Relaxed))
    }
}
