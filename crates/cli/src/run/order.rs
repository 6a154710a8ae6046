//! The protocol between the two processes of `tenure run`: the front sends orders, the minder sends reports.
//!
//! Each message is a line of JSON over a socket pair. The order to start carries descriptors that keep the lock if the front dies. The end
//! of the stream means that the other process has ended.

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

/// A message from the front to the minder.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Start the command.
    Start(Start),
    /// The deadline has changed.
    Until(Option<Limits>),
    /// Send the command this signal.
    Signal(i32),
    /// Continue the command after a stop. With `terminal`, give it the terminal first.
    Continue { terminal: bool },
    /// The lock is lost: kill all processes at once.
    Kill,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) environment: Vec<(String, Option<String>)>,
    pub(super) limits: Option<Limits>,
    /// How long the command's remaining descendants may take to end after they were asked to.
    pub(super) grace: Duration,
    /// Whether the command gets the terminal.
    pub(super) terminal: bool,
}

/// The times by which the command must end, since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    term_at: Duration,
    kill_at: Duration,
}

impl Limits {
    /// The shortest useful time between SIGTERM and the deadline.
    pub(super) const SHORTEST_GRACE: Duration = Duration::from_millis(100);

    /// The bounds of the time between SIGKILL and the deadline, which is a quarter of the grace. The processes need a moment to end.
    const KILL_AHEAD: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

    pub(super) fn before(deadline: BootTime, grace: Duration) -> Self {
        let ahead = (grace / 4).clamp(Self::KILL_AHEAD.0, Self::KILL_AHEAD.1);
        Self { term_at: (deadline - grace).since_boot(), kill_at: (deadline - ahead).since_boot() }
    }

    /// Returns when the front ends the command itself, if the minder has not: half-way between SIGKILL and the deadline.
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

/// A message from the minder to the front.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// The command runs as this process.
    Started { pid: i32 },
    /// The command could not be started.
    NotStarted { message: String },
    /// The command was stopped by this signal.
    Stopped { signal: i32 },
    /// The command has ended. Unless it ended by itself, all its descendants have ended too.
    Ended(End),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    /// The exit code, as in shells.
    pub(super) code: u8,
    /// The signal that ended the command, if one did.
    pub(super) signal: Option<i32>,
    pub(super) why: Why,
    /// Whether the command was asked to end.
    pub(super) asked: bool,
    /// The processes that it left running, if it ended by itself.
    pub(super) left: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Why {
    /// By itself, or after a signal from another process.
    ByItself,
    /// The lock could not be kept: the command was asked to end before the deadline, or killed.
    Deadline,
    /// The front reported that the lock is lost.
    Lost,
}

/// Whether a receiver that does not read may block the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    Wait,
    /// Fail if the socket is full.
    None,
}

/// Sends one message. A message is much smaller than the buffer of a socket.
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
    /// The received descriptors. They are open until this is dropped, and inherited by the command.
    kept: Vec<OwnedFd>,
}

impl Channel {
    const MOST_DESCRIPTORS: usize = 8;

    pub(super) const fn new(socket: UnixStream) -> Self {
        Self { socket, unread: Vec::new(), kept: Vec::new() }
    }

    /// Returns the complete messages. Fails if the other process has ended.
    pub(super) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<Vec<M>> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Self::MOST_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        // Without CMSG_CLOEXEC, because the command inherits the descriptors that keep the lock.
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

    /// Unlocks the received descriptors, even if other processes have inherited them.
    pub(super) fn unlock_kept(&self) {
        for descriptor in &self.kept {
            // A descriptor that is not a lock file, such as a connection, is closed when this process ends.
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
