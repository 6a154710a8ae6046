//! An engine with leases that can be cut off: the locks are those of `file:`, and a file beside them is the cable.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tenure::capabilities::Expiry;
use tenure::clock::BootTime;
use tenure::engine::{AcquireRequest, Break, EngineContext, Grant, Granted};
use tenure::engines::file::FileEngine;
use tenure::error::{BreakError, InspectError, ReleaseError, RenewError, ValueError};
use tenure::{AcquireError, Capabilities, Engine, EngineError, LockInfo, LockName, Member, Term};

/// Between the end of belief and the end of the lease: what a slow machine may take to kill somebody. It leaves half of a lease to be believed
/// in, as an engine that grants less than was asked for does.
pub(crate) const MARGIN: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(crate) struct Leased {
    inner: Arc<FileEngine>,
    folder: PathBuf,
    capabilities: Capabilities,
}

impl Leased {
    pub(crate) fn open(folder: PathBuf, context: EngineContext) -> Result<Arc<dyn Engine>, EngineError> {
        let inner = FileEngine::open(folder.join("locks"), context)?;
        let mut capabilities = inner.capabilities().clone();
        capabilities.expiry = Expiry::Lease;
        Ok(Arc::new(Self { inner, folder, capabilities }))
    }

    /// A lease that begins now. When it ends is written down, for whoever would be let in then.
    fn lease(folder: &Path, sent_at: BootTime, ttl: Duration) -> io::Result<Term> {
        let ends = (sent_at + ttl).since_boot().as_nanos();
        let mut leases = std::fs::File::options().create(true).append(true).open(folder.join("leases"))?;
        writeln!(leases, "{ends}")?;
        Ok(Term::Lease { sent_at, ttl, margin: MARGIN })
    }
}

fn unreachable(message: &str) -> EngineError {
    EngineError::Unreachable { engine: "leased", message: message.to_owned(), cause: None }
}

impl Engine for Leased {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn acquire(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(async move {
            let ttl = request.ttl.get();
            let granted = self.inner.clone().acquire(request).await?;
            let term = Self::lease(&self.folder, BootTime::now(), ttl)
                .map_err(|error| unreachable(&error.to_string()))?;
            Ok(Granted::new(granted.token, term))
        })
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            if self.folder.join("cut").exists() {
                return Err(unreachable("the cable is cut").into());
            }
            let (sent_at, ttl) = (BootTime::now(), grant.ttl.get());
            self.inner.clone().renew(grant).await?;
            Ok(Self::lease(&self.folder, sent_at, ttl).map_err(|error| unreachable(&error.to_string()))?)
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        self.inner.clone().release(grant)
    }

    fn anchors(&self, grant: &Grant) -> io::Result<Vec<OwnedFd>> {
        self.inner.anchors(grant)
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        self.inner.clone().set_value(grant, bytes)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        self.inner.clone().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        self.inner.clone().list(prefix)
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        self.inner.clone().break_lock(name, how)
    }
}
