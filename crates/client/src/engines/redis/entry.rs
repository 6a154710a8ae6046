//! Holders and waiters as text: the contents that the scripts write into keys, hashes and queues.

use std::fmt::{self, Display};

use redis::Value as Answer;
use tenure_table::{FencingToken, GrantId, Mode, OwnerId};

use crate::engine::AcquireRequest;
use crate::engines::details;
use crate::engines::stranger::another;
use crate::info::Member;

/// The text in a lock's key.
#[derive(Debug)]
pub(in crate::engines) enum Held {
    /// One grant holds the lock.
    One(Member),
    /// One grant holds the lock, and its token is not yet recorded.
    Young(Member),
    /// Several grants hold the lock: they are listed in another key.
    Many {
        /// The mode of the lock.
        mode: Mode,
    },
    /// Another program holds the lock.
    Another(Member),
}

/// The beginning of a lock's text, before the id of its grant.
const OURS: &str = "tenure1 ";

impl Held {
    pub(in crate::engines) fn parse(text: &[u8]) -> Self {
        Self::ours(text).unwrap_or_else(|| Self::Another(another(text)))
    }

    fn ours(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?.strip_prefix(OURS)?;
        if let Some(many) = text.strip_prefix("many ") {
            return Some(Self::Many { mode: many.split(' ').next()?.parse().ok()? });
        }
        let (grant, entry) = text.split_once(' ')?;
        let member = holder(grant.parse().ok()?, entry)?;
        let is_young = entry.split(' ').nth(1) == Some(NOT_YET);
        Some(if is_young { Self::Young(member) } else { Self::One(member) })
    }

    /// Returns whether a text begins like that of a lock of this engine.
    pub(in crate::engines) fn is_ours(text: &[u8]) -> bool {
        text.starts_with(OURS.as_bytes())
    }
}

/// The placeholders for a token: of a lock without one, and of a lock whose token is not yet recorded.
pub(in crate::engines) const NONE: &str = "-";
pub(super) const NOT_YET: &str = "?";

/// Returns the text of a lock with one holder.
pub(in crate::engines) fn text_of(
    request: &AcquireRequest,
    value: GrantId,
    token: &str,
    details: impl Display,
) -> impl Display {
    fmt::from_fn(move |f| write!(f, "{OURS}{value} {} {token} {} {details}", request.owner, request.mode))
}

/// Parses a holder from `OWNER TOKEN MODE DETAILS`.
pub(super) fn holder(grant: GrantId, entry: &str) -> Option<Member> {
    let (owner, rest) = entry.split_once(' ')?;
    let (token, rest) = rest.split_once(' ')?;
    let mut member =
        waiter(grant, &format!("{} {owner} {}", rest.split_once(' ')?.0, rest.split_once(' ')?.1))?;
    member.token = token.parse().ok().map(FencingToken::new);
    Some(member)
}

/// Parses a waiter from `MODE OWNER DETAILS`.
pub(super) fn waiter(grant: GrantId, entry: &str) -> Option<Member> {
    let (mode, rest) = entry.split_once(' ')?;
    let (owner, details) = rest.split_once(' ')?;
    Some(details::member(grant, owner.parse::<OwnerId>().ok()?, mode.parse().ok()?, details))
}

/// Parses pairs of a grant and its entry.
pub(super) fn all(pairs: &[Answer], read: impl Fn(GrantId, &str) -> Option<Member>) -> Vec<Member> {
    let (pairs, _) = pairs.as_chunks::<2>();
    let one = |[grant, entry]: &[Answer; 2]| {
        let (Answer::BulkString(grant), Answer::BulkString(entry)) = (grant, entry) else { return None };
        read(str::from_utf8(grant).ok()?.parse().ok()?, str::from_utf8(entry).ok()?)
    };
    pairs.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::LockName;
    use crate::engines::details::ProcessInfo;
    use crate::random;

    #[test]
    fn a_holder_is_read_as_it_was_written() {
        let mut request = AcquireRequest::new(LockName::parse("a").unwrap());
        request.label = Some("the \"holder\"\nof it".into());
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567);
        let value = random::grant_id();
        let process = ProcessInfo::new();
        let details = process.details(&request, now, Some(request.grant));
        let text = text_of(&request, value, NONE, &details).to_string();
        let Held::One(member) = Held::parse(text.as_bytes()) else { panic!("{text}") };
        assert_eq!((member.grant, member.owner, member.mode), (request.grant, request.owner, Mode::Ex));
        assert_eq!((member.token, member.since, member.pid), (None, Some(now), Some(std::process::id())));
        assert_eq!(member.label.as_deref(), Some("the \"holder\"\nof it"));
        assert!(member.host.is_some());
        let with_token = text.replacen(" - EX", " 1800000000000000 EX", 1);
        let Held::One(member) = Held::parse(with_token.as_bytes()) else { panic!("{with_token}") };
        assert_eq!(member.token, Some(FencingToken::new(1_800_000_000_000_000)));
        let young = text_of(&request, value, NOT_YET, &details).to_string();
        let Held::Young(member) = Held::parse(young.as_bytes()) else { panic!("{young}") };
        assert_eq!((member.grant, member.token), (request.grant, None));
    }

    #[test]
    fn what_is_not_ours_is_another_programs() {
        for text in [
            &b""[..],
            b"d41d8cd98f00b204",
            b"tenure1 ",
            b"tenure1 x y z",
            b"tenure1 many XX - -",
            b"\xff\x00",
        ] {
            let (Held::Another(one), Held::Another(again)) = (Held::parse(text), Held::parse(text)) else {
                panic!("{text:?}")
            };
            assert_eq!(one, again, "the same lock is the same holder");
        }
        assert!(matches!(Held::parse(b"tenure1 many PR - -"), Held::Many { mode: Mode::Pr }));
    }
}
