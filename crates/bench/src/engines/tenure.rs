//! Ours, whatever the engine: one client of the library, shared by all that contend, as an application has it.

use anyhow::Result;
use tenure::Client;

use crate::workload::{Contender, Held, LockClient, Pair};

pub(crate) struct Tenure {
    client: Client,
    name: &'static str,
}

impl Tenure {
    pub(crate) async fn connect(name: &'static str, url: &str) -> Result<Self> {
        Ok(Self { client: Client::connect(url).await?, name })
    }
}

impl Contender for Tenure {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(Ours(self.client.clone())))
    }
}

struct Ours(Client);

impl LockClient for Ours {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let guard = self.0.lock(key).acquire().await?;
            held.await;
            guard.release().await?;
            Ok(())
        })
    }
}
