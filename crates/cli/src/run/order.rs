//! What the two processes of `tenure run` say to each other: the front gives orders, the minder reports.
//!
//! A line of JSON each, over a socket pair. With the order to start come descriptors that keep the lock, should the front die.
//! When the socket ends, the other one is gone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

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
    /// KILL comes this much before the deadline, since it takes a moment; not more than a quarter of the grace.
    const KILL_AHEAD: Duration = Duration::from_millis(500);

    pub(super) fn before(deadline: BootTime, grace: Duration) -> Self {
        Self {
            term_at: (deadline - grace).since_boot(),
            kill_at: (deadline - Self::KILL_AHEAD.min(grace / 4)).since_boot(),
        }
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

/// Sends one message, which is far smaller than what a socket holds.
pub(super) fn send(socket: &UnixStream, message: &impl Serialize, with: &[OwnedFd]) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let descriptors: Vec<_> = with.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Channel::MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&line)], &mut ancillary, SendFlags::NOSIGNAL)?;
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

    /// The messages that have come, at least one; an error when the other end is gone.
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
}
