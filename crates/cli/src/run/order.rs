//! What the two processes of `tenure run` say to each other: the front gives orders, the minder reports.
//!
//! A line of JSON each, over a socket pair. With the order to start come descriptors that keep the lock, should the front die.
//! When the socket ends, the other one is gone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure::clock::BootTime;

/// From the front to the minder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Start the command.
    Start(Start),
    /// The deadline has moved.
    Until(Option<Limits>),
    /// Send the command this signal, which asks it to end or just tells it something.
    Signal(i32),
    /// Continue the command after it was stopped, and give it the terminal.
    Continue { terminal: bool },
    /// The lock is lost: kill everything, now.
    Kill,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) environment: Vec<(String, Option<String>)>,
    pub(super) limits: Option<Limits>,
    /// How long what the command leaves behind may take to end, when it was asked to.
    pub(super) grace: Duration,
    /// Give it the terminal.
    pub(super) terminal: bool,
}

/// When the command must be gone, in time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    term_at: Duration,
    kill_at: Duration,
}

impl Limits {
    /// The least time between TERM and the deadline that is worth having.
    pub(super) const SHORTEST_GRACE: Duration = Duration::from_millis(100);

    /// KILL comes a quarter of the grace before the deadline, within these bounds, since it takes a moment.
    const KILL_AHEAD: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

    pub(super) fn before(deadline: BootTime, grace: Duration) -> Self {
        let ahead = (grace / 4).clamp(Self::KILL_AHEAD.0, Self::KILL_AHEAD.1);
        Self { term_at: (deadline - grace).since_boot(), kill_at: (deadline - ahead).since_boot() }
    }

    /// When the front does itself what the minder should have done: half-way between KILL and the deadline.
    pub(super) fn take_over_at(self, deadline: BootTime) -> BootTime {
        self.kill_at() + deadline.since(self.kill_at()) / 2
    }

    pub(super) const fn term_at(self) -> BootTime {
        BootTime::from_boot(self.term_at)
    }

    pub(super) const fn kill_at(self) -> BootTime {
        BootTime::from_boot(self.kill_at)
    }
}

/// From the minder to the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The command runs, as this process.
    Started { pid: i32 },
    /// It could not be started.
    NotStarted { message: String },
    /// It was stopped by this signal.
    Stopped { signal: i32 },
    /// It has ended, and with it, unless it ended by itself, all that it had started.
    Ended(End),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    /// What shells say of it.
    pub(super) code: u8,
    /// The signal that ended it, if one did.
    pub(super) signal: Option<i32>,
    pub(super) why: Why,
    /// Whether somebody asked it to end.
    pub(super) asked: bool,
    /// What it left running, if it ended by itself.
    pub(super) left: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Why {
    /// By itself, or because somebody sent it a signal.
    ByItself,
    /// The lock could not be kept: it was told to end before the deadline, or killed.
    Deadline,
    /// The front said that the lock is lost.
    Lost,
}

/// Whether the sender may be held up by a receiver that does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Wait,
    /// An error, if the socket is full.
    None,
}

/// Sends one message, which is far smaller than what a socket holds.
pub(super) fn send(
    socket: &UnixStream,
    message: &impl Serialize,
    with: &[OwnedFd],
    patience: Patience,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let descriptors: Vec<_> = with.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Channel::MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let flags = match patience {
        Patience::Wait => SendFlags::NOSIGNAL,
        Patience::None => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    };
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&line)], &mut ancillary, flags)?;
    if sent == line.len() { Ok(()) } else { Err(io::Error::other("a message was cut off")) }
}

/// The minder's end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: UnixStream,
    unread: Vec<u8>,
    /// Descriptors that came along. They stay open until this is dropped, and are open in the command too.
    kept: Vec<OwnedFd>,
}

impl Channel {
    const MOST_DESCRIPTORS: usize = 8;

    pub(super) const fn new(socket: UnixStream) -> Self {
        Self { socket, unread: Vec::new(), kept: Vec::new() }
    }

    /// The messages that have come whole; an error when the other end is gone.
    pub(super) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Vec<M>> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Self::MOST_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        // Without CMSG_CLOEXEC: what keeps the lock is handed on to the command.
        let received =
            rustix::net::recvmsg(&self.socket, &mut buffers, &mut ancillary, RecvFlags::empty())?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.kept.extend(descriptors);
            }
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.unread.extend_from_slice(&bytes[..received]);
        let mut messages = Vec::new();
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            messages.push(serde_json::from_slice(&line)?);
        }
        Ok(messages)
    }

    /// Frees what the descriptors that came along keep locked, also if others have inherited them.
    pub(super) fn unlock_kept(&self) {
        for descriptor in &self.kept {
            // What is not a lock file, such as a connection, is let go of with this process.
            let _ = rustix::fs::flock(descriptor, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kill_comes_before_the_deadline_and_after_term() {
        let deadline = BootTime::from_boot(Duration::from_secs(100));
        for grace_ms in [100, 333, 1000, 10_000] {
            let limits = Limits::before(deadline, Duration::from_millis(grace_ms));
            assert!(limits.term_at() < limits.kill_at(), "{limits:?}");
            assert!(limits.kill_at() + Duration::from_millis(50) <= deadline, "{limits:?}");
            assert!(limits.kill_at() < limits.take_over_at(deadline), "{limits:?}");
            assert!(limits.take_over_at(deadline) < deadline, "{limits:?}");
        }
    }

    #[test]
    fn long_messages_and_several_at_once_come_whole() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(theirs);
        let long = Report::NotStarted { message: "x".repeat(10_000) };
        for _ in 0..3 {
            send(&ours, &long, &[], Patience::None).unwrap();
        }
        let mut whole = 0;
        while whole < 3 {
            whole += channel.receive::<Report>().unwrap().len();
        }
        drop(ours);
        assert!(channel.receive::<Report>().is_err());
    }
}
