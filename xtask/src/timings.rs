//! How long tests took: by suite, and the slowest.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// So many of the slowest tests are shown.
const SLOWEST: usize = 30;

/// A suite or program that takes less is not shown.
const LEAST: Duration = Duration::from_secs(1);

/// What came of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Ignored,
}

/// A line in which a test harness says what came of a test.
#[derive(Debug, PartialEq)]
pub(crate) struct Line<'a> {
    pub(crate) test: &'a str,
    pub(crate) outcome: Outcome,
    /// Only if the harness was told to say it.
    pub(crate) took: Option<Duration>,
}

impl<'a> Line<'a> {
    /// Reads `test suite::area::case ... ok <1.234s>`. Anything else is not such a line, also if a program that the test has started
    /// printed in the middle of it: then the exit status of the test program tells whether a test failed.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let (outcome, took) = match rest.rsplit_once(" <") {
            Some((outcome, took)) => (outcome, Some(seconds(took.strip_suffix("s>")?)?)),
            None => (rest, None),
        };
        let outcome = match outcome.split([',', ' ']).next()? {
            "ok" => Outcome::Passed,
            "FAILED" => Outcome::Failed,
            "ignored" => Outcome::Ignored,
            _ => return None,
        };
        Some(Self { test, outcome, took })
    }
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// What was measured so far.
#[derive(Default)]
pub(crate) struct Timings {
    /// Of each program: what it is called, and how long it ran.
    programs: Vec<(String, Duration)>,
    /// Of each test: the program, the test, and how long it took.
    tests: Vec<(String, String, Duration)>,
}

impl Timings {
    pub(crate) fn program(&mut self, title: &str, took: Duration) {
        self.programs.push((title.to_owned(), took));
    }

    pub(crate) fn test(&mut self, program: &str, test: &str, took: Duration) {
        self.tests.push((program.to_owned(), test.to_owned(), took));
    }

    /// The tables, for the end.
    pub(crate) fn tables(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "    {:>8}  program", "seconds");
        for (title, took) in self.programs.iter().filter(|(_, took)| *took >= LEAST) {
            let _ = writeln!(text, "    {:>8.1}  {title}", took.as_secs_f64());
        }
        let mut suites: BTreeMap<String, (usize, Duration)> = BTreeMap::new();
        for (program, test, took) in &self.tests {
            let (count, sum) = suites.entry(suite(program, test)).or_default();
            *count += 1;
            *sum += *took;
        }
        let mut suites: Vec<_> = suites.into_iter().collect();
        suites.sort_by_key(|(_, (_, sum))| std::cmp::Reverse(*sum));
        let _ = writeln!(
            text,
            "\n    {:>8}  {:>5}  suite (seconds are summed over its tests)",
            "seconds", "tests"
        );
        for (suite, (count, sum)) in suites.into_iter().filter(|(_, (_, sum))| *sum >= LEAST) {
            let _ = writeln!(text, "    {:>8.1}  {count:>5}  {suite}", sum.as_secs_f64());
        }
        let mut slowest: Vec<_> = self.tests.iter().collect();
        slowest.sort_by_key(|(.., took)| std::cmp::Reverse(*took));
        let _ = writeln!(text, "\n    {:>8}  the {SLOWEST} slowest tests", "seconds");
        for (program, test, took) in slowest.into_iter().take(SLOWEST) {
            let _ = writeln!(text, "    {:>8.1}  {program} {test}", took.as_secs_f64());
        }
        text
    }
}

/// A suite is a module of a program, or a module of that if it has some: `redis contract::fair`, `redis queue`.
fn suite(program: &str, test: &str) -> String {
    let modules: Vec<&str> = test.split("::").collect();
    let modules = &modules[..modules.len().saturating_sub(1).min(2)];
    if modules.is_empty() { program.to_owned() } else { format!("{program} {}", modules.join("::")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_a_time() {
        let line = |test, outcome, took| Some(Line { test, outcome, took });
        let took = Some(Duration::from_millis(1234));
        let parsed = Line::parse("test fair::crash::a ... ok <1.234s>");
        assert_eq!(parsed, line("fair::crash::a", Outcome::Passed, took));
        assert_eq!(Line::parse("test a ... FAILED"), line("a", Outcome::Failed, None));
        let parsed = Line::parse("test a - should panic ... ok");
        assert_eq!(parsed, line("a - should panic", Outcome::Passed, None));
        let parsed = Line::parse("test a ... ignored, takes minutes");
        assert_eq!(parsed, line("a", Outcome::Ignored, None));
        assert_eq!(Line::parse("test a ... printed by a child"), None);
        assert_eq!(Line::parse("test a has been running for over 60 seconds"), None);
        assert_eq!(Line::parse("test result: ok. 3 passed; 0 failed"), None);
        assert_eq!(Line::parse("running 3 tests"), None);
    }

    #[test]
    fn tables_have_programs_suites_and_the_slowest() {
        let mut timings = Timings::default();
        timings.program("redis", Duration::from_secs(9));
        let tests =
            [("contract::fair::leaks::a", 2), ("contract::fair::sets::b", 3), ("queue::a", 7), ("alone", 1)];
        for (test, took_s) in tests {
            timings.test("redis", test, Duration::from_secs(took_s));
        }
        let tables = timings.tables();
        for line in [
            "9.0  redis",
            "7.0      1  redis queue",
            "5.0      2  redis contract::fair",
            "7.0  redis queue::a",
        ] {
            assert!(tables.contains(line), "{line} in\n{tables}");
        }
    }
}
