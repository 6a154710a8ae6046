//! Ours, whatever the engine: one client of the library, shared by all that contend, as an application has it; or several, as several
//! applications have them.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use tenure::Client;

use crate::workload::{Contender, Held, LockClient, Pair};

pub(crate) struct Tenure {
    clients: Vec<Client>,
    /// How many have been asked for.
    asked: AtomicUsize,
    name: &'static str,
}

impl Tenure {
    pub(crate) async fn connect(name: &'static str, url: &str) -> Result<Self> {
        Self::connect_several(name, url, 1).await
    }

    /// Those who contend are told off to them by turns.
    pub(crate) async fn connect_several(name: &'static str, url: &str, many: usize) -> Result<Self> {
        let mut clients = Vec::new();
        for _ in 0..many {
            clients.push(Client::connect(url).await?);
        }
        Ok(Self { clients, asked: AtomicUsize::new(0), name })
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
        let at = self.asked.fetch_add(1, Ordering::Relaxed) % self.clients.len();
        Ok(Box::new(Ours(self.clients[at].clone())))
    }
}

struct Ours(Client);

impl LockClient for Ours {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let guard = self.0.lock(key).acquire().await?;
            held.await;
            let _ = guard.release().await?;
            Ok(())
        })
    }
}
