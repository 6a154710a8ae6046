//! What several test files need.

use std::io::ErrorKind;
use std::time::Duration;

use tenure_testkit::RedisConnection;

/// How long silence is listened to. It can only hide a fault, never report one that is not there.
const SHORT: Duration = Duration::from_millis(200);

/// Whether nothing comes, neither an answer nor the end, for a short while.
pub(crate) fn is_silent(connection: &mut RedisConnection) -> bool {
    connection.set_limit(SHORT).unwrap();
    let heard = connection.receive();
    connection.set_limit(Duration::from_mins(1)).unwrap();
    heard.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}
