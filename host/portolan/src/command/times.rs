//! Times as they are typed and as they are shown.

use serde_json::Value;
use std::time::Duration;

/// `90s`, `30m`, `1h`, `2d`, `1w`, and several of them together.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let trouble = || format!("{text:?} is no time; write 90s, 30m, 1h, 2d, 1w or 1h30m");
    let (mut rest, mut seconds) = (text, 0u64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| trouble())?;
        let unit = match rest[digits..].chars().next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3_600,
            Some('d') => 86_400,
            Some('w') => 604_800,
            _ => return Err(trouble()),
        };
        let part = number.checked_mul(unit).ok_or_else(trouble)?;
        seconds = seconds.checked_add(part).ok_or_else(trouble)?;
        rest = &rest[digits + 1..];
    }
    if seconds == 0 {
        return Err(trouble());
    }
    Ok(Duration::from_secs(seconds))
}

/// Unix time in µs as a date and a time of day, in UTC.
pub(super) fn when(at: &Value) -> String {
    let seconds = at.as_u64().unwrap_or(0) / 1_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days to a date: the algorithm of Howard Hinnant's `civil_from_days`, for days after 1970.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_with_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        for bad in [
            "",
            "h",
            "1",
            "0s",
            "1.5h",
            "-1m",
            "1é",
            "1 h",
            "1H",
            "1h30",
            "18446744073709551615d",
        ] {
            assert!(duration(bad).unwrap_err().contains("write 90s"), "{bad}");
        }
    }

    #[test]
    fn moments_are_written_for_people() {
        for (at, said) in [
            (0_u64, "1970-01-01 00:00:00"),
            (951_827_696, "2000-02-29 12:34:56"),
            (1_767_225_599, "2025-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(when(&json!(at * 1_000_000)), said);
        }
    }
}
