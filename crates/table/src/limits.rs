//! The limits of a table. Every replica must refuse the same requests, so the limits are a part of the state, and a
//! [command](crate::Command::SetLimits) changes them.

use serde::{Deserialize, Serialize};

/// The limits of a table. Each has its own error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open sessions. Each costs the leader a timer.
    pub sessions: u32,
    /// Resources that are held, waited for or observed, or that have a value or a recorded start. This bounds the memory.
    pub names: u32,
    /// Locks that one session holds or waits for. This bounds the work at the end of a session.
    pub locks_per_session: u32,
    /// Requests that wait for one resource. A request beyond the limit is refused at once.
    pub waiters_per_resource: u32,
    /// Names that one session observes. This bounds the work at the end of a session.
    pub observed_per_session: u32,
    /// Sessions that observe one name. This bounds the messages that one change of its holders costs.
    pub observers_per_resource: u32,
    /// Locks in one request for several locks.
    pub items_per_request: u32,
    /// Answers that a session has not acknowledged. This bounds the memory that one client can use.
    pub answers_per_session: u32,
    /// Bytes of a name. At most [`LockName::MAX_BYTES`](crate::LockName::MAX_BYTES).
    pub name_bytes: u32,
    /// Bytes of a label.
    pub label_bytes: u32,
    /// Bytes of a value. The default is [`Value::MAX_BYTES`](crate::Value::MAX_BYTES).
    pub value_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 100_000,
            names: 10_000_000,
            locks_per_session: 100_000,
            waiters_per_resource: 100_000,
            observed_per_session: 10_000,
            observers_per_resource: 10_000,
            items_per_request: 256,
            answers_per_session: 1_024,
            name_bytes: 512,
            label_bytes: 256,
            value_bytes: 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_types() {
        let limits = Limits::default();
        assert_eq!(limits.name_bytes as usize, crate::LockName::MAX_BYTES);
        assert_eq!(limits.value_bytes as usize, crate::Value::MAX_BYTES);
    }
}
