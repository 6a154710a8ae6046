//! One connection through a proxy: a client, its server, and a pump for each direction.
//!
//! A pump that cannot write any more does not tell the sender: its peer's own end is read by the *other*
//! pump, and travels through the gate like everything else, so that a cut network hides it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::gate::{Direction, Gate, Passage};
use super::is_passing;

/// How long bytes may stand in the gate before they step back and enter anew.
const WRITE_LIMIT: Duration = Duration::from_millis(20);
/// How long the server may take to accept; on loopback its kernel does so at once, or refuses.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    /// Connected once the network is whole.
    server: OnceLock<TcpStream>,
    closed: AtomicBool,
    /// Nothing passes on it, whatever passes on others.
    cut: AtomicBool,
    hole: AtomicBool,
}

impl Link {
    pub(super) fn new(client: TcpStream) -> io::Result<Self> {
        prepare(&client)?;
        Ok(Self {
            client,
            server: OnceLock::new(),
            closed: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            hole: AtomicBool::new(false),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    pub(super) fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// Whether an answer was lost.
    pub(super) fn has_hole(&self) -> bool {
        self.hole.load(Ordering::SeqCst)
    }

    pub(super) fn note_hole(&self) {
        self.hole.store(true, Ordering::SeqCst);
    }

    /// Closes both sides at once, whatever the network is like.
    pub(super) fn close(&self, gate: &Gate) {
        gate.close(|| self.closed.store(true, Ordering::SeqCst));
        // An error here means that it is closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = self.server.get() {
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Carries bytes until both directions have ended.
    pub(super) fn run(&self, gate: &Gate, server: SocketAddr) {
        if let Some(server) = self.connect(gate, server) {
            thread::scope(|scope| {
                scope.spawn(|| self.pump(gate, Direction::Answers, server, &self.client));
                self.pump(gate, Direction::Requests, &self.client, server);
            });
        } else {
            // Refused. The client is told through the gate, like any other answer.
            self.pass_end(gate, Direction::Answers, Shutdown::Both, &self.client);
            drain(&self.client);
        }
        // By hand: the proxy's list still holds this link, so nothing is dropped yet.
        self.close(gate);
    }

    fn connect(&self, gate: &Gate, server: SocketAddr) -> Option<&TcpStream> {
        let Passage::Open(inside) = gate.enter(self, Direction::Requests) else {
            return None;
        };
        let stream = TcpStream::connect_timeout(&server, CONNECT_LIMIT).ok()?;
        prepare(&stream).ok()?;
        let stream = self.server.get_or_init(|| stream);
        drop(inside);
        // Severed in the meantime, by somebody who did not see the new socket.
        (!self.is_closed()).then_some(stream)
    }

    fn pump(&self, gate: &Gate, direction: Direction, mut from: &TcpStream, to: &TcpStream) {
        let mut buffer = [0; 16 * 1024];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return self.pass_end(gate, direction, Shutdown::Write, to),
                Ok(length) => {
                    if self.pass(gate, direction, &buffer[..length], to).is_err() {
                        return drain(from);
                    }
                }
                Err(error) if is_passing(&error) => {}
                Err(_) => return self.pass_end(gate, direction, Shutdown::Both, to),
            }
        }
    }

    fn pass(
        &self,
        gate: &Gate,
        direction: Direction,
        mut bytes: &[u8],
        mut to: &TcpStream,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            match gate.enter(self, direction) {
                Passage::Open(_inside) => match to.write(bytes) {
                    Ok(sent) => bytes = &bytes[sent..],
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error),
                },
                Passage::Lost => return Ok(()),
                Passage::Closed => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
        Ok(())
    }

    fn pass_end(&self, gate: &Gate, direction: Direction, how: Shutdown, to: &TcpStream) {
        // A lost end leaves `to` open and silent, which is what a lost end looks like.
        if let Passage::Open(_inside) = gate.enter(self, direction) {
            let _ = to.shutdown(how);
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))
}

/// Reads and forgets until the sender ends: its bytes have nowhere to go, but it must not learn that here.
fn drain(mut from: &TcpStream) {
    let mut buffer = [0; 16 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(_) => return,
        }
    }
}
