//! `file:`, the engine that needs no server: locks between the processes of one host, in a directory.
//!
//! The lock is `flock(2)` on a file that is never renamed or unlinked, so the kernel frees it when its process dies, and at no other time.
//! What must hold beside that:
//!
//! - **A process holds the lock if it has the flock and sees no other live holder.** The second condition matters when an owner re-entered
//!   from another process, or when the lock file was deleted under its holder.
//! - **The token is synced before the grant is returned**, under the flock and the short lock.
//! - A waiter tries the flock without blocking, since a wait in the kernel could not be cancelled. Inotify wakes it when the waiter ahead
//!   of it leaves, or the holder if it is first: one waiter is woken, not all. This orders wake-ups, not grants: any process that finds the
//!   lock free takes it. A stopped waiter delays no other, since all poll as a fallback.

mod attempt;
mod held;
mod layout;
mod look;
mod member;
mod moment;
mod resource;
mod state;
mod watch;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use rustix::io::Errno;
use tenure_table::{GrantId, LockName, Mode, ModeSet};

use self::attempt::{Attempt, Outcome};
use self::held::Held;
use self::moment::{BootId, HostClock};
use self::resource::Resource;
use self::state::StateError;
use self::watch::{Interest, Watcher};

use crate::capabilities::{Breaking, Capabilities, Capability, Expiry, Reach, Unsupported, Waking};
use crate::clock::Clock;
use crate::engine::{AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start};
use crate::error::{
    AcquireError, BreakError, ConnectError, EngineError, InspectError, Lost, LostReason, ReleaseError,
    RememberError, RenewError, ValueError,
};
use crate::info::{LockInfo, Member};
use crate::lease::Term;
use crate::random;
use crate::url::EngineUrl;

/// The engine `file:`.
#[derive(Debug)]
pub struct FileEngine {
    directory: PathBuf,
    host: String,
    capabilities: Capabilities,
    context: EngineContext,
    /// Measures the time of starts; `None` if the kernel does not identify its boots.
    host_clock: Option<HostClock>,
    held: Mutex<HashMap<GrantId, Arc<Held>>>,
    /// Whether the task that begins watches is running. Only changed while `held` is locked.
    sweeping: AtomicBool,
    /// Started with the first lock; `None` if no inotify instance is available.
    watcher: OnceLock<Option<Arc<Watcher>>>,
}

/// The first and the longest interval between two polls of a lock without events.
const FIRST_POLL: Duration = Duration::from_millis(2);
const LONGEST_POLL: Duration = Duration::from_millis(500);

/// The shortest hold that is watched. To end a watch takes the kernel 10 ms or more, which is longer than most locks are held.
const WATCH_AFTER: Duration = Duration::from_millis(50);

impl FileEngine {
    pub(crate) async fn open_url(
        url: &EngineUrl<'_>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, ConnectError> {
        let directory = layout::directory(url)?;
        let runtime = context.runtime.clone();
        let opened = runtime.spawn_blocking(move || Self::open(directory, context)).await;
        Ok(opened.map_err(|_| EngineError::Closed)??)
    }

    /// Opens an engine on this directory, and creates the directory if it does not exist.
    pub fn open(directory: PathBuf, context: EngineContext) -> Result<Arc<Self>, EngineError> {
        Self::open_in_boot(BootId::of_this_boot(), directory, context)
    }

    fn open_in_boot(
        boot: Option<BootId>,
        directory: PathBuf,
        context: EngineContext,
    ) -> Result<Arc<Self>, EngineError> {
        layout::create(&directory).map_err(|error| failed(&directory, error))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let capabilities = Capabilities {
            modes: ModeSet::of(&[Mode::Pr, Mode::Ex]),
            value: true,
            remembers: boot.is_some(),
            fencing: true,
            shared_owners: true,
            visible_waiters: true,
            breaking: Breaking::Ask,
            expiry: Expiry::Kernel,
            waking: Waking::One,
            reach: Reach::Host,
            ..Capabilities::minimal("file", "flock")
        };
        let host_clock = boot.map(|boot| HostClock { boot, clock: context.clock.clone() });
        Ok(Arc::new(Self {
            directory,
            host,
            capabilities,
            context,
            host_clock,
            held: Mutex::default(),
            sweeping: AtomicBool::new(false),
            watcher: OnceLock::new(),
        }))
    }

