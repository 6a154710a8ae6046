//! Conversion of the table's views and refusals into the types of this crate.

use std::time::{Duration, SystemTime};

use tenure_table::{
    CycleMember as TableMember, DelayView, HolderView, LockName, Refusal, ResourceView, WaiterView,
};

use super::ENGINE;
use crate::engine::{AcquireRequest, Conversion};
use crate::error::{AcquireError, ConvertError, CycleMember, EngineError, Lost, LostReason};
use crate::info::{LockDelay, LockInfo, Member};

/// Converts the table's times into dates.
#[derive(Clone, Copy)]
pub(super) struct Calendar {
    pub(super) now_ms: u64,
    pub(super) wall: SystemTime,
}

impl Calendar {
    fn date(self, ms: u64) -> Option<SystemTime> {
        self.wall.checked_sub(Duration::from_millis(self.now_ms.saturating_sub(ms)))
    }
}

/// Returns the state of a lock; without a view, the lock is free.
pub(super) fn info(name: LockName, view: Option<ResourceView>, calendar: Calendar) -> LockInfo {
    let mut info = LockInfo::free(name);
    if let Some(view) = view {
        info.last_token = view.holders.iter().map(|holder| holder.token).max();
        info.holders = view.holders.iter().map(|view| holder(view, calendar)).collect();
        info.waiters =
            view.converters.iter().chain(&view.waiters).map(|view| waiter(view, calendar)).collect();
        info.lock_delays = view.delays.iter().map(|view| delay(view, calendar)).collect();
        info.value = view.value;
    }
    info
}

pub(super) fn holder(view: &HolderView, calendar: Calendar) -> Member {
    let mut member = Member::new(view.grant, view.owner, view.mode);
    member.token = Some(view.token);
    member.label = view.label.as_deref().map(str::to_owned);
    member.since = calendar.date(view.since_ms);
    member
}

fn delay(view: &DelayView, calendar: Calendar) -> LockDelay {
    let since = calendar.date(view.since_ms);
    let until = since.and_then(|since| since.checked_add(Duration::from_millis(view.for_ms)));
    LockDelay { until, ..LockDelay::new(view.grant, view.mode) }
}

fn waiter(view: &WaiterView, calendar: Calendar) -> Member {
    let mut member = Member::new(view.grant, view.owner, view.mode);
    member.label = view.label.as_deref().map(str::to_owned);
    member.since = calendar.date(view.since_ms);
    member
}

fn cycle(members: &[TableMember]) -> Vec<CycleMember> {
    let one = |table: &TableMember| {
        let mut member = Member::new(table.grant, table.owner, table.mode);
        member.label = table.label.as_deref().map(str::to_owned);
        CycleMember { name: table.name.clone(), member, place: table.place as usize }
    };
    members.iter().map(one).collect()
}

/// Returns the error for an acquire that the table refused.
pub(super) fn not_acquired(request: &AcquireRequest, refusal: Refusal) -> AcquireError {
    let name = request.name.clone();
    match refusal {
        Refusal::Busy { name } if matches!(request.not_granted(), AcquireError::Busy { .. }) => {
            AcquireError::Busy { name }
        }
        Refusal::Busy { .. } | Refusal::Cancelled => request.not_granted(),
        Refusal::Deadlock { cycle: members } => AcquireError::Deadlock { name, cycle: cycle(&members) },
        Refusal::NotCovered { held, asked, .. } => AcquireError::NotCovered { name, held, asked },
        other => refused(&other).into(),
    }
}

/// Returns the error for a conversion that the table refused.
pub(super) fn not_converted(conversion: &Conversion, refusal: Refusal) -> ConvertError {
    let name = conversion.grant.name.clone();
    match refusal {
        Refusal::Busy { .. } | Refusal::Cancelled => conversion.not_converted(),
        Refusal::NotHeld | Refusal::NoSession => Lost { name, reason: LostReason::Forgotten }.into(),
        Refusal::Deadlock { cycle: members } => ConvertError::Deadlock { name, cycle: cycle(&members) },
        other => refused(&other).into(),
    }
}

/// Returns the error for a refusal that does not depend on the caller: a limit, or an id that is in use.
pub(super) fn refused(why: &dyn std::error::Error) -> EngineError {
    EngineError::Refused { engine: ENGINE, message: why.to_string(), cause: None }
}
