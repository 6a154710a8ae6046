//! Durations in text form: `500ms`, `10s`, `1m30s`, `2h`.

use std::time::Duration;

/// Parses a duration. A bare number is refused, because its unit is ambiguous: seconds in `sleep`, milliseconds in Redis.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("{text} of what? Write {text}s for seconds, or {text}ms, {text}m, {text}h"));
    }
    if text.starts_with('-') {
        return Err(negative(text));
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; {EXAMPLES}"))
}

const EXAMPLES: &str = "durations look like 500ms, 10s, 1m30s or 2h";

/// Returns the error for a negative value.
pub(crate) fn negative(text: &str) -> String {
    format!("{text} is negative; {EXAMPLES}")
}

/// Formats a duration for people: at most two units, and nothing below a second unless the duration is shorter.
pub(crate) fn text(duration: Duration) -> String {
    let rounded = match duration.as_secs() {
        0 => Duration::from_millis(u64::from(duration.subsec_millis())),
        seconds @ 1..3600 => Duration::from_secs(seconds),
        seconds @ 3600..86_400 => Duration::from_secs(seconds / 60 * 60),
        seconds => Duration::from_secs(seconds / 3600 * 3600),
    };
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("2h 5m"), Ok(Duration::from_mins(125)));
        assert_eq!(parse("90").unwrap_err(), "90 of what? Write 90s for seconds, or 90ms, 90m, 90h");
        assert!(parse("1.5").unwrap_err().contains("1.5s for seconds"));
        assert!(parse("-5s").unwrap_err().starts_with("-5s is negative"));
        for wrong in ["", "s", "1m30", "-1s", "soon", "99999999999999999999h"] {
            let complaint = parse(wrong).unwrap_err();
            assert!(
                complaint.ends_with("durations look like 500ms, 10s, 1m30s or 2h"),
                "{wrong}: {complaint}"
            );
        }
    }

    #[test]
    fn people_read_two_units() {
        let shown = |seconds| text(Duration::from_secs(seconds));
        assert_eq!(text(Duration::from_millis(40)), "40ms");
        assert_eq!(text(Duration::from_millis(1900)), "1s");
        assert_eq!(shown(90), "1m 30s");
        assert_eq!(shown(3 * 3600 + 65), "3h 1m");
        assert_eq!(shown(2 * 86_400 + 3700), "2days 1h");
    }
}