    fn resource(&self, name: &LockName) -> Resource {
        Resource { name: name.clone(), folder: layout::folder(&self.directory, name) }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<GrantId, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watcher(self: &Arc<Self>) -> Option<&Arc<Watcher>> {
        let start = || {
            let engine: Weak<Self> = Arc::downgrade(self);
            let meddled = move |lock: &Path| {
                if let Some(engine) = engine.upgrade() {
                    engine.confirm_at(lock);
                }
            };
            Watcher::start(&self.context.runtime, meddled)
                .inspect_err(|error| tracing::warn!(%error, "no inotify: waiting for locks polls"))
                .ok()
        };
        self.watcher.get_or_init(start).as_ref()
    }

    fn host_clock(&self) -> Result<HostClock, Unsupported> {
        self.capabilities.require(Capability::Remember)?;
        Ok(self.host_clock.clone().expect("it remembers only with one"))
    }

    /// Handles a change of a lock file by another program: its holders are notified at once if they have lost the lock.
    fn confirm_at(&self, lock: &Path) {
        for held in self.held().values().filter(|held| held.resource.lock_path() == lock) {
            self.confirm(held);
        }
    }

    /// Checks whether a grant is still valid, and notifies its holder if not. Runs on another thread, since it waits for a write under way.
    fn confirm(&self, held: &Arc<Held>) {
        let held = held.clone();
        self.context.runtime.spawn_blocking(move || {
            if let Ok(Err(reason)) = held.confirm() {
                held.events.lost(reason);
            }
        });
    }

    /// Runs work that may wait for the disk on a blocking thread.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        match self.context.runtime.spawn_blocking(work).await {
            Ok(result) => Ok(result),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(EngineError::Closed),
            },
        }
    }

    async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        if let Some(held) = self.held().get(&request.grant) {
            return Ok(held.granted());
        }
        let resource = self.resource(&request.name);
        let clock = self.context.clock.clone();
        let mut attempt = Attempt::new(resource, request.clone(), self.host.clone(), clock.clone());
        let mut poll = FIRST_POLL;
        loop {
            if request.cancel.is_cancelled() {
                return Err(request.not_granted());
            }
            let (returned, outcome) = self.on_disk(move || attempt.run()).await?;
            attempt = returned;
            let mut ahead = match outcome? {
                Outcome::Held(held) => return Ok(self.keep(*held)),
                Outcome::Busy(ahead) => ahead,
                Outcome::Replaced => continue,
            };
            loop {
                if !request.waits() {
                    return Err(request.not_granted());
                }
                let is_first = ahead.is_none();
                let watched = ahead.unwrap_or_else(|| attempt.resource().lock_path());
                let mut changes =
                    self.watcher().and_then(|watcher| watcher.subscribe(&watched, Interest::Freed));
                // The lock may have been freed before the watch began.
                if attempt.seems_free() {
                    break;
                }
                // A waiter behind another waiter is notified, so it polls rarely.
                let pause = if is_first || changes.is_none() { poll } else { LONGEST_POLL };
                let look_again = clock.now() + random::jittered(pause);
                let heard = async {
                    match &mut changes {
                        Some(changes) => changes.changed().await,
                        None => std::future::pending().await,
                    }
                };
                poll = match request.woken_before(&*clock, look_again, heard).await? {
                    Some(()) => FIRST_POLL,
                    None => (poll * 2).min(LONGEST_POLL),
                };
                if attempt.may_get_in_otherwise() || attempt.seems_free() {
                    break;
                }
                let (returned, looked) = self.on_disk(move || attempt.look_ahead()).await?;
                attempt = returned;
                ahead = looked?;
            }
        }
    }

    fn keep(self: &Arc<Self>, held: Held) -> Granted {
        let granted = held.granted();
        let mut all = self.held();
        all.insert(held.grant, Arc::new(held));
        // One task serves all grants: a lock that is held briefly wakes no task.
        if !self.sweeping.swap(true, Ordering::Relaxed) {
            self.context.runtime.spawn(Self::sweep(Arc::downgrade(self), self.context.clock.clone()));
        }
        drop(all);
        granted
    }

    /// Begins to watch the locks that have been held for a while, until all held locks are watched.
    async fn sweep(engine: Weak<Self>, clock: Arc<dyn Clock>) {
        loop {
            clock.sleep_until(clock.now() + WATCH_AFTER).await;
            let Some(engine) = engine.upgrade() else { return };
            let (due, more) = {
                let all = engine.held();
                let is_due = |held: &&Arc<Held>| clock.now().since(held.since) >= WATCH_AFTER;
                let unwatched: Vec<_> = all.values().filter(|held| !held.is_watched()).collect();
                let due: Vec<_> = unwatched.iter().copied().filter(is_due).cloned().collect();
                // Decided while no grant can be added: the next grant starts a new sweep.
                let more = unwatched.len() > due.len();
                engine.sweeping.store(more, Ordering::Relaxed);
                (due, more)
            };
            for held in &due {
                engine.watch_over(held);
            }
            if !more {
                return;
            }
        }
    }

    /// Watches a held lock, so that its holder is notified at once if another program changes its file.
    fn watch_over(self: &Arc<Self>, held: &Arc<Held>) {
        let lock = held.resource.lock_path();
        held.watched_by(self.watcher().and_then(|watcher| watcher.subscribe(&lock, Interest::Tampered)));
        // Changes before the watch began were not reported.
        self.confirm(held);
    }
}

