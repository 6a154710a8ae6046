//! `file:` is held to the contract, and to the figures that it promises: 64 processes, 200 increments each.

use tenure::Client;
use tenure::contract::{self, Subject};

/// A folder with locks, for so many processes that increment so often.
pub(crate) struct Folder<const PROCESSES: usize, const INCREMENTS: usize>(pub(crate) tempfile::TempDir);

pub(crate) type File = Folder<16, 50>;

/// What `file:` promises.
type Promised = Folder<64, 200>;

impl<const PROCESSES: usize, const INCREMENTS: usize> Subject for Folder<PROCESSES, INCREMENTS> {
    const PROCESSES: usize = PROCESSES;
    const INCREMENTS: usize = INCREMENTS;

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

/// A module of the suite, whose helper process is used.
const SUITE: &str = concat!(module_path!(), "::file::exclusion");

#[test]
#[ignore = "takes minutes"]
fn sixty_four_processes_lose_no_increment() {
    contract::check::<Promised, _, _>(SUITE, contract::exclusion::processes_lose_no_increment);
}

#[test]
#[ignore = "takes minutes"]
fn of_sixty_four_processes_half_are_killed_and_lose_only_their_own_work() {
    contract::check::<Promised, _, _>(SUITE, contract::exclusion::killed_processes_lose_only_their_own_work);
}
