//! With PostgreSQL, a connection waits for notifications with `LISTEN`.

use sqlx::Error;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::{Database, QUIET, in_time};
use crate::engines::notifications::NotificationListener;
use crate::random;

impl Database {
    /// Listens on a separate channel, until the connection ends.
    pub(super) async fn listen_to_postgres(
        &self,
        options: PgConnectOptions,
        waiters: &NotificationListener<Self>,
    ) -> Result<(), Error> {
        // The pool hides the reason why it cannot connect, and retries for long if the database is full. So a plain connection is tried
        // first.
        in_time(self.link.limit(), self.link.options().connect(self.link.limit())).await?.close().await;
        let channel = format!("tenure_{}", random::grant_id());
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.link.limit())
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&channel).await?;
        waiters.opened(&channel);
        loop {
            match tokio::time::timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(message))) => {
                    if let Ok(grant) = message.payload().parse() {
                        waiters.wake(grant, ());
                    }
                }
                Ok(ended) => return ended.map(drop),
                // After a silence, checks that the connection still works.
                Err(_) => {
                    let asked = sqlx::Executor::execute(&mut listener, "SELECT 1");
                    in_time(self.link.limit(), asked).await?;
                }
            }
        }
    }
}
