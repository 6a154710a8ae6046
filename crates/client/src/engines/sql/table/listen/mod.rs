//! Notifications by the database: it is the turn of one of this client's waiters.

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

/// The silence after which the connection to the database is checked.
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
            // Without notifications, waiters are slow: that costs more than a connection less for requests.
            retry_soon: self.link.what(&error) == What::Exhausted && self.link.make_room(),
            message: error.to_string(),
        })
    }
}

/// Fails a request that is not answered within the time limit.
async fn in_time<T>(limit: Duration, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Error::Io(std::io::ErrorKind::TimedOut.into());
    tokio::time::timeout(limit, request).await.map_err(late)?
}