impl Engine for FileEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn place(&self) -> String {
        // The directory existed when this engine was opened. If it was deleted since, its own path is as good a name as any.
        let directory = self.directory.canonicalize().unwrap_or_else(|_| self.directory.clone());
        format!("file:{}", layout::encoded(&directory))
    }

    fn acquire(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(self.wait_for(request))
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let held = self.held().get(&grant.id).cloned().ok_or(RenewError::Lost(LostReason::Forgotten))?;
            let directory = self.directory.clone();
            match self.on_disk(move || held.confirm()).await? {
                Ok(Ok(())) => Ok(Term::Open),
                Ok(Err(reason)) => Err(RenewError::Lost(reason)),
                Err(error) => Err(failed(&directory, error).into()),
            }
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let held = self.held().remove(&grant.id).ok_or(ReleaseError::NotHeld(LostReason::Forgotten))?;
            match self.on_disk(move || held.release()).await? {
                Ok(()) => Ok(()),
                Err(reason) => Err(ReleaseError::NotHeld(reason)),
            }
        })
    }

    fn anchors(&self, grant: &Grant) -> io::Result<Vec<OwnedFd>> {
        self.held().get(&grant.id).map_or_else(|| Ok(Vec::new()), |held| held.anchors())
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(async move {
            let lost = |reason| Lost { name: grant.name.clone(), reason };
            let held = self.held().get(&grant.id).cloned().ok_or_else(|| lost(LostReason::Forgotten))?;
            let now = self.context.clock.wall();
            match self.on_disk(move || held.write(bytes, now)).await? {
                Ok(Ok(())) => Ok(()),
                Ok(Err(reason)) => Err(lost(reason).into()),
                Err(error) => Err(state_failed(&self.resource(&grant.name).folder, error).into()),
            }
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move {
            let clock = self.host_clock()?;
            let lost = |reason| Lost { name: grant.name.clone(), reason };
            let held = self.held().get(&grant.id).cloned().ok_or_else(|| lost(LostReason::Forgotten))?;
            match self.on_disk(move || held.remember(start, &clock)).await? {
                Ok(Ok(remembered)) => Ok(remembered),
                Ok(Err(reason)) => Err(lost(reason).into()),
                Err(error) => Err(state_failed(&self.resource(&grant.name).folder, error).into()),
            }
        })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            let (clock, folder) = (self.host_clock()?, self.resource(&name).folder);
            let last = self.on_disk(move || look::last_start(&name, &folder, &clock)).await??;
            Ok(last.filter(|ago| *ago < window))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move {
            let folder = self.resource(&name).folder;
            let directory = self.directory.clone();
            Ok(self.on_disk(move || look::lock(name, &folder, &directory)).await??)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let directory = self.directory.clone();
            let look = move || look::all(&directory, &prefix);
            Ok(self.on_disk(look).await??)
        })
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        Box::pin(async move {
            let info = self.clone().inspect(name.clone()).await.map_err(|error| match error {
                InspectError::Engine(error) => BreakError::Engine(error),
                InspectError::Name(error) => BreakError::Name(error),
            })?;
            let holders: Vec<_> = info.present_holders().cloned().collect();
            if holders.is_empty() {
                return Err(BreakError::NotHeld { name });
            }
            if how == Break::Force {
                let pids: Vec<_> =
                    holders.iter().filter_map(|holder| holder.pid).map(|pid| pid.to_string()).collect();
                let advice = format!(
                    "the kernel frees it when the process ends; ask it to let go (without force), or end process {}",
                    pids.join(", ")
                );
                return Err(BreakError::HolderKeepsIt { name, holders, advice });
            }
            let resource = self.resource(&name);
            let grants: Vec<_> = holders.iter().map(|holder| holder.grant).collect();
            let folder = resource.folder.clone();
            let mark = move || -> io::Result<()> {
                for grant in grants {
                    resource::for_writing().create(true).open(member::break_mark(&resource.folder, grant))?;
                }
                resource.open_lock()?.poke()
            };
            self.on_disk(mark).await?.map_err(|error| failed(&folder, error))?;
            Ok(holders)
        })
    }
}

