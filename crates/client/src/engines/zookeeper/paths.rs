//! Where locks are in ZooKeeper's tree, and what the children of a lock are.
//!
//! The lock `orders/42` is the node `/root/orders/42`, as in other languages' recipes. What ZooKeeper would not have in a path is written with
//! `%` and two digits, as in URLs; what starts with `%` and goes on otherwise is the engine's own.

use std::fmt::Write;

use percent_encoding::percent_decode_str;
use tenure_table::{GrantId, LockName, Mode};

use crate::engines::queue::{Entry, Queue, called, whose};

/// The lock's value. Curator compares the names of all children: `~` comes after the digits of a sequence, so this node is in nobody's way.
pub(super) const VALUE: &str = "~%value";
/// The last start of what the lock protects, named for the same reason.
pub(super) const START: &str = "~%start";
/// The node of a holder by the recipe `simple`, which all its waiters watch. kazoo and Curator both take it for the first in the queue.
pub(super) const SIMPLE: &str = "%lock__lock__-0000000001";
/// A node that is changed to learn what time it is.
const CLOCK: &str = "%clock";

/// What the nodes of lock recipes end in, before the sequence, and how they lock: kazoo's, and Curator's.
const RECIPES: [(&str, Mode); 5] = [
    ("__lock__", Mode::Ex),
    ("__rlock__", Mode::Pr),
    ("__READ__", Mode::Pr),
    ("__WRIT__", Mode::Ex),
    ("lock-", Mode::Ex),
];

/// Whose naming our entries follow. kazoo and Curator each read the sequence only behind a mark of their own, so one name cannot serve both.
/// We read both, so clients with different settings exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    Kazoo,
    Curator,
}

impl Naming {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "kazoo" => Ok(Self::Kazoo),
            "curator" => Ok(Self::Curator),
            _ => Err(format!("`names` is `kazoo` or `curator`, and not `{text}`")),
        }
    }

    /// The text between the grant and the sequence.
    const fn mark(self) -> &'static str {
        match self {
            Self::Kazoo => "__lock__",
            Self::Curator => "-lock-",
        }
    }

    /// The name of an entry of ours, without its sequence.
    pub(super) fn entry(self, grant: GrantId, mode: Mode) -> String {
        format!("{}{}", called(grant, mode), self.mark())
    }

    /// The grant and mode of a node, if it is an entry of ours under this naming.
    fn read(self, node: &str) -> Option<(GrantId, Mode)> {
        whose(node.rsplit_once(self.mark())?.0)
    }
}

/// The engine's part of the tree.
#[derive(Clone, Debug)]
pub(super) struct Root(String);

impl Root {
    /// The one at this path, which starts with `/` and does not end with one; empty for the whole tree.
    pub(super) fn new(path: String) -> Self {
        Self(path)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The node of a lock.
    pub(super) fn lock(&self, name: &LockName) -> String {
        self.below(name.as_str())
    }

    /// The node for the beginning of names, up to the last `/` in it; and what a child of it must begin with.
    pub(super) fn folder<'a>(&self, prefix: &'a str) -> (String, &'a str) {
        match prefix.rsplit_once('/') {
            Some((folder, rest)) => (self.below(folder), rest),
            None => (self.0.clone(), prefix),
        }
    }

    fn below(&self, name: &str) -> String {
        let mut path = self.0.clone();
        for (at, segment) in name.split('/').enumerate() {
            path.push('/');
            // ZooKeeper keeps what is about itself there.
            let reserved = at == 0 && self.0.is_empty() && segment == "zookeeper";
            encode(segment, reserved, &mut path);
        }
        path
    }

    /// The node that tells the time.
    pub(super) fn clock(&self) -> String {
        format!("{}/{CLOCK}", self.0)
    }

    /// The nodes that must be there before a node of this lock can be, from the top; and how many of them are the root's.
    pub(super) fn ancestors<'a>(&self, lock: &'a str) -> (Vec<&'a str>, usize) {
        let ends = lock.match_indices('/').map(|(at, _)| at).skip(1).chain([lock.len()]);
        (ends.map(|end| &lock[..end]).collect(), self.0.matches('/').count())
    }
}

/// A part of a name, as it stands in a path.
fn encode(segment: &str, reserved: bool, path: &mut String) {
    if segment.is_empty() {
        // Nothing else becomes this.
        path.push('%');
        return;
    }
    let only_dots = segment == "." || segment == "..";
    // What looks like the node of a recipe would be taken for one who waits for the lock above it.
    let looks_like_an_entry = recipe(segment).is_some();
    let last = segment.char_indices().last().map_or(0, |(at, _)| at);
    for (at, char) in segment.char_indices() {
        // In UTF-16, which ZooKeeper looks at, all beyond the first 2^16 is made of what it refuses.
        let refused = char.is_control()
            || ('\u{e000}'..='\u{f8ff}').contains(&char)
            || char >= '\u{fff0}'
            || char == '%';
        if refused || only_dots || (reserved && at == 0) || (looks_like_an_entry && at == last) {
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(path, "%{byte:02X}");
            }
        } else {
            path.push(char);
        }
    }
}

/// The part of a name that a node stands for; nothing for the engine's own.
fn decode(node: &str) -> Option<String> {
    if node == "%" {
        return Some(String::new());
    }
    let hex = |at: usize| node.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    if node.match_indices('%').any(|(at, _)| !(hex(at + 1) && hex(at + 2))) {
        return None;
    }
    percent_decode_str(node).decode_utf8().ok().map(Into::into)
}

