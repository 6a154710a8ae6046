//! A network of a test's own, in which a client runs that can be cut off.
//!
//! A [`Proxy`](crate::Proxy) cuts the connections that lead through it, but its two ends stay connected to it: the
//! kernel of each side still has somebody who acknowledges. Here packets are lost, and so the kernel of a client
//! that is cut off finds out what it would find out: that nobody acknowledges, in the end by a time limit.
//!
//! It is a network namespace, joined to the network of the machine by a pair of virtual Ethernet cards. Two rules:
//! - **A cut is silent.** Taking a card down would tell both sides: the other card loses its carrier, and the
//!   machine its route. Instead each side is told a wrong hardware address of the other. Packets leave as ever,
//!   and arrive at a card that throws them away, since they are not for it. Any kernel with such cards can do it,
//!   and one that can lose packets by itself (`netem`) is not everywhere.
//! - **Nothing is left behind.** The namespace has no name that could stay: it lives as long as a process that was
//!   started for nothing else, and dies with the test. The cards vanish with the namespace.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::geteuid;

use crate::process::{Process, folder};
use crate::program;

/// The networks to choose from: four addresses each in 198.18.0.0/15, which is set aside for tests of networks,
/// and which nobody else has.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const NETWORKS: u32 = 1 << 15;

/// The card inside. That outside has a name that says which network it is: no two can have the same.
const CARD_INSIDE: &str = "tenure";

const HARDWARE_OUTSIDE: &str = "02:00:00:00:00:01";
const HARDWARE_INSIDE: &str = "02:00:00:00:00:02";
const HARDWARE_OF_NOBODY: &str = "02:00:00:00:00:03";

/// What keeps the namespace: it does nothing, for ever. The card inside is to have no address of IPv6, under which
/// it could be reached in a cut.
const KEEPER: &str = "\
set -e
ipv6=/proc/sys/net/ipv6/conf/default/disable_ipv6
if [ -e $ipv6 ]; then echo 1 >$ipv6; fi
exec sleep infinity";

/// What a program is run through, once it is sure to die with its parent. A parent that has died before it was
/// asked would not be noticed any more, and the program would keep the network for ever.
const UNLESS_ORPHAN: &str = "\
if [ \"$PPID\" != \"$0\" ]; then echo 'not started by the process that has the network' >&2; exit 1; fi
exec \"$@\"";

/// A network of a test's own. It is removed when this is dropped, or when the test dies in whatever way.
#[derive(Debug)]
pub struct Netns {
    keeper: Process,
    card: String,
    inside: Ipv4Addr,
    outside: Ipv4Addr,
}

