//! PostgreSQL has `LISTEN`.

use sqlx::Error;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::{Ear, QUIET, in_time};
use crate::random;

impl Ear {
    /// Hears what is said on a channel of its own, until the connection ends.
    pub(super) async fn hear_postgres(&self, options: PgConnectOptions) -> Result<(), Error> {
        // The pool hides why it cannot connect, and tries for long where the database is full.
        in_time(self.link.limit(), self.link.options().connect(self.link.limit())).await?.close().await;
        let channel = format!("tenure_{}", random::grant_id());
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.link.limit())
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&channel).await?;
        self.set_client(&channel);
        // What was said meanwhile, nobody has heard.
        self.waiting.wake_all();
        loop {
            match tokio::time::timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(message))) => {
                    if let Ok(grant) = message.payload().parse() {
                        self.waiting.ring(grant);
                    }
                }
                Ok(ended) => return ended.map(drop),
                // Nothing was said for a while: perhaps it is no longer heard.
                Err(_) => {
                    let asked = sqlx::Executor::execute(&mut listener, "SELECT 1");
                    in_time(self.link.limit(), asked).await?;
                }
            }
        }
    }
}
