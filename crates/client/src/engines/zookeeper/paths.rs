//! The paths of locks in ZooKeeper's tree, and the meaning of a lock's children.
//!
//! The lock `orders/42` is the node `/root/orders/42`, as in other languages' recipes. Characters that ZooKeeper refuses in a path are
//! written as `%` and two digits, as in URLs. Other names that start with `%` belong to the engine.

use std::fmt::Write;

use percent_encoding::percent_decode_str;
use tenure_table::{GrantId, LockName, Mode};

use crate::engines::queue::{Entry, Queue, called, whose};

/// The lock's value. Curator compares the names of all children: `~` sorts after the digits of a sequence, so this node keeps no entry
/// waiting.
pub(super) const VALUE: &str = "~%value";
/// The last start of the work that the lock protects, named for the same reason.
pub(super) const START: &str = "~%start";
/// The node of a holder by the recipe `simple`, which all its waiters watch. kazoo and Curator both take it for the first in the queue.
pub(super) const SIMPLE: &str = "%lock__lock__-0000000001";
/// A node that is written to read the servers' clock.
const CLOCK: &str = "%clock";

/// The texts before the sequence in the nodes of lock recipes, with their modes: kazoo's, and Curator's.
const RECIPES: [(&str, Mode); 5] = [
    ("__lock__", Mode::Ex),
    ("__rlock__", Mode::Pr),
    ("__READ__", Mode::Pr),
    ("__WRIT__", Mode::Ex),
    ("lock-", Mode::Ex),
];

/// The naming of the engine's entries. kazoo and Curator each read the sequence only after their own mark, so one name cannot serve both.
/// The engine reads both, so clients with different settings exclude each other.
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

    /// Returns the text between the grant and the sequence.
    const fn mark(self) -> &'static str {
        match self {
            Self::Kazoo => "__lock__",
            Self::Curator => "-lock-",
        }
    }

    /// Returns the name of an entry, without its sequence.
    pub(super) fn entry(self, grant: GrantId, mode: Mode) -> String {
        format!("{}{}", called(grant, mode), self.mark())
    }

    /// Returns the grant and mode of a node, if it is an entry of this engine under this naming.
    fn read(self, node: &str) -> Option<(GrantId, Mode)> {
        whose(node.rsplit_once(self.mark())?.0)
    }
}

/// The engine's part of the tree.
#[derive(Clone, Debug)]
pub(super) struct Root(String);

impl Root {
    /// Creates the root at this path, which starts with `/` and does not end with one; empty for the whole tree.
    pub(super) fn new(path: String) -> Self {
        Self(path)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the node of a lock.
    pub(super) fn lock(&self, name: &LockName) -> String {
        self.below(name.as_str())
    }

    /// Returns the node for a prefix of names, up to the last `/` in it; and the beginning of its children's names.
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
            // ZooKeeper keeps its own data there.
            let reserved = at == 0 && self.0.is_empty() && segment == "zookeeper";
            encode(segment, reserved, &mut path);
        }
        path
    }

    /// Returns the node for reading the servers' clock.
    pub(super) fn clock(&self) -> String {
        format!("{}/{CLOCK}", self.0)
    }

    /// Returns the nodes that must exist before a node of this lock can be created, from the top; and the number of them in the root.
    pub(super) fn ancestors<'a>(&self, lock: &'a str) -> (Vec<&'a str>, usize) {
        let ends = lock.match_indices('/').map(|(at, _)| at).skip(1).chain([lock.len()]);
        (ends.map(|end| &lock[..end]).collect(), self.0.matches('/').count())
    }
}

/// Encodes a part of a name for a path.
fn encode(segment: &str, reserved: bool, path: &mut String) {
    if segment.is_empty() {
        // No other part is encoded like this.
        path.push('%');
        return;
    }
    let only_dots = segment == "." || segment == "..";
    // A name like that of a recipe's node would count as an entry of the lock above it.
    let looks_like_an_entry = recipe(segment).is_some();
    let last = segment.char_indices().last().map_or(0, |(at, _)| at);
    for (at, char) in segment.char_indices() {
        // ZooKeeper checks UTF-16, and refuses the surrogates in which all characters beyond the first 2^16 are written.
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

/// Returns the part of a name that a node represents; `None` for the engine's own nodes.
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

/// Returns the mode and the sequence of a recipe's node.
fn recipe(node: &str) -> Option<(Mode, i64)> {
    let (mode, sequence) =
        RECIPES.iter().find_map(|(mark, mode)| node.rsplit_once(mark).map(|(_, rest)| (*mode, rest)))?;
    // Ten digits; after 2^31 entries, a sign and the rest.
    let digits = sequence.strip_prefix('-').unwrap_or(sequence);
    let is_sequence = sequence.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((mode, is_sequence.then(|| sequence.parse().ok())??))
}

/// The children of a lock's node.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// The holders and waiters. A holder by the recipe `simple` is before all others, whatever its age: it withdraws if the queue has an
    /// earlier entry.
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

/// Corrects the order after an overflow: a sequence has 32 bits, and the smallest follows the largest.
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
            // Not an entry of this engine, in spite of its name.
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
