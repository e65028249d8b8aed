//! A day in the calendar as a moment.

use portolan_base::Moment;

/// A text that names no day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no day; write it like 2027-01-31")]
pub struct BadDay(pub String);

/// The moment at which a day of the years 1970 to 9999, written `YYYY-MM-DD`, ends in UTC.
pub fn end_of(day: &str) -> Result<Moment, BadDay> {
    let parsed = parse(day).ok_or_else(|| BadDay(day.to_owned()))?;
    Ok(Moment((days_since_1970(parsed) + 1) * 86_400_000_000))
}

fn parse(day: &str) -> Option<(u64, u64, u64)> {
    let digits = |text: &str, many: usize| -> Option<u64> {
        let plain = text.len() == many && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    let mut parts = day.split('-');
    let year = digits(parts.next()?, 4)?;
    let month = digits(parts.next()?, 2)?;
    let date = digits(parts.next()?, 2)?;
    let fits = parts.next().is_none() && year >= 1970 && (1..=12).contains(&month) && date >= 1;
    (fits && date <= days_of(year, month)).then_some((year, month, date))
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn days_since_1970((year, month, date): (u64, u64, u64)) -> u64 {
    let years: u64 = (1970..year)
        .map(|year| if is_leap(year) { 366 } else { 365 })
        .sum();
    let months: u64 = (1..month).map(|month| days_of(year, month)).sum();
    years + months + date - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_ends_where_the_next_begins() {
        assert_eq!(end_of("1970-01-01"), Ok(Moment(86_400_000_000)));
        // date -ud '2024-03-01' +%s is 1709251200; 2026-07-01 is 1782864000.
        assert_eq!(end_of("2024-02-29"), Ok(Moment(1_709_251_200_000_000)));
        assert_eq!(end_of("2026-06-30"), Ok(Moment(1_782_864_000_000_000)));
    }

    #[test]
    fn what_is_no_day_is_refused() {
        for bad in [
            "",
            "2027",
            "2027-1-31",
            "2027-02-29",
            "2027-13-01",
            "2027-00-10",
            "2027-04-31",
            "1969-12-31",
            "2027-01-31-",
            "2027-01-31T00:00:00Z",
            "+027-01-01",
        ] {
            assert_eq!(end_of(bad), Err(BadDay(bad.to_owned())));
        }
    }
}
