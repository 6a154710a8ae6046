//! A network that can fail: a TCP proxy on loopback, between a client and its server.
//!
//! Two rules. A fault holds when the call that asked for it returns: after [`Proxy::cut`] not one byte
//! passes. And it never shows a peer what TCP could not show: bytes come in order and without a hole,
//! and a lost packet is silence, not a reset.

mod gate;
mod link;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};

use crate::port;
use gate::Gate;
use link::Link;

/// A proxy before one server; everything flows until told otherwise.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    listener: TcpListener,
    server: Mutex<SocketAddr>,
    gate: Arc<Gate>,
    connections: Mutex<Vec<Connection>>,
    ending: AtomicBool,
}

#[derive(Debug)]
struct Connection {
    link: Arc<Link>,
    thread: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy before `server`, on a free port of 127.0.0.1.
    pub fn to(server: SocketAddr) -> Self {
        Self::listening_on(Ipv4Addr::LOCALHOST.into(), server)
    }

    /// Starts a proxy before `server`, on a free port of this address of the machine, such as
    /// [`Netns::host_addr`](crate::Netns::host_addr).
    ///
    /// # Panics
    ///
    /// If the machine has no such address.
    #[track_caller]
    pub fn listening_on(addr: IpAddr, server: SocketAddr) -> Self {
        let listener = port::listener_on(addr);
        listener.set_nonblocking(true).expect("a listener may be asked not to block");
        let addr = listener.local_addr().expect("a listener has an address");
        let shared = Arc::new(Shared {
            listener,
            server: Mutex::new(server),
            gate: Arc::default(),
            connections: Mutex::default(),
            ending: AtomicBool::new(false),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept_until_ending()
        });
        Self { addr, shared, acceptor: Some(acceptor) }
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port where clients connect to.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Cuts the network, as a partition does: nothing passes in either direction, neither data nor the end
    /// of a connection. New connections are accepted, and hang too.
    pub fn cut(&self) {
        self.shared.gate.cut();
    }

    /// The same for the connections that there are now, and not for those that come: as where a path fails that only some have.
    pub fn cut_present(&self) {
        let mut connections = self.shared.connections();
        self.shared.accept_waiting(&mut connections);
        self.shared.gate.cut_off(connections.iter().map(|connection| &*connection.link));
    }

    /// Mends what [`Proxy::cut`] and [`Proxy::cut_present`] did: everything that was held back arrives now.
    pub fn heal(&self) {
        self.shared.gate.heal(self.shared.connections().iter().map(|connection| &*connection.link));
    }

    /// Closes all connections at once, in both directions, also while the network is cut. New ones are
    /// welcome.
    pub fn sever(&self) {
        // With the lock held, and those that wait in the queue first: a client that has connected before
        // this call is severed, whether or not the acceptor has seen it yet.
        let mut connections = self.shared.connections();
        self.shared.accept_waiting(&mut connections);
        for connection in connections.iter() {
            connection.link.close(&self.shared.gate);
        }
    }

    /// Leads to another server from now on, as an address does that moves in a failover. Connections to the old one are closed.
    pub fn lead_to(&self, server: SocketAddr) {
        self.lead_new_ones_to(server);
        self.sever();
    }

    /// Leads new connections to another server, as a name does that was changed. Those to the old one stay.
    pub fn lead_new_ones_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// Loses the answers, or no longer: requests pass, and what the server sends vanishes.
    ///
    /// A connection that has lost an answer is silent for good, since nothing can come after a hole. It is
    /// closed when answers pass again, as if the peers had at last noticed.
    pub fn drop_answers(&self, dropped: bool) {
        self.shared.gate.drop_answers(dropped);
        if !dropped {
            for connection in self.shared.connections().iter().filter(|connection| connection.link.has_hole())
            {
                connection.link.close(&self.shared.gate);
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        // This also wakes the acceptor, now and whenever it looks at the listener again.
        port::stop_listening(&self.shared.listener);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.sever();
        for connection in std::mem::take(&mut *self.shared.connections()) {
            let _ = connection.thread.join();
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_until_ending(&self) {
        loop {
            let mut events = [PollFd::new(&self.listener, PollFlags::IN)];
            let polled = poll(&mut events, None);
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            if polled.is_ok() {
                self.accept_waiting(&mut self.connections());
            }
        }
    }

    /// Accepts all who wait in the queue. Whoever calls this holds the lock on the connections, so that
    /// nobody is accepted and not yet in the list.
    fn accept_waiting(&self, connections: &mut Vec<Connection>) {
        connections.retain(|connection| !connection.thread.is_finished());
        while let Ok((client, _)) = self.listener.accept() {
            if let Ok(link) = Link::new(client) {
                connections.push(self.start(Arc::new(link)));
            }
        }
    }

    fn start(&self, link: Arc<Link>) -> Connection {
        let server = *self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = Arc::clone(&self.gate);
        let thread = thread::spawn({
            let link = Arc::clone(&link);
            move || link.run(&gate, server)
        });
        Connection { link, thread }
    }
}

/// Whether a socket call ended for no other reason than that its time was up, or that a signal came.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
