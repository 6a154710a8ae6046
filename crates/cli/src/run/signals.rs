//! Signals, as something that is read: they are blocked in all threads, and come through a descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::exit::Failure;

/// What `tenure run` passes on to its command.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// The signals of a process, read one by one.
#[derive(Debug)]
pub(super) struct Signals {
    descriptor: SignalFd,
}

/// The mask that the process was started with, which its command gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstMask(SigSet);

impl FirstMask {
    pub(super) fn restore(self) {
        let _ = self.0.thread_set_mask();
    }
}

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    pub(super) signal: Signal,
    /// The process that sent it; `None` if the terminal did, to all of a group.
    pub(super) from: Option<u32>,
}

impl Came {
    /// It, if it is one that people type.
    pub(super) fn of_the_keyboard(self) -> Option<Signal> {
        let typed = self.from.is_none() && matches!(self.signal, Signal::SIGINT | Signal::SIGQUIT);
        typed.then_some(self.signal)
    }
}

/// Blocks, in this thread and those that it will start, what is read from now on. Signals that were ignored when the process was
/// started, as `nohup` does, stay ignored.
pub(super) fn for_front() -> Result<(Signals, FirstMask), Failure> {
    let ignored = ignored();
    let mut set = SigSet::empty();
    for signal in PASSED_ON {
        // A shell without job control starts its background jobs with INT and QUIT ignored.
        if ignored & (1 << (signal as u32 - 1)) == 0 {
            set.add(signal);
        }
    }
    let mut blocked = set;
    // Who is not in the foreground may say who is.
    blocked.add(Signal::SIGTTOU);
    read_blocked(&blocked, &set)
}

/// The same for the minder, to whom nobody has anything to say but the kernel when a child ends or stops.
pub(super) fn for_minder() -> Result<Signals, Failure> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    Ok(read_blocked(&SigSet::all(), &set)?.0)
}

fn read_blocked(blocked: &SigSet, read: &SigSet) -> Result<(Signals, FirstMask), Failure> {
    let open = || {
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok::<_, nix::Error>((Signals { descriptor: SignalFd::with_flags(read, flags)? }, FirstMask(before)))
    };
    open().map_err(|error| Failure::system("signals cannot be read", error))
}

/// The signals that are ignored, a bit for each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

impl Signals {
    /// The next signal that has come, if one has.
    pub(super) fn next(&self) -> Option<Came> {
        let info = self.descriptor.read_signal().ok()??;
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
        // What a person or a program sends has a code that is not positive; what the kernel sends has a positive one.
        Some(Came { signal, from: (info.ssi_code <= 0).then_some(info.ssi_pid) })
    }

    /// Hears them as they come, on a thread of its own.
    pub(super) fn listen(self) -> Result<Heard, Failure> {
        let (hand_on, coming) = mpsc::unbounded_channel();
        let source = Arc::new(Source { signals: self, hand_on: Mutex::new(hand_on) });
        let heard = Heard { source: source.clone(), coming };
        let listen = move || {
            while source.hand_on() {
                let _ = rustix::event::poll(&mut [PollFd::new(&source.signals, PollFlags::IN)], None);
            }
        };
        let thread = std::thread::Builder::new().name("tenure-signals".into()).spawn(listen);
        thread.map_err(|error| Failure::system("cannot start a thread", error))?;
        Ok(heard)
    }
}

/// The signals that come, in their order.
#[derive(Debug)]
pub(super) struct Heard {
    source: Arc<Source>,
    coming: UnboundedReceiver<Came>,
}

/// Where they come from.
#[derive(Debug)]
struct Source {
    signals: Signals,
    /// Whoever reads one hands it on before anybody reads the next.
    hand_on: Mutex<UnboundedSender<Came>>,
}

impl Heard {
    pub(super) async fn next(&mut self) -> Option<Came> {
        self.coming.recv().await
    }

    /// The next that has come by now, whether the thread has seen it or not.
    pub(super) fn by_now(&mut self) -> Option<Came> {
        self.source.hand_on();
        self.coming.try_recv().ok()
    }
}

impl Source {
    /// Hands on what has come; whether anybody listens.
    fn hand_on(&self) -> bool {
        let hand_on = self.hand_on.lock().unwrap_or_else(PoisonError::into_inner);
        let ourselves = rustix::process::getpid().as_raw_pid().cast_unsigned();
        while let Some(came) = self.signals.next() {
            // What this process sends to its group is not for its command.
            if came.from != Some(ourselves) {
                let _ = hand_on.send(came);
            }
        }
        !hand_on.is_closed()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Who gets a signal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whom {
    Itself,
    Group,
}

/// Stops this process, or its whole group, as Ctrl-Z does, until somebody continues it. Where nobody could, the kernel does not stop
/// it.
pub(super) fn stop(whom: Whom) {
    send(Signal::SIGTSTP, whom);
}

/// Sends a signal, and has it do to this process what it does by default. A shell that runs a script goes on with it unless its child *died*
/// of the keyboard's signal.
pub(super) fn send(signal: Signal, whom: Whom) {
    // A core dump of this process is of no use.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let (Whom::Group, Some(number)) = (whom, rustix::process::Signal::from_named_raw(signal as i32)) {
        // The thread that reads signals may take this process's own copy.
        let _ = rustix::process::kill_current_process_group(number);
    }
    // This one is for the calling thread alone, so nothing else can take it. It is still blocked, and so are both copies: this process stops
    // once, and the signal that continues it discards the other copy.
    let _ = nix::sys::signal::raise(signal);
    let mut set = SigSet::empty();
    set.add(signal);
    // It has its default action: nothing in this process has changed it.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}
