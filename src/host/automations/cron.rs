//! Cron expressions of schedules: five fields, read in a time zone.
//!
//! Owns: the grammar of AHP 1.0.0 (`AutomationSchedule`) and the occurrences of an expression.
//! Never: reads a clock or a database of zones: both are arguments.
//!
//! A local time that a change of the clock skips does not occur, and one that happens twice occurs
//! at both instants.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

/// Number of years in which the next occurrence is searched.
const YEARS_MAX: i16 = 10;

/// Maximum number of occurrences that are compared to find the smallest interval.
const COMPARED_MAX: usize = 10_000;

/// Number of days in which occurrences are compared to find the smallest interval.
const COMPARED_DAYS: i64 = 400;

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Schedule: an expression and the zone in which it is read.
#[derive(Debug, Clone)]
pub(crate) struct Cron {
    minutes: Values,
    hours: Values,
    days: Values,
    months: Values,
    weekdays: Values,
    zone: TimeZone,
}

/// Values of a field that match, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Values {
    bits: u64,
    /// Set unless the field is `*`.
    restricted: bool,
}

impl Values {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits >> value & 1 == 1)
    }

    /// Returns the first matching value that is not less than `least`.
    fn at_least(self, least: i8) -> Option<i8> {
        (least..64).find(|value| self.has(*value))
    }
}

/// Name, bounds and names of the values of a field.
struct CronField {
    name: &'static str,
    first: u8,
    last: u8,
    /// Names of the values from `first` on.
    names: &'static [&'static str],
}

impl CronField {
    fn parse(&self, text: &str) -> Result<Values, String> {
        let items: Vec<&str> = text.split(',').collect();
        let mut bits = 0;
        for item in &items {
            let (range, step) = match item.split_once('/') {
                Some((range, step)) => (range, Some(step)),
                None => (*item, None),
            };
            let (from, to) = match range.split_once('-') {
                _ if range == "*" && items.len() == 1 => (self.first, self.last),
                Some((from, to)) => (self.value(from)?, self.value(to)?),
                None if step.is_none() => (self.value(range)?, self.value(range)?),
                None => return Err(format!("{} `{item}`: a step needs `*` or a range", self.name)),
            };
            if from > to {
                return Err(format!("{} `{item}`: the range ends before it begins", self.name));
            }
            // A larger step than the field has values leaves the first one.
            let read = |text: &str| number(text).or_else(|| is_number(text).then_some(u8::MAX));
            let step = step.map_or(Some(1), read).filter(|step| *step > 0);
            let step =
                step.ok_or_else(|| format!("{} `{item}`: the step is no positive number", self.name))?;
            for value in (from..=to).step_by(usize::from(step)) {
                bits |= 1_u64 << value;
            }
        }
        Ok(Values { bits, restricted: text != "*" })
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        let named = self.names.iter().zip(self.first..).find(|(name, _)| name.eq_ignore_ascii_case(text));
        let value = named.map(|(_, value)| value).or_else(|| number(text));
        let value = value.filter(|value| (self.first..=self.last).contains(value));
        let Self { name, first, last, .. } = self;
        value.ok_or_else(|| format!("{name} `{text}`: not a value from {first} to {last}"))
    }
}