/// How the node of a recipe locks, and in which order.
fn recipe(node: &str) -> Option<(Mode, i64)> {
    let (mode, sequence) =
        RECIPES.iter().find_map(|(mark, mode)| node.rsplit_once(mark).map(|(_, rest)| (*mode, rest)))?;
    // Ten digits; after 2^31 of them, a sign and the rest.
    let digits = sequence.strip_prefix('-').unwrap_or(sequence);
    let is_sequence = sequence.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((mode, is_sequence.then(|| sequence.parse().ok())??))
}

/// The children of a lock's node.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Who holds and who waits. One that holds by the recipe `simple` comes before all others, wherever it stands: it goes away by itself if
    /// somebody was there before it.
    pub(super) queue: Queue,
    /// Parts of names of locks below this one, and their nodes.
    pub(super) below: Vec<(String, String)>,
}

impl Children {
    pub(super) fn new(nodes: Vec<String>) -> Self {
        let (mut entries, mut below) = (Vec::new(), Vec::new());
        for node in nodes {
            if node == SIMPLE {
                entries.push(Entry { order: i64::MIN, mode: Mode::Ex, grant: None, node });
            } else if let Some((mode, order)) = recipe(&node) {
                let ours = Naming::Kazoo.read(&node).or_else(|| Naming::Curator.read(&node));
                let (grant, mode) = ours.map_or((None, mode), |(grant, mode)| (Some(grant), mode));
                entries.push(Entry { order, mode, grant, node });
            } else if let Some(part) = decode(&node) {
                below.push((part, node));
            }
        }
        unwrap_sequence(&mut entries);
        Self { queue: Queue::new(entries), below }
    }
}

/// A sequence has 32 bits: what comes after the largest is the smallest.
fn unwrap_sequence(entries: &mut [Entry]) {
    const LATE: i64 = 1 << 30;
    if entries.iter().any(|entry| entry.order > LATE) {
        for entry in entries.iter_mut().filter(|entry| (i32::MIN.into()..0).contains(&entry.order)) {
            entry.order += 1 << 32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn lock(root: &str, name: &str) -> String {
        Root::new(root.into()).lock(&LockName::parse(name).unwrap())
    }

    #[test]
    fn a_name_is_a_path() {
        assert_eq!(lock("/root", "orders/42"), "/root/orders/42");
        assert_eq!(lock("", "orders/ä-ö"), "/orders/ä-ö");
        for (name, path) in [
            ("/a", "/%/a"),
            ("a//b", "/a/%/b"),
            ("a/", "/a/%"),
            ("100%", "/100%25"),
            ("%", "/%25"),
            ("~%value", "/~%25value"),
            ("./../...", "/%2E/%2E%2E/..."),
            ("zookeeper/zookeeper", "/%7Aookeeper/zookeeper"),
            ("a/x__lock__0000000007", "/a/x__lock__000000000%37"),
            ("a/lock-0123456789", "/a/lock-012345678%39"),
            ("a/0123456789", "/a/0123456789"),
            ("🔒", "/%F0%9F%94%92"),
        ] {
            assert_eq!(lock("", name), path, "{name}");
            let parts: Option<Vec<_>> = path[1..].split('/').map(decode).collect();
            assert_eq!(parts.expect("all of it is of a name").join("/"), name);
        }
    }

    #[test]
    fn what_is_above_a_lock_is_made_before_it() {
        let root = Root::new("/a/b".into());
        assert_eq!(root.ancestors("/a/b/c/d"), (vec!["/a", "/a/b", "/a/b/c", "/a/b/c/d"], 2));
        assert_eq!(Root::new(String::new()).ancestors("/c"), (vec!["/c"], 0));
        assert_eq!(root.folder("x/y"), ("/a/b/x".into(), "y"));
        assert_eq!(root.folder("x"), ("/a/b".into(), "x"));
    }

    #[test]
    fn children_are_told_apart() {
        let (reader, other) = (random::grant_id(), random::grant_id());
        let nodes = [
            format!("{}0000000003", Naming::Kazoo.entry(reader, Mode::Pr)),
            format!("{}0000000007", Naming::Curator.entry(other, Mode::Cr)),
            "694d71ddf2dd5a8f__lock__0000000001".into(),
            "694d71ddf2dd5a8f__rlock__0000000002".into(),
            "_c_91b4-lock-0000000004".into(),
            "_c_91b4__WRIT__0000000005".into(),
            // Not ours, whatever it is called.
            format!("{}__READ__0000000006", called(reader, Mode::Nl)),
            VALUE.into(),
            START.into(),
            SIMPLE.into(),
            "42".into(),
            "x__lock__000000000%37".into(),
            "short__lock__123".into(),
        ];
        let children = Children::new(nodes.into());
        let entries: Vec<_> = children.queue.entries().iter().map(|e| (e.order, e.mode, e.grant)).collect();
        assert_eq!(
            entries,
            [
                (i64::MIN, Mode::Ex, None),
                (1, Mode::Ex, None),
                (2, Mode::Pr, None),
                (3, Mode::Pr, Some(reader)),
                (4, Mode::Ex, None),
                (5, Mode::Ex, None),
                (6, Mode::Pr, None),
                (7, Mode::Cr, Some(other)),
            ]
        );
        let below: Vec<_> = children.below.iter().map(|(part, _)| part.as_str()).collect();
        assert_eq!(below, ["42", "x__lock__0000000007", "short__lock__123"]);
    }

    #[test]
    fn a_sequence_that_has_run_over_goes_on() {
        let nodes = ["2147483647", "-2147483648", "-2147483647"];
        let children = Children::new(nodes.iter().rev().map(|n| format!("a__lock__{n}")).collect());
        let order: Vec<_> =
            children.queue.entries().iter().map(|e| e.node.trim_start_matches("a__lock__")).collect();
        assert_eq!(order, nodes);
    }
}
