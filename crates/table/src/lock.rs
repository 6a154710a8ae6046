//! Locks, places in a queue, and requests for several locks.

use crate::label::Label;

use crate::arena::Place;
use crate::index::Keyed;
use crate::list::{Linked, Links};
use crate::owner::Owner;
use crate::resource::Resource;
use crate::session::Session;
use crate::{FencingToken, GrantId, Mode};

/// A lock: held, waited for, or kept as the lock-delay of an expired holder.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) grant: GrantId,
    pub(crate) token: FencingToken,
    /// When it was granted, by the table's time.
    pub(crate) since_ms: u64,
    /// Data that few locks have.
    pub(crate) extras: Option<Box<Extras>>,
    pub(crate) resource: Place<Resource>,
    /// `None` for a lock-delay.
    pub(crate) holder: Option<Holder>,
    /// Its place in the queue, if it waits or converts.
    pub(crate) queued: Option<Place<Queued>>,
    pub(crate) of_resource: Links<Self>,
    pub(crate) of_session: Links<Self>,
    pub(crate) of_owner: Links<Self>,
    /// The held mode, or the requested one if the lock is not held.
    pub(crate) mode: Mode,
    pub(crate) held: bool,
    pub(crate) notify: bool,
    /// Whether an operator has asked for its release.
    pub(crate) let_go: bool,
}

/// The session and the owner of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) session: Place<Session>,
    /// `None` if the owner has the lock's id and no other lock: see [`Party`](crate::owner::Party).
    pub(crate) owner: Option<Place<Owner>>,
}

/// Data that few locks have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) label: Option<Label>,
    pub(crate) lock_delay_ms: u64,
}

impl Extras {
    /// Returns `None` if there is nothing to keep.
    #[inline]
    pub(crate) fn of(label: Option<Label>, lock_delay_ms: u64) -> Option<Box<Self>> {
        (label.is_some() || lock_delay_ms > 0).then(|| Box::new(Self { label, lock_delay_ms }))
    }
}

impl Lock {
    /// Creates a lock that is neither held nor queued yet.
    pub(crate) fn new(
        grant: GrantId,
        resource: Place<Resource>,
        holder: Option<Holder>,
        mode: Mode,
        extras: Option<Box<Extras>>,
        notify: bool,
    ) -> Self {
        Self {
            grant,
            token: FencingToken::new(0),
            since_ms: 0,
            extras,
            resource,
            holder,
            queued: None,
            of_resource: Links::default(),
            of_session: Links::default(),
            of_owner: Links::default(),
            mode,
            held: false,
            notify,
            let_go: false,
        }
    }

    /// Marks the lock as held.
    pub(crate) const fn stand(&mut self, token: FencingToken, now_ms: u64) {
        (self.held, self.token, self.since_ms) = (true, token, now_ms);
    }

    /// Whether this session holds or waits for it.
    pub(crate) fn is_of(&self, session: Place<Session>) -> bool {
        self.holder.is_some_and(|holder| holder.session == session)
    }

    pub(crate) fn label(&self) -> Option<&Label> {
        self.extras.as_ref()?.label.as_ref()
    }

    pub(crate) fn lock_delay_ms(&self) -> u64 {
        self.extras.as_ref().map_or(0, |extras| extras.lock_delay_ms)
    }
}

impl Keyed for Lock {
    type Key = GrantId;

    fn key(&self) -> &GrantId {
        &self.grant
    }
}

/// The held locks of a resource, in the order of their grants.
#[derive(Debug)]
pub(crate) struct OfResource;
/// The locks of a session, held or waiting.
#[derive(Debug)]
pub(crate) struct OfSession;
/// The locks of a recorded owner, held or waiting. Also its places in queues, in the order in which they queued.
#[derive(Debug)]
pub(crate) struct OfOwner;
/// The queue of a resource.
#[derive(Debug)]
pub(crate) struct InLine;

macro_rules! linked {
    ($type:ident, $kind:ident, $field:ident) => {
        impl Linked<$kind> for $type {
            fn links(&self) -> &Links<Self> {
                &self.$field
            }

            fn links_mut(&mut self) -> &mut Links<Self> {
                &mut self.$field
            }
        }
    };
}

linked!(Lock, OfResource, of_resource);
linked!(Lock, OfSession, of_session);
linked!(Lock, OfOwner, of_owner);
linked!(Queued, InLine, in_line);
linked!(Queued, OfOwner, of_owner);

/// A place in a queue: of a waiter or of a conversion.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) lock: Place<Lock>,
    /// The requested mode.
    pub(crate) mode: Mode,
    /// The number of the request.
    pub(crate) number: u64,
    /// A number for each request that ever queued. A later request has a larger one.
    pub(crate) order: u64,
    pub(crate) since_ms: u64,
    /// The other locks that are granted together with this one.
    pub(crate) set: Option<Place<Set>>,
    /// Whether its owner waits further ahead in the same queue. This request is then settled together with that one.
    pub(crate) tied: bool,
    in_line: Links<Self>,
    of_owner: Links<Self>,
}

impl Queued {
    pub(crate) fn new(lock: Place<Lock>, mode: Mode, number: u64, order: u64, since_ms: u64) -> Self {
        Self {
            lock,
            mode,
            number,
            order,
            since_ms,
            set: None,
            tied: false,
            in_line: Links::default(),
            of_owner: Links::default(),
        }
    }
}

/// A waiting request for several locks, with its place in each queue.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) places: Vec<Place<Queued>>,
}