/// Reads a number of ASCII digits.
fn number(text: &str) -> Option<u8> {
    is_number(text).then(|| text.parse().ok())?
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl Cron {
    /// Reads an expression.
    ///
    /// # Errors
    /// When it is not in the grammar; the text is for people.
    pub(crate) fn parse(expression: &str, zone: TimeZone) -> Result<Self, String> {
        let fields: Vec<&str> = expression.split_ascii_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            let count = fields.len();
            return Err(format!("it has {count} fields instead of minute, hour, day, month and weekday"));
        };
        let field = |name, first, last, names| CronField { name, first, last, names };
        let mut weekdays = field("weekday", 0, 7, &WEEKDAYS).parse(weekdays)?;
        // Both 0 and 7 are Sunday.
        weekdays.bits = (weekdays.bits | weekdays.bits >> 7) & 0x7f;
        Ok(Self {
            minutes: field("minute", 0, 59, &[]).parse(minutes)?,
            hours: field("hour", 0, 23, &[]).parse(hours)?,
            days: field("day", 1, 31, &[]).parse(days)?,
            months: field("month", 1, 12, &MONTHS).parse(months)?,
            weekdays,
            zone,
        })
    }

    /// Returns the first occurrence after a time; `None` if there is none within ten years.
    pub(crate) fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let mut from = after.checked_add(1.millisecond()).ok()?;
        let end = self.zone.to_datetime(from).checked_add(Span::new().years(YEARS_MAX)).ok()?;
        // Between two changes of the clock, local time runs like time itself. Each round looks at
        // one such period.
        loop {
            let local = self.zone.to_datetime(from);
            let change = self.zone.following(from).next().map(|change| change.timestamp());
            let until = change.and_then(|change| local.checked_add(change.duration_since(from)).ok());
            let found = self.next_local(local, until.map_or(end, |until| until.min(end)));
            let found = found.and_then(|found| from.checked_add(found.duration_since(local)).ok());
            match (found, change) {
                (Some(found), Some(change)) if found >= change => from = change,
                (None, Some(change)) if self.zone.to_datetime(change) < end => from = change,
                (found, _) => return found,
            }
        }
    }

    /// Returns the smallest time between two occurrences after a time, in whole minutes, as far as
    /// they are compared; `None` if there are no two.
    pub(crate) fn smallest_interval(&self, after: Timestamp) -> Option<i64> {
        let end = after.checked_add((COMPARED_DAYS * 24).hours()).ok()?;
        let mut before = self.next_after(after)?;
        let mut smallest = None;
        for _ in 0..COMPARED_MAX {
            let Some(next) = self.next_after(before) else { break };
            let interval = next.duration_since(before).as_mins();
            smallest = Some(smallest.map_or(interval, |smallest: i64| smallest.min(interval)));
            if next > end || smallest == Some(1) {
                break;
            }
            before = next;
        }
        smallest
    }

    /// Returns the first matching local time from `from` to `end`, if no clock changes.
    fn next_local(&self, from: DateTime, end: DateTime) -> Option<DateTime> {
        let whole = from.time().second() == 0 && from.time().subsec_nanosecond() == 0;
        let minute = from.with().second(0).subsec_nanosecond(0).build().ok()?;
        let from = if whole { minute } else { minute.checked_add(1.minute()).ok()? };
        let mut date = from.date();
        let (mut hour, mut minute) = (from.hour(), from.minute());
        while date <= end.date() {
            if self.matches_date(date) {
                if let Some((hour, minute)) = self.next_of_day(hour, minute) {
                    let found = date.at(hour, minute, 0, 0);
                    return (found <= end).then_some(found);
                }
            }
            (hour, minute) = (0, 0);
            date = match self.months.has(date.month()) {
                true => date.tomorrow().ok()?,
                false => date.last_of_month().tomorrow().ok()?,
            };
        }
        None
    }

    /// Returns the first matching hour and minute of a day from the given ones on.
    fn next_of_day(&self, hour: i8, minute: i8) -> Option<(i8, i8)> {
        if self.hours.has(hour) {
            if let Some(minute) = self.minutes.at_least(minute) {
                return Some((hour, minute));
            }
        }
        Some((self.hours.at_least(hour + 1)?, self.minutes.at_least(0)?))
    }

    fn matches_date(&self, date: Date) -> bool {
        let day = self.days.has(date.day());
        let weekday = self.weekdays.has(date.weekday().to_sunday_zero_offset());
        let either = self.days.restricted && self.weekdays.restricted;
        self.months.has(date.month()) && if either { day || weekday } else { day && weekday }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn cron(expression: &str, name: &str) -> Cron {
        Cron::parse(expression, zone(name)).unwrap()
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Occurrences of an expression from a time up to another.
    fn occurrences(cron: &Cron, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let next = |time: &Timestamp| cron.next_after(*time).filter(|next| *next < to);
        std::iter::successors(next(&(from - 1.millisecond())), next).collect()
    }

    type Rule = fn(&DateTime) -> bool;

    /// Expressions, each with the rule that it stands for, written without the parser.
    const RULES: [(&str, Rule); 16] = [
        ("*/15 * * * *", |at| at.minute() % 15 == 0),
        ("7-59/20 1-4 * * *", |at| [7, 27, 47].contains(&at.minute()) && (1..=4).contains(&at.hour())),
        ("30 2 * * *", |at| (at.hour(), at.minute()) == (2, 30)),
        ("0,59 0,23 * * *", |at| [0, 59].contains(&at.minute()) && [0, 23].contains(&at.hour())),
        ("30 1,3,8-10 * * *", |at| at.minute() == 30 && [1, 3, 8, 9, 10].contains(&at.hour())),
        ("0 12 29 feb *", |at| (at.month(), at.day(), at.hour(), at.minute()) == (2, 29, 12, 0)),
        ("0 0 31 * *", |at| (at.day(), at.hour(), at.minute()) == (31, 0, 0)),
        ("15 3 * Jan-mar,OCT *", |at| {
            [1, 2, 3, 10].contains(&at.month()) && (at.hour(), at.minute()) == (3, 15)
        }),
        ("0 2 * * 0", |at| at.weekday().to_sunday_zero_offset() == 0 && (at.hour(), at.minute()) == (2, 0)),
        ("0 2 * * 7", |at| at.weekday().to_sunday_zero_offset() == 0 && (at.hour(), at.minute()) == (2, 0)),
        ("0 2 * * Fri-7", |at| {
            [5, 6, 0].contains(&at.weekday().to_sunday_zero_offset()) && (at.hour(), at.minute()) == (2, 0)
        }),
        ("0 9 13 * 5", |at| {
            (at.day() == 13 || at.weekday().to_sunday_zero_offset() == 5)
                && (at.hour(), at.minute()) == (9, 0)
        }),
        ("0 9 */10 * mon", |at| {
            let day = [1, 11, 21, 31].contains(&at.day()) || at.weekday().to_sunday_zero_offset() == 1;
            day && (at.hour(), at.minute()) == (9, 0)
        }),
        ("0 9 1-7 6 *", |at| at.month() == 6 && at.day() <= 7 && (at.hour(), at.minute()) == (9, 0)),
        ("*/30 0-3 * 3,4,9-11 sun,SAT", |at| {
            let day = [0, 6].contains(&at.weekday().to_sunday_zero_offset());
            day && [3, 4, 9, 10, 11].contains(&at.month()) && at.hour() <= 3 && at.minute() % 30 == 0
        }),
        ("59 23 30,31 12 *", |at| at.month() == 12 && at.day() >= 30 && (at.hour(), at.minute()) == (23, 59)),
    ];

    /// Compares every rule with a scan of every minute, over a year and over changes of the clock:
    /// by an hour, by half an hour (Lord Howe), at midnight (Santiago), backwards in winter
    /// (Dublin), by a day (Apia), and around Ramadan (Casablanca).
    #[test]
    fn occurrences_equal_a_scan_of_every_minute() {
        for (name, from, to) in [
            ("UTC", "2027-12-01T00:00:00Z", "2028-03-02T00:00:00Z"),
            ("Europe/Berlin", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("America/New_York", "2027-03-01T00:00:00Z", "2027-04-01T00:00:00Z"),
            ("Australia/Lord_Howe", "2026-03-25T00:00:00Z", "2026-04-10T00:00:00Z"),
            ("America/Santiago", "2026-08-25T00:00:00Z", "2026-09-15T00:00:00Z"),
            ("Europe/Dublin", "2027-10-20T00:00:00Z", "2027-11-10T00:00:00Z"),
            ("Pacific/Apia", "2011-12-20T00:00:00Z", "2012-01-10T00:00:00Z"),
            ("Africa/Casablanca", "2026-02-01T00:00:00Z", "2026-04-01T00:00:00Z"),
            ("Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ] {
            let (zone, from, to) = (zone(name), time(from), time(to));
            let mut scanned = vec![Vec::new(); RULES.len()];
            let mut at = from;
            while at < to {
                let local = zone.to_datetime(at);
                for ((_, rule), scanned) in RULES.iter().zip(&mut scanned) {
                    if rule(&local) {
                        scanned.push(at);
                    }
                }
                at += 1.minute();
            }
            for ((expression, _), scanned) in RULES.iter().zip(scanned) {
                assert_eq!(occurrences(&cron(expression, name), from, to), scanned, "{expression} in {name}");
            }
        }
    }

    #[test]
    fn skipped_time_does_not_occur_and_repeated_time_occurs_twice() {
        let cron = cron("30 2 * * *", "Europe/Berlin");
        let spring = occurrences(&cron, time("2026-03-28T12:00:00Z"), time("2026-03-30T12:00:00Z"));
        assert_eq!(spring, [time("2026-03-30T00:30:00Z")]);
        let autumn = occurrences(&cron, time("2026-10-24T12:00:00Z"), time("2026-10-25T12:00:00Z"));
        assert_eq!(autumn, [time("2026-10-25T00:30:00Z"), time("2026-10-25T01:30:00Z")]);
    }

    #[test]
    fn next_occurrence_is_searched_for_ten_years_only() {
        let leap = cron("0 0 29 2 *", "UTC");
        assert_eq!(leap.next_after(time("2096-02-29T00:00:00Z")), Some(time("2104-02-29T00:00:00Z")));
        for zone in ["UTC", "Europe/Berlin"] {
            assert_eq!(cron("0 0 30 2 *", zone).next_after(time("2026-01-01T00:00:00Z")), None);
        }
        assert_eq!(cron("* * * * *", "UTC").next_after(Timestamp::MAX), None);
    }

    #[test]
    fn smallest_interval_is_that_of_consecutive_occurrences() {
        let after = time("2026-01-01T00:00:00Z");
        for (expression, zone, minutes) in [
            ("* * * * *", "UTC", Some(1)),
            ("0,50 * * * *", "UTC", Some(10)),
            ("0 * * * *", "Europe/Berlin", Some(60)),
            ("30 2 * * *", "Europe/Berlin", Some(60)),
            ("0 12 * * *", "UTC", Some(24 * 60)),
            ("0 0 30 2 *", "UTC", None),
        ] {
            assert_eq!(cron(expression, zone).smallest_interval(after), minutes, "{expression}");
        }
    }

    #[test]
    fn step_beyond_the_values_of_a_field_leaves_the_first_one() {
        let zone = TimeZone::UTC;
        for (large, same) in [("*/300 * * * *", "0 * * * *"), ("5-9/99999999999 * * * *", "5 * * * *")] {
            let read = |text: &str| Cron::parse(text, zone.clone()).unwrap().minutes.bits;
            assert_eq!(read(large), read(same), "{large}");
        }
    }

    #[test]
    fn expressions_outside_the_grammar_are_refused() {
        for expression in [
            "",
            "* * * *",
            "* * * * * *",
            "@daily",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 0 *",
            "* * * 13 *",
            "* * * * 8",
            "5/2 * * * *",
            "*/0 * * * *",
            "*/ * * * *",
            "5-1 * * * *",
            "1,,2 * * * *",
            ", * * * *",
            "*,5 * * * *",
            "-5 * * * *",
            "+5 * * * *",
            "1- * * * *",
            "? * * * *",
            "* * L * *",
            "* * 15W * *",
            "* * * * 5#2",
            "* * * JANUARY *",
            "MON * * * *",
            "* * * * SAT-SUN",
            "*/2/3 * * * *",
            "1-2-3 * * * *",
            "300 * * * *",
            "١ * * * *",
        ] {
            assert!(Cron::parse(expression, TimeZone::UTC).is_err(), "{expression}");
        }
    }
}
