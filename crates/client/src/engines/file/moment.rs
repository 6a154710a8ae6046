//! A moment that remains meaningful after a reboot: the recorded start of a job, for later queries.
//!
//! Within one boot, the boot clock measures its age, and a jump of the wall clock changes nothing. After a reboot that clock has restarted,
//! and only the wall clock is left; but a moment before the reboot is at least as old as the machine's uptime.
//!
//! A container may have a separate boot id, and the host's clocks. This case is recognized by an equal advance of both clocks.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::{BootTime, Clock};

/// The id of a boot of the machine. The kernel draws it at random at every boot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct BootId([u8; 16]);

impl BootId {
    /// Returns the id of the current boot; `None` if the kernel does not report it.
    pub(super) fn of_this_boot() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        // An id of zeros would not be unique.
        let id = u128::from_str_radix(&digits, 16).ok().filter(|id| digits.len() == 32 && *id != 0)?;
        Some(Self(id.to_be_bytes()))
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A moment on the clocks of one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    boot: BootId,
    since_boot_ns: u64,
    /// The wall clock, since 1970.
    wall_ns: u64,
}

impl Moment {
    pub(super) const BYTES: usize = 32;

    pub(super) fn new(boot: BootId, now: BootTime, wall: SystemTime) -> Self {
        let since_1970 = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { boot, since_boot_ns: nanos(now.since_boot()), wall_ns: nanos(since_1970) }
    }

    /// Returns the moment that long before this one; at the earliest, the boot.
    pub(super) fn before(self, ago: Duration) -> Self {
        let ago = nanos(ago);
        Self {
            since_boot_ns: self.since_boot_ns.saturating_sub(ago),
            wall_ns: self.wall_ns.saturating_sub(ago),
            ..self
        }
    }

    /// Returns the age of the moment; zero if it is in the future by the clock that counts.
    pub(super) fn age(self, now: Self) -> Duration {
        /// The largest drift between two clocks of one host. A larger difference means two hosts, or a clock that was set.
        const DRIFT_NS: u64 = 5_000_000_000;
        let by_boot = now.since_boot_ns.checked_sub(self.since_boot_ns);
        let by_wall = now.wall_ns.saturating_sub(self.wall_ns);
        Duration::from_nanos(if self.boot == now.boot {
            by_boot.unwrap_or(0)
        } else if by_boot.is_some_and(|by_boot| by_boot.abs_diff(by_wall) < DRIFT_NS) {
            // The same boot under another id; or a coincidence, and then the wall clock is right as well.
            by_wall
        } else {
            by_wall.max(now.since_boot_ns)
        })
    }

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..16].copy_from_slice(&self.boot.0);
        bytes[16..24].copy_from_slice(&self.since_boot_ns.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.wall_ns.to_le_bytes());
        bytes
    }

    /// Decodes a moment. Returns `None` if all bytes are zero.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (boot, times) = bytes.split_at(16);
        let (since_boot, wall) = times.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        let boot = BootId(boot.try_into().ok()?);
        let moment = Self { boot, since_boot_ns: number(since_boot)?, wall_ns: number(wall)? };
        (*bytes != [0; Self::BYTES]).then_some(moment)
    }
}

/// Converts to nanoseconds. As dates, they last until the year 2554.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The source of the current moment.
#[derive(Clone, Debug)]
pub(super) struct HostClock {
    pub(super) boot: BootId,
    pub(super) clock: Arc<dyn Clock>,
}

impl HostClock {
    pub(super) fn now(&self) -> Moment {
        Moment::new(self.boot, self.clock.now(), self.clock.wall())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: BootId = BootId([1; 16]);
    const SECOND: BootId = BootId([2; 16]);

    /// Returns the moment with these seconds since boot and since 1970.
    fn moment(boot: BootId, since_boot: u64, wall: u64) -> Moment {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(wall);
        Moment::new(boot, BootTime::from_boot(Duration::from_secs(since_boot)), wall)
    }

    fn age(start: Moment, now: Moment) -> u64 {
        start.age(now).as_secs()
    }

    #[test]
    fn within_a_boot_the_calendar_changes_nothing() {
        let start = moment(FIRST, 100, 5000);
        for wall in [0, 5000, 5060, 9_000_000] {
            assert_eq!(age(start, moment(FIRST, 160, wall)), 60, "at {wall}");
        }
        assert_eq!(age(start, moment(FIRST, 40, 5060)), 0, "still to come");
    }

    #[test]
    fn a_container_with_a_boot_id_of_its_own_is_no_reboot() {
        let start = moment(FIRST, 90_000, 5000);
        assert_eq!(age(start, moment(SECOND, 90_010, 5010)), 10);
        assert_eq!(age(start, moment(SECOND, 90_000, 5000)), 0);
    }

    #[test]
    fn after_a_reboot_the_calendar_counts_and_at_least_the_time_since_then() {
        let start = moment(FIRST, 100, 5000);
        assert_eq!(age(start, moment(SECOND, 30, 5090)), 90);
        // The boot clock of the first boot says nothing about the second.
        assert_eq!(age(start, moment(SECOND, 160, 5200)), 200);
        assert_eq!(age(start, moment(SECOND, 30, 5010)), 30, "the calendar went back by some");
        assert_eq!(age(start, moment(SECOND, 30, 4000)), 30, "it went back behind the start");
    }

    #[test]
    fn a_start_that_was_some_time_ago_is_as_old_on_both_clocks() {
        let start = moment(FIRST, 100, 5000).before(Duration::from_secs(10));
        assert_eq!(start, moment(FIRST, 90, 4990));
        assert_eq!(moment(FIRST, 5, 5000).before(Duration::from_secs(10)), moment(FIRST, 0, 4990));
    }

    #[test]
    fn what_was_written_is_read_and_zeros_are_nothing() {
        let start = moment(FIRST, 100, 5000);
        assert_eq!(Moment::decode(&start.encode()), Some(start));
        assert_eq!(Moment::decode(&[0; Moment::BYTES]), None);
        let mut bytes = [0; Moment::BYTES];
        bytes[..16].fill(1);
        bytes[16..24].copy_from_slice(&100_000_000_000_u64.to_le_bytes());
        bytes[24..].copy_from_slice(&5_000_000_000_000_u64.to_le_bytes());
        assert_eq!(start.encode(), bytes);
    }

    #[test]
    fn a_boot_has_an_id_that_stays() {
        assert!(BootId::of_this_boot().is_some());
        assert_eq!(BootId::of_this_boot(), BootId::of_this_boot());
        let parsed = BootId::parse("00010203-0405-0607-0809-0a0b0c0d0e0f\n");
        assert_eq!(parsed, Some(BootId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])));
        for wrong in
            ["", "0001", "00000000-0000-0000-0000-000000000000", "+0010203-0405-0607-0809-0a0b0c0d0e0f0"]
        {
            assert_eq!(BootId::parse(wrong), None, "{wrong}");
        }
    }
}
