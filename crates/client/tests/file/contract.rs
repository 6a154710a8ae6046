//! `file:` is held to the contract, with the figures that it promises: 64 processes, 200 increments each.

use tenure::Client;
use tenure::contract::Subject;

pub(crate) struct File(pub(crate) tempfile::TempDir);

impl Subject for File {
    const PROCESSES: usize = 64;
    const INCREMENTS: usize = 200;

    async fn start() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn address(&self) -> String {
        format!("file:{}", self.0.path().display())
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(file, File);
