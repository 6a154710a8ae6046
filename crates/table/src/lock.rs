//! A lock that is held or waited for, a place in a line, and a request for several locks.

use crate::label::Label;

use crate::arena::Place;
use crate::index::Keyed;
use crate::list::{Linked, Links};
use crate::owner::Owner;
use crate::resource::Resource;
use crate::session::Session;
use crate::{FencingToken, GrantId, Mode};

/// A lock: held, waited for, or left standing by a holder that died.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) grant: GrantId,
    pub(crate) token: FencingToken,
    /// Since when it is held, by the table's time.
    pub(crate) since_ms: u64,
    /// What few locks have.
    pub(crate) extras: Option<Box<Extras>>,
    pub(crate) resource: Place<Resource>,
    /// None for a dead holder's delay.
    pub(crate) holder: Option<Holder>,
    /// Its place in line, if it waits or converts.
    pub(crate) queued: Option<Place<Queued>>,
    pub(crate) of_resource: Links<Self>,
    pub(crate) of_session: Links<Self>,
    pub(crate) of_owner: Links<Self>,
    /// The mode that is held, or, if it is not held, asked for.
    pub(crate) mode: Mode,
    pub(crate) held: bool,
    pub(crate) notify: bool,
    /// An operator has asked for it.
    pub(crate) let_go: bool,
}

/// Whose a lock is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) session: Place<Session>,
    /// None, if the owner has the lock's id, and no other lock: see [`Party`](crate::owner::Party).
    pub(crate) owner: Option<Place<Owner>>,
}

/// What few locks have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) label: Option<Label>,
    pub(crate) lock_delay_ms: u64,
}

impl Extras {
    /// Nothing, if there is nothing to keep.
    #[inline]
    pub(crate) fn of(label: Option<Label>, lock_delay_ms: u64) -> Option<Box<Self>> {
        (label.is_some() || lock_delay_ms > 0).then(|| Box::new(Self { label, lock_delay_ms }))
    }
}

impl Lock {
    /// A lock that is neither held nor in line yet.
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

    /// It stands from now on.
    pub(crate) const fn stand(&mut self, token: FencingToken, now_ms: u64) {
        (self.held, self.token, self.since_ms) = (true, token, now_ms);
    }

    /// Whether it is this session's.
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

/// The locks that are held of a resource, in the order of their grants.
#[derive(Debug)]
pub(crate) struct OfResource;
/// The locks of a session, held or not.
#[derive(Debug)]
pub(crate) struct OfSession;
/// The locks of an owner with a record, held or not; and its places in line, in the order in which they queued.
#[derive(Debug)]
pub(crate) struct OfOwner;
/// The line at a resource.
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

/// A place in line: of a waiter or of a conversion.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) lock: Place<Lock>,
    /// The mode that is wanted.
    pub(crate) mode: Mode,
    /// The number of the request.
    pub(crate) number: u64,
    /// One number for each request that ever queued: the larger, the younger.
    pub(crate) order: u64,
    pub(crate) since_ms: u64,
    /// The other locks that must come with this one.
    pub(crate) set: Option<Place<Set>>,
    /// Its owner waits further ahead in the same line, and this is settled together with that.
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

/// A request for several locks that waits, with its place in each line.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) places: Vec<Place<Queued>>,
}
