//! How a database notifies this client whose turn it is.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Error;

use crate::engines::notifications::{ListenError, NotificationListener, Source};
use crate::engines::sql::connection::Options;
use crate::engines::sql::fault::What;
use crate::engines::sql::link::Link;

/// After so long without a message, a database is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Database {
    link: Arc<Link>,
    #[cfg_attr(not(feature = "mysql"), expect(dead_code, reason = "PostgreSQL needs no table to listen"))]
    table: String,
}

impl Database {
    pub(super) fn new(link: Arc<Link>, table: &str) -> Self {
        Self { link, table: table.to_owned() }
    }
}

impl Source for Database {
    type Message = ();

    async fn listen(&self, listener: &NotificationListener<Self>) -> Result<(), ListenError> {
        let ended = match self.link.options() {
            #[cfg(feature = "postgres")]
            Options::Postgres(options) => self.listen_to_postgres((**options).clone(), listener).await,
            #[cfg(feature = "mysql")]
            Options::MySql(_) => self.listen_to_mysql(listener).await,
        };
        ended.map_err(|error| ListenError {
            // Without notifications, waiters are slow: that costs more than one connection less for requests.
            retry_soon: self.link.what(&error) == What::Exhausted && self.link.make_room(),
            message: error.to_string(),
        })
    }
}

/// What does not answer in this time does not answer.
async fn in_time<T>(limit: Duration, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(limit, request).await.map_err(late)?
}
