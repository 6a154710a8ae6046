//! Signals are blocked in all threads, and read from a descriptor.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Resource, Rlimit};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::exit::Failure;

/// The signals that `tenure run` passes on to its command.
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

/// The signals of a process, read one at a time.
#[derive(Debug)]
pub(super) struct Signals {
    descriptor: SignalFd,
}

/// The signal mask at the start of the process. The command gets it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstMask(SigSet);

impl FirstMask {
    pub(super) fn restore(self) {
        let _ = self.0.thread_set_mask();
    }
}

/// A received signal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    pub(super) signal: Signal,
    /// The sender's process. `None` if the terminal sent it to a whole group.
    pub(super) from: Option<u32>,
}

impl Came {
    /// Returns the signal if it was typed on the keyboard.
    pub(super) fn of_the_keyboard(self) -> Option<Signal> {
        let typed = self.from.is_none() && matches!(self.signal, Signal::SIGINT | Signal::SIGQUIT);
        typed.then_some(self.signal)
    }
}

/// Blocks the signals that are read from now on, in this thread and the threads that it starts. Signals that were ignored from the start,
/// as with `nohup`, remain ignored.
pub(super) fn for_front() -> Result<(Signals, FirstMask), Failure> {
    let ignored = ignored();
    let mut set = SigSet::empty();
    for signal in PASSED_ON {
        // A shell without job control starts its background jobs with SIGINT and SIGQUIT ignored.
        if ignored & (1 << (signal as u32 - 1)) == 0 {
            set.add(signal);
        }
    }
    let mut blocked = set;
    // Blocked, so that a background process can set the foreground group.
    blocked.add(Signal::SIGTTOU);
    read_blocked(&blocked, &set)
}

/// Does the same for the minder, which only reads the kernel's notices of children that ended or stopped.
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

/// Returns the ignored signals, one bit for each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

impl Signals {
    /// Returns the next pending signal, if there is one.
    pub(super) fn next(&self) -> Option<Came> {
        let info = self.descriptor.read_signal().ok()??;
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
        // The code is positive for a signal from the kernel, and not positive for one from a process.
        Some(Came { signal, from: (info.ssi_code <= 0).then_some(info.ssi_pid) })
    }

    /// Reads the signals as they arrive, on a separate thread.
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

/// The received signals, in order.
#[derive(Debug)]
pub(super) struct Heard {
    source: Arc<Source>,
    coming: UnboundedReceiver<Came>,
}

/// The source of the received signals.
#[derive(Debug)]
struct Source {
    signals: Signals,
    /// Held while a signal is read and queued, so that the order is kept.
    hand_on: Mutex<UnboundedSender<Came>>,
}

impl Heard {
    pub(super) async fn next(&mut self) -> Option<Came> {
        self.coming.recv().await
    }

    /// Returns the next signal that has arrived, even if the thread has not read it yet.
    pub(super) fn by_now(&mut self) -> Option<Came> {
        self.source.hand_on();
        self.coming.try_recv().ok()
    }
}

impl Source {
    /// Queues the pending signals. Returns whether the receiver still exists.
    fn hand_on(&self) -> bool {
        let hand_on = self.hand_on.lock().unwrap_or_else(PoisonError::into_inner);
        let ourselves = rustix::process::getpid().as_raw_pid().cast_unsigned();
        while let Some(came) = self.signals.next() {
            // A signal that this process sent to its group is not for the command.
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

/// The receiver of a signal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whom {
    Itself,
    Group,
}

/// Stops this process or its group, as Ctrl-Z does, until it is continued. The kernel ignores this if no process could continue it.
pub(super) fn stop(whom: Whom) {
    send(Signal::SIGTSTP, whom);
}

/// Sends a signal, and applies its default action to this process. This matters for a shell that runs a script: it continues unless its
/// child *died* of the keyboard's signal.
pub(super) fn send(signal: Signal, whom: Whom) {
    // A core dump of this process is useless.
    let _ = rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let (Whom::Group, Some(number)) = (whom, rustix::process::Signal::from_named_raw(signal as i32)) {
        // The thread that reads signals may take this process's copy.
        let _ = rustix::process::kill_current_process_group(number);
    }
    // This signal is for the calling thread alone, so no other thread can take it. Both copies are still blocked, so the process stops
    // once, and the signal that continues it discards the other copy.
    let _ = nix::sys::signal::raise(signal);
    let mut set = SigSet::empty();
    set.add(signal);
    // The signal has its default action, because this process never changes it.
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}
