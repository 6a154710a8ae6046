//! The ways in which the reference engine can be wrong, one at a time.

/// How an engine can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Release frees the resource, whoever holds it.
    ReleasesByName,
    /// Renewal makes a grant anew that was gone.
    RenewsTheDead,
    /// Tokens stay the same.
    SameToken,
    /// Everything is compatible with everything.
    LetsEverybodyIn,
    /// A request that is repeated is a second request.
    CountsTwice,
    /// The lease ends at half of what the holder was told.
    EndsEarly,
    /// Values are written by whoever comes.
    AnybodyWrites,
    /// Every owner re-enters.
    AnybodyReenters,
    /// The last to come is served first.
    LastComeFirst,
    /// A waiter that gave up stays in the queue.
    KeepsWaiters,
    /// A request that is withdrawn stands.
    ForgetsWithdrawals,
    /// A holder whose acquire was cancelled is not noticed.
    IgnoresCancel,
    /// Everybody who waits is told of a deadlock.
    CriesDeadlock,
    /// A conversion is granted whoever else holds.
    ConvertsOverOthers,
    /// Release wants to know the token.
    ReleasesByToken,
    /// One is said to be woken, and all are.
    HidesItsHerd,
    /// Each recipe has its own table.
    RecipesAreStrangers,
    /// Starts are recorded, and forgotten.
    ForgetsStarts,
    /// Starts are recorded by whoever comes.
    AnybodyStarts,
    /// A start is recorded whether or not there is another in its window.
    StartsOverOthers,
    /// A start is recorded as of now, however long ago it was.
    StartsAtTheEnd,
    /// A start stands for ever.
    StartsForEver,
    /// All resources have one start.
    StartsEverything,
    /// A start costs the value.
    StartsOverTheValue,
    /// A holder is not told that others wait.
    LosesNotices,
    /// An observer is not told of changes.
    LosesChanges,
    /// A lock is free as soon as its holder expired.
    ForgetsLockDelays,
}
