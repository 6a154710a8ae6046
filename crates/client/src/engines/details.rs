//! The description of a holder or waiter in an inspection: a text that engines store beside a lock and never decide by.

use std::fmt::{self, Display};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tenure_table::{GrantId, Mode, OwnerId};

use crate::engine::AcquireRequest;
use crate::info::Member;

#[derive(Debug, Default, Deserialize)]
struct Details {
    label: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    since_ms: Option<u64>,
    /// The grant, on engines where the key of the text does not contain it.
    grant: Option<GrantId>,
}

/// Builds a member from its stored description. A member with an unreadable description is still a member.
pub(super) fn member(grant: GrantId, owner: OwnerId, mode: Mode, details: &str) -> Member {
    let details: Details = serde_json::from_str(details).unwrap_or_default();
    let mut member = Member::new(details.grant.unwrap_or(grant), owner, mode);
    member.label = details.label;
    member.host = details.host;
    member.pid = details.pid;
    member.since =
        details.since_ms.and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
    member
}

/// The longest stored part of a label, in bytes: servers have limits, and labels are for people to read.
const LONGEST_LABEL: usize = 1024;

/// The part of the description that is the same for all locks of this process: its host and its process id.
#[derive(Debug)]
pub(super) struct ProcessInfo(String);

impl ProcessInfo {
    pub(super) fn new() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self(format!(r#""host":{},"pid":{}"#, json(&host), std::process::id()))
    }

    /// Returns the description for a request, with its grant if the key of the text does not contain it. The text is formatted by hand, and
    /// directly into its destination, since this runs for every lock.
    pub(super) fn details<'a>(
        &'a self,
        request: &'a AcquireRequest,
        now: SystemTime,
        grant: Option<GrantId>,
    ) -> impl Display + use<'a> {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // A `u64` is formatted faster than a `u128`.
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        fmt::from_fn(move |f| {
            write!(f, r#"{{{},"since_ms":{since_ms}"#, self.0)?;
            if let Some(label) = &request.label {
                let shown = label.floor_char_boundary(LONGEST_LABEL);
                write!(f, r#","label":{}"#, json(&label[..shown]))?;
            }
            if let Some(grant) = grant {
                write!(f, r#","grant":"{grant}""#)?;
            }
            f.write_str("}")
        })
    }
}

fn json(text: &str) -> String {
    serde_json::to_string(text).expect("a text can be written as JSON")
}
