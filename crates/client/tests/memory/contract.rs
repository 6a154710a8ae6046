//! `memory:` is held to the contract, with a network that fails.

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure::memory::{Link, MemoryStore};

struct Memory(MemoryStore);

impl Subject for Memory {
    async fn start() -> Self {
        Self(MemoryStore::new())
    }

    fn address(&self) -> String {
        self.0.url()
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Wire(self.0.link())))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

struct Wire(Link);

impl Network for Wire {
    fn address(&self) -> String {
        self.0.url()
    }

    fn cut(&self) {
        self.0.cut();
    }

    fn heal(&self) {
        self.0.heal();
    }

    /// There are no connections: whoever waits for an answer goes on to wait for it.
    fn sever(&self) {
        self.0.cut();
        self.0.heal();
    }

    fn lose_answers(&self, lost: bool) {
        self.0.lose_answers(if lost { usize::MAX } else { 0 });
    }
}

tenure::contract_suite!(memory, Memory);
