//! What the bare recipes of both databases share: each client has connections of its own, and keeps them from round to round.

use std::sync::{Arc, Mutex};

use anyhow::Result;

use super::tenure::Tenure;
use super::thread::Thread;
use crate::workload::{Contender, Held, LockClient, Pair};

/// What the server must allow: the connections of all contenders of a lineup stay open.
pub(super) const MAX_CONNECTIONS: usize = 500;

/// A recipe as it is written by hand: one client's connections, and what is sent on them.
pub(super) trait Recipe: Sized + Send + 'static {
    /// What it is called in the table.
    const NAME: &'static str;

    fn connect(url: &str, holds: Thread) -> impl Future<Output = Result<Self>> + Send;

    /// Gets the lock, awaits `held` with it, and releases.
    fn pair(&mut self, key: &str, held: Held) -> impl Future<Output = Result<()>> + Send;
}

/// The bare recipe, and ours with the same: with as many connections as clients that hold or wait, and some more, and where fewer will do,
/// also as it comes. Where a lock is a connection's, the bare recipe also as one that outlives a runtime.
pub(super) async fn beside_ours<R: Recipe>(url: &str, recipe: &str) -> Result<Vec<Box<dyn Contender>>> {
    let mut contenders = vec![bare::<R>(url, Thread::Same)];
    if recipe != "table" {
        contenders.push(bare::<R>(url, Thread::Another));
    }
    let ours = format!("{url}?recipe={recipe}");
    let as_many = format!("{ours}&connections=100");
    contenders.push(Box::new(Tenure::connect("tenure, `connections=100`", &as_many).await?));
    if recipe == "table" {
        contenders.push(Box::new(Tenure::connect("tenure", &ours).await?));
    }
    Ok(contenders)
}

/// The bare recipe alone.
pub(super) fn bare<R: Recipe>(url: &str, thread: Thread) -> Box<dyn Contender> {
    Box::new(Bare::<R>::new(url, thread))
}

struct Bare<R> {
    name: &'static str,
    thread: Thread,
    url: Arc<str>,
    /// The clients whom nobody uses at the moment.
    idle: Arc<Mutex<Vec<R>>>,
}

impl<R: Recipe> Bare<R> {
    fn new(url: &str, thread: Thread) -> Self {
        let name = match thread {
            Thread::Same => R::NAME,
            Thread::Another => String::leak(format!("{}, on another thread", R::NAME)),
        };
        Self { name, thread, url: url.into(), idle: Arc::default() }
    }
}

impl<R: Recipe> Contender for Bare<R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        let recipe = self.idle.lock().expect("nobody panics with it").pop();
        let (thread, url) = (self.thread, self.url.clone());
        Ok(Box::new(BareClient { recipe, thread, url, idle: self.idle.clone() }))
    }
}

/// Connects when it is used first, which is in the round that is not measured.
struct BareClient<R> {
    recipe: Option<R>,
    thread: Thread,
    url: Arc<str>,
    idle: Arc<Mutex<Vec<R>>>,
}

impl<R: Recipe> LockClient for BareClient<R> {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let mut recipe = match self.recipe.take() {
                Some(recipe) => recipe,
                None => R::connect(&self.url, self.thread).await?,
            };
            recipe.pair(key, held).await?;
            self.recipe = Some(recipe);
            Ok(())
        })
    }
}

impl<R> Drop for BareClient<R> {
    fn drop(&mut self) {
        if let Some(recipe) = self.recipe.take() {
            self.idle.lock().expect("nobody panics with it").push(recipe);
        }
    }
}

/// Nobody else has it, so nobody else can free the row.
pub(super) fn holder() -> i64 {
    rand::random()
}

/// The names of all locks, as the rows of an INSERT.
pub(super) fn rows_of_names() -> String {
    let rows: Vec<String> = crate::workload::keys().map(|key| format!("('{key}')")).collect();
    rows.join(", ")
}