impl Netns {
    /// A new network, in which there is nobody yet, and which is not cut off.
    ///
    /// # Panics
    ///
    /// If this process may not make a network, which needs root.
    #[track_caller]
    #[expect(
        clippy::new_without_default,
        reason = "it makes something in the kernel, which no default should"
    )]
    pub fn new() -> Self {
        assert!(
            geteuid().is_root(),
            "a network of a test's own must be made, which needs root: run the tests as root, or in a container"
        );
        let mut unshare = Command::new(program::require("unshare"));
        unshare.args(["--net", "--", "sh", "-c", KEEPER]);
        let mut keeper = Process::start("the keeper of a network", folder("tenure-netns-"), unshare);
        let comm = format!("/proc/{}/comm", keeper.pid());
        // By then it has done everything else.
        keeper.wait_until_ready(|| fs::read_to_string(&comm).is_ok_and(|name| name.trim_end() == "sleep"));
        // It has nothing more to say, and a folder would stay if this process is killed.
        keeper.remove_folder();

        let number = add_cards(keeper.pid());
        let [outside, inside] = [1, 2].map(|host| Ipv4Addr::from(FIRST_ADDRESS + 4 * number + host));
        let netns = Self { keeper, card: card_outside(number), inside, outside };
        batch(ip(), &switch_on(&netns.card, outside));
        batch(netns.inside(&ip()), &format!("link set lo up\n{}", switch_on(CARD_INSIDE, inside)));
        netns.heal();
        netns
    }

    /// A command that runs `program` in this network. It reaches the machine under [`Netns::host_addr`], and
    /// nobody else.
    ///
    /// It is to be started by this process itself, and dies with the thread that did so, which is right for a
    /// client of one test. One that outlives the thread is given to [`Process::start`], and then dies with the
    /// test process.
    ///
    /// # Panics
    ///
    /// If the program is not installed, with advice on how to change that.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program::require("sh"));
        command.args(["-c", UNLESS_ORPHAN, &process::id().to_string()]).arg(program::require(program));
        let options = ["--pdeathsig", "KILL", "--"].map(OsStr::new);
        self.inside(&program::through("setpriv", &options, &command))
    }

    /// The address of the machine in this network. The kit's servers listen on loopback only:
    /// [`Proxy::listening_on`](crate::Proxy::listening_on) leads there from here.
    pub fn host_addr(&self) -> IpAddr {
        self.outside.into()
    }

    /// The address under which the machine reaches what runs in this network.
    pub fn addr(&self) -> IpAddr {
        self.inside.into()
    }

    /// Cuts it off: nothing passes in either direction, and nobody is told. Connections stay open, and who sends
    /// hears nothing.
    #[track_caller]
    pub fn cut(&self) {
        self.introduce(HARDWARE_OF_NOBODY, HARDWARE_OF_NOBODY);
    }

    /// Mends what [`Netns::cut`] did. What was sent in the meantime is lost, and arrives when it is sent again: TCP
    /// does so by itself, the later the longer the cut was.
    #[track_caller]
    pub fn heal(&self) {
        self.introduce(HARDWARE_INSIDE, HARDWARE_OUTSIDE);
    }

    /// Tells each side the hardware address of the other. It never asks for it, and so never learns another.
    #[track_caller]
    fn introduce(&self, of_inside: &str, of_outside: &str) {
        let Self { card, inside, outside, .. } = self;
        batch(ip(), &neighbour(card, *inside, of_inside));
        batch(self.inside(&ip()), &neighbour(CARD_INSIDE, *outside, of_outside));
    }

    fn inside(&self, command: &Command) -> Command {
        let namespace = format!("--net=/proc/{}/ns/net", self.keeper.pid());
        program::through("nsenter", &[&namespace, "--"].map(OsStr::new), command)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Both cards go at once, and now. The kernel removes the namespace when it has time, and only after the
        // last process in there.
        let deleted = ip().args(["link", "delete", &self.card]).output();
        // A panic here would hide the one that led to it.
        if let Ok(output) = deleted
            && !output.status.success()
        {
            eprintln!("{} stays: {}", self.card, String::from_utf8_lossy(&output.stderr).trim());
        }
    }
}

/// Makes a pair of cards, one of which is in the namespace of this process, and returns the number of their network.
#[track_caller]
fn add_cards(keeper: u32) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test binaries that run side by side start at different places, and do not often want the same.
    let first = process::id().wrapping_mul(101);
    for _ in 0..NETWORKS {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % NETWORKS;
        let mut add = ip();
        add.args(["link", "add", &card_outside(number), "address", HARDWARE_OUTSIDE, "type", "veth"]);
        add.args(["peer", "name", CARD_INSIDE, "address", HARDWARE_INSIDE, "netns", &keeper.to_string()]);
        let output = add.output().expect("a program that was found can be started");
        if output.status.success() {
            return number;
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            complaint.contains("File exists"),
            "cannot make a network (a container needs CAP_NET_ADMIN for it, the kernel needs veth): {complaint}"
        );
    }
    panic!("all {NETWORKS} networks are taken: `ip link` shows by whom");
}

fn card_outside(number: u32) -> String {
    format!("tenure-{number}")
}

/// The lines that give a card its address, and switch it on.
fn switch_on(card: &str, addr: Ipv4Addr) -> String {
    format!("address add {addr}/30 dev {card}\nlink set {card} up")
}

/// The line that says which hardware address somebody has.
fn neighbour(card: &str, of: Ipv4Addr, hardware: &str) -> String {
    format!("neighbour replace {of} lladdr {hardware} dev {card} nud permanent")
}

fn ip() -> Command {
    Command::new(program::require("ip"))
}

/// Has `ip` do what the lines say.
#[track_caller]
fn batch(mut ip: Command, lines: &str) {
    let mut child = ip
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a program that was found can be started");
    // One that ends early says why, below.
    let _ = child.stdin.take().expect("it was just asked for").write_all(lines.as_bytes());
    let output = child.wait_with_output().expect("a child of ours can be waited for");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`ip` did not do this:\n{lines}\n{complaint}");
}
