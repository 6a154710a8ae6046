//! The crate `rslock` as its documentation uses it, on one server or on several.

use std::time::Duration;

use anyhow::Result;
use rslock::LockManager;

use super::redis::TTL;
use crate::workload::{Contender, Held, LockClient, Pair};

#[derive(Clone)]
pub(crate) struct Rslock(LockManager);

impl Rslock {
    /// It connects when it is used first.
    pub(crate) fn new(urls: Vec<String>) -> Self {
        let mut manager = LockManager::new(urls);
        // It pauses for a random time from nothing up to this, and tries for ever.
        manager.set_retry(u32::MAX, Duration::from_millis(50));
        Self(manager)
    }
}

impl Contender for Rslock {
    fn name(&self) -> &'static str {
        "rslock 0.10"
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(self.clone()))
    }
}

impl LockClient for Rslock {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let guard = self.0.acquire(key, TTL).await?;
            held.await;
            guard.release().await;
            Ok(())
        })
    }
}