/// Returns the error for the user that a system error leads to.
fn failed(path: &Path, error: io::Error) -> EngineError {
    let engine = "file";
    let path = path.display();
    let advice = match Errno::from_io_error(&error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "make it readable and writable for this user (docs/engines/file.md says how users share locks), or name another directory as in file:/path"
        }
        Some(Errno::ROFS) => "name a directory on a file system that is writable, as in file:/path",
        Some(Errno::NOSPC | Errno::DQUOT) => "free some space there",
        Some(Errno::NOTDIR | Errno::EXIST) => "name a directory, as in file:/path",
        Some(Errno::LOOP) => {
            "a symbolic link was put there, which is not followed: find out by whom, and remove it"
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            "every lock that is held or waited for keeps two files open: raise the limit (`ulimit -n`)"
        }
        _ => {
            return EngineError::Unreachable {
                engine,
                message: format!("{path}: {error}"),
                cause: Some(error.into()),
            };
        }
    };
    EngineError::Refused { engine, message: format!("{path}: {error}; {advice}"), cause: Some(error.into()) }
}

fn state_failed(folder: &Path, error: StateError) -> EngineError {
    match error {
        StateError::Io(error) => failed(folder, error),
        StateError::Damaged(what) => EngineError::Damaged {
            engine: "file",
            message: format!(
                "{}: {what}; restore the file `state` there, or, when nobody holds the lock, delete the folder: \
                 its value is lost then, and tokens go on from the date, above all earlier ones",
                folder.display()
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootTime, Clock};

    /// A clock whose two times a test sets.
    #[derive(Debug)]
    struct Faces {
        since_boot: Duration,
        wall: Duration,
    }

    impl Clock for Faces {
        fn now(&self) -> BootTime {
            BootTime::from_boot(self.since_boot)
        }

        fn wall(&self) -> std::time::SystemTime {
            std::time::SystemTime::UNIX_EPOCH + self.wall
        }

        fn sleep_until(&self, _: BootTime) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    fn in_boot(
        boot: Option<BootId>,
        directory: &Path,
        since_boot: Duration,
        wall: Duration,
    ) -> Arc<FileEngine> {
        let (runtime, clock) = (tokio::runtime::Handle::current(), Arc::new(Faces { since_boot, wall }));
        FileEngine::open_in_boot(boot, directory.to_owned(), EngineContext { runtime, clock }).unwrap()
    }

    #[tokio::test]
    async fn a_start_is_recalled_after_a_reboot_by_the_calendar() {
        const DAY: Duration = Duration::from_hours(24);
        let (directory, hour, minute) =
            (tempfile::tempdir().unwrap(), Duration::from_hours(1), Duration::from_mins(1));
        let (first, second) = (BootId::parse(&"1".repeat(32)), BootId::parse(&"2".repeat(32)));
        let (name, directory) = (LockName::parse("job").unwrap(), directory.path());
        let engine = in_boot(first, directory, hour, DAY);
        assert_eq!(engine.clone().recall(name.clone(), DAY).await.unwrap(), None);
        let request = AcquireRequest::new(name.clone());
        let granted = engine.clone().acquire(request.clone()).await.unwrap();
        let grant = request.granted(granted.token);
        let start = Start::new(minute, DAY);
        assert_eq!(engine.clone().remember(grant.clone(), start).await.unwrap(), Remembered::Recorded);
        assert_eq!(
            engine.clone().remember(grant.clone(), start).await.unwrap(),
            Remembered::Already { ago: minute }
        );
        // A start does not replace a later one, however short its window.
        let older = Start::new(minute * 2, Duration::from_nanos(1));
        assert_eq!(
            engine.clone().remember(grant.clone(), older).await.unwrap(),
            Remembered::Already { ago: minute }
        );
        engine.release(grant).await.unwrap();
        let recalled = async |boot, since_boot, wall, window| {
            let engine = in_boot(boot, directory, since_boot, wall);
            engine.recall(name.clone(), window).await.unwrap()
        };
        assert_eq!(recalled(first, hour * 2, Duration::ZERO, DAY).await, Some(hour + minute));
        assert_eq!(recalled(first, hour * 2, Duration::ZERO, hour + minute).await, None);
        assert_eq!(recalled(second, minute, DAY + hour * 2, DAY).await, Some(hour * 2 + minute));
        assert_eq!(recalled(second, hour * 3, Duration::ZERO, DAY).await, Some(hour * 3));
    }

    #[tokio::test]
    async fn without_a_boot_id_starts_are_not_remembered_and_it_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let engine = in_boot(None, directory.path(), Duration::ZERO, Duration::ZERO);
        assert!(!engine.capabilities().remembers);
        let recalled = engine.recall(LockName::parse("job").unwrap(), Duration::MAX).await;
        assert!(matches!(recalled, Err(InspectError::Engine(EngineError::Unsupported(_)))), "{recalled:?}");
    }

    #[test]
    fn what_the_user_can_change_is_a_refusal_that_says_how() {
        let text = |errno: Errno| match failed(Path::new("/locks"), errno.into()) {
            EngineError::Refused { message, .. } => message,
            other => panic!("{errno:?}: {other}"),
        };
        assert!(text(Errno::MFILE).contains("ulimit -n"));
        assert!(text(Errno::ACCESS).contains("writable"));
        assert!(text(Errno::ROFS).contains("writable"));
        assert!(text(Errno::NOSPC).contains("space"));
        assert!(text(Errno::LOOP).contains("link"));
        assert!(matches!(failed(Path::new("/locks"), Errno::IO.into()), EngineError::Unreachable { .. }));
    }
}
