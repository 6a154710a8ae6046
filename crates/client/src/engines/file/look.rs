//! Inspection of locks without acquiring one: for people, for tools, and for a job that may have run already.

use std::io;
use std::path::Path;
use std::time::Duration;

use tenure_table::{FencingToken, LockName, Value};

use super::member::{self, Role};
use super::moment::HostClock;
use super::resource::{self, Resource};
use super::state::{State, StateError};
use super::{failed, state_failed};
use crate::error::EngineError;
use crate::info::{LockInfo, Member, Presence};

/// Reads the state of a lock without the short lock, possibly during a write. Returns `None` if the lock was never held.
fn state(name: &LockName, folder: &Path) -> Result<Option<State>, EngineError> {
    match Resource::peek(folder).map_err(|error| state_failed(folder, error))? {
        Some((found, state)) if found == name.as_str() => Ok(Some(state)),
        Some((other, _)) => Err(state_failed(folder, StateError::of_another(name, &other))),
        None => Ok(None),
    }
}

/// Returns the time since the last start.
pub(super) fn last_start(
    name: &LockName,
    folder: &Path,
    clock: &HostClock,
) -> Result<Option<Duration>, EngineError> {
    Ok(state(name, folder)?.and_then(|state| state.start).map(|start| start.age(clock.now())))
}

/// Inspects one lock.
pub(super) fn lock(name: LockName, folder: &Path, directory: &Path) -> Result<LockInfo, EngineError> {
    let mut info = LockInfo::free(name);
    let Some(state) = state(&info.name, folder)? else { return Ok(info) };
    let found = match member::find(folder) {
        // The folder was deleted during the inspection.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(info),
        found => found.map_err(|error| failed(directory, error))?,
    };
    let writes = |presence| {
        found.iter().any(|found| {
            let record = found.record.as_ref();
            found.presence == presence
                && record.is_some_and(|record| {
                    record.mode.may_write() && record.token == Some(FencingToken::new(state.token))
                })
        })
    };
    let ended_well = resource::last_ended(folder) == Some(state.token);
    let died = writes(Presence::Gone) || (state.open && !ended_well && !writes(Presence::Present));
    info.last_token = Some(FencingToken::new(state.token));
    info.value = Value { in_doubt: state.value.in_doubt || died, ..state.value };
    let (waiters, holders): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| matches!(found.role, Role::Waiter(_)));
    info.holders = holders.into_iter().filter_map(member::Found::member).collect();
    info.waiters = waiters.into_iter().filter_map(member::Found::member).collect();
    Ok(info)
}

/// Inspects all locks with a holder or waiter and with this prefix, in the order of their names.
pub(super) fn all(directory: &Path, prefix: &str) -> Result<Vec<LockInfo>, EngineError> {
    let mut infos = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| failed(directory, error))? {
        let folder = entry.map_err(|error| failed(directory, error))?.path();
        let not_listed = |error: &dyn std::fmt::Display| {
            tracing::warn!(folder = %folder.display(), %error, "this lock cannot be read, and is not listed");
        };
        let name = match Resource::peek(&folder) {
            Ok(Some((name, _))) => name,
            // The entry does not belong to a lock.
            Ok(None) => continue,
            Err(StateError::Io(error)) if error.kind() == io::ErrorKind::NotADirectory => {
                continue;
            }
            Err(error) => {
                not_listed(&error);
                continue;
            }
        };
        if let (true, Ok(name)) = (name.starts_with(prefix), LockName::parse(&name)) {
            match lock(name, &folder, directory) {
                Ok(info) => infos.push(info),
                Err(error) => not_listed(&error),
            }
        }
    }
    let is_there = |member: &Member| member.presence == Presence::Present;
    infos.retain(|info| info.holders.iter().chain(&info.waiters).any(is_there));
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(infos)
}
