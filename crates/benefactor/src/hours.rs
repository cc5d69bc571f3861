//! Hours in which a benefactor works for the pool, by the clock on its owner's wall.
//!
//! The present local time alone decides: the day of the week, hour and minute. So an hour that the clock skips in spring is not there, and
//! one that comes twice in autumn counts twice. The time zone is that of the machine (`TZ`, or `/etc/localtime`), read again by
//! `chrono` when it changes: rules of time zones are nothing to write anew.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike, Local, Timelike};

const MINUTES_PER_DAY: u16 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// Most spans in one text: more than a week has hours.
const SPANS_MAX: usize = 200;

/// Hours of the week, such as `mon-fri 20:00-07:00, sat-sun 00:00-24:00`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hours(Vec<Span>);

/// Hours of some days. Those that end before they begin go past midnight, into the next day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    /// First and last of the days on which they begin, 0 being Monday; the first may be behind the last: then over Sunday.
    days: (u8, u8),
    /// Minute of the day in which they begin.
    from: u16,
    /// Minute of the day in which they are over.
    until: u16,
}

/// Why a text names no hours.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotHours {
    /// A part is something else.
    #[error(
        "`{0}` is none of `DAY HH:MM-HH:MM`, `DAY-DAY HH:MM-HH:MM` and `HH:MM-HH:MM`, with days from mon to sun"
    )]
    Part(String),
    /// No time of the day.
    #[error("`{0}` is no time of the day: give HH:MM from 00:00 to 24:00")]
    Time(String),
    /// They end as they begin.
    #[error("`{0}` begins when it ends: give 00:00-24:00 for whole days")]
    Empty(String),
    /// Too many parts.
    #[error("there are more than 200 parts")]
    Many,
}

impl Hours {
    /// Whether the local clock shows one of these hours now.
    #[must_use]
    pub fn are_now(&self) -> bool {
        let now = Local::now();
        self.include(now.weekday().num_days_from_monday(), now.hour() * 60 + now.minute())
    }

    /// Whether the minute `minute` of a day of the week, Monday being 0, is among them.
    fn include(&self, day: u32, minute: u32) -> bool {
        self.0.iter().any(|span| span.includes(day, minute))
    }
}

impl Span {
    fn includes(&self, day: u32, minute: u32) -> bool {
        let (from, until) = (u32::from(self.from), u32::from(self.until));
        if from < until {
            return self.begins_on(day) && (from..until).contains(&minute);
        }
        self.begins_on(day) && minute >= from || self.begins_on((day + 6) % 7) && minute < until
    }

    fn begins_on(&self, day: u32) -> bool {
        let (first, last) = (u32::from(self.days.0), u32::from(self.days.1));
        if first <= last { (first..=last).contains(&day) } else { day >= first || day <= last }
    }
}

impl FromStr for Hours {
    type Err = NotHours;

    fn from_str(text: &str) -> Result<Self, NotHours> {
        let spans: Vec<Span> = text.split(',').take(SPANS_MAX + 1).map(span).collect::<Result<_, _>>()?;
        if spans.len() > SPANS_MAX { Err(NotHours::Many) } else { Ok(Self(spans)) }
    }
}

fn span(text: &str) -> Result<Span, NotHours> {
    let part = || NotHours::Part(text.trim().to_owned());
    let words: Vec<&str> = text.split_whitespace().collect();
    let (days, hours) = match *words {
        [hours] => ((0, 6), hours),
        [one, hours] => (days(one).ok_or_else(part)?, hours),
        _ => return Err(part()),
    };
    let (from, until) = hours.split_once('-').ok_or_else(part)?;
    let span = Span { days, from: minute(from)?, until: minute(until)? };
    if span.from == span.until || span.from == MINUTES_PER_DAY || span.until == 0 && span.from == 0 {
        return Err(NotHours::Empty(hours.to_owned()));
    }
    Ok(span)
}

fn days(text: &str) -> Option<(u8, u8)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let day = |text: &str| (0..).zip(DAYS).find(|(_, name)| name.eq_ignore_ascii_case(text));
    Some((day(first)?.0, day(last)?.0))
}

/// The minute of the day that `HH:MM` names.
fn minute(text: &str) -> Result<u16, NotHours> {
    let refused = || NotHours::Time(text.to_owned());
    let (hour, minute) = text.split_once(':').ok_or_else(refused)?;
    let number = |text: &str, most: u16| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|number| is_number && *number <= most).ok_or_else(refused)
    };
    let minute = number(hour, 24)? * 60 + number(minute, 59)?;
    if minute <= MINUTES_PER_DAY { Ok(minute) } else { Err(refused()) }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        let day = |day: u8| {
            DAYS.get(usize::from(day)).copied().unwrap_or_else(|| unreachable!("a week has seven days"))
        };
        for (place, span) in self.0.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            let days = match span.days {
                (first, last) if first == last => day(first).to_owned(),
                (first, last) => format!("{}-{}", day(first), day(last)),
            };
            write!(f, "{comma}{days} {}-{}", time(span.from), time(span.until))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of these times, such as `mon 08:00`, is among the hours.
    fn among(hours: &str, times: &[&str]) -> Vec<bool> {
        let hours: Hours = hours.parse().unwrap();
        let at = |text: &&str| {
            let (name, time) = text.split_once(' ').unwrap();
            hours.include(u32::from(days(name).unwrap().0), u32::from(minute(time).unwrap()))
        };
        times.iter().map(at).collect()
    }

    #[test]
    fn hours_past_midnight_belong_to_the_day_on_which_they_begin() {
        let nights = "mon-fri 20:00-07:00, sat-sun 00:00-24:00";
        let inside = ["mon 20:00", "tue 06:59", "fri 23:59", "sat 00:00", "sat 12:00", "sun 23:59"];
        let outside = ["mon 00:00", "mon 06:59", "mon 19:59", "tue 07:00", "fri 12:00"];
        assert_eq!(among(nights, &inside), [true; 6]);
        assert_eq!(among(nights, &outside), [false; 5]);
        let weekend = "sat-mon 22:00-02:00";
        assert_eq!(among(weekend, &["sun 22:00", "mon 01:59", "tue 01:59", "sat 23:00"]), [true; 4]);
        assert_eq!(among(weekend, &["sat 01:00", "tue 22:00", "sun 21:59", "wed 01:00"]), [false; 4]);
        assert_eq!(
            among("08:30-17:00", &["sun 08:29", "sun 08:30", "wed 16:59", "wed 17:00"]),
            [false, true, true, false]
        );
        assert_eq!(among("WED 22:00-24:00", &["wed 23:59", "thu 00:00", "thu 22:00"]), [true, false, false]);
        assert_eq!(among("wed 22:00-00:00", &["wed 23:59", "thu 00:00", "thu 22:00"]), [true, false, false]);
    }

    #[test]
    fn what_is_no_hours_is_refused_with_the_part_that_is_wrong() {
        for (text, wrong) in [
            ("", "``"),
            ("18-8", "`18`"),
            ("18:00", "`18:00` is none of"),
            ("mon 18:00-18:00", "`18:00-18:00` begins"),
            ("00:00-00:00", "begins"),
            ("24:00-08:00", "begins"),
            ("25:00-08:00", "`25:00`"),
            ("18:60-08:00", "`18:60`"),
            ("24:01-08:00", "`24:01`"),
            ("18:00-8:00", "`8:00`"),
            ("+8:00-09:00", "`+8:00`"),
            ("mon-fri 20:00-07:00,", "``"),
            ("mon-fry 20:00-07:00", "`mon-fry 20:00-07:00`"),
            ("mo 20:00-07:00", "`mo 20:00-07:00`"),
            ("mon - fri 20:00-07:00", "`mon - fri"),
            ("mon 20:00-07:00 tue 20:00-07:00", "`mon 20:00"),
            ("mon 20:00-07:00; tue 20:00-07:00", "`mon 20:00"),
        ] {
            let error = text.parse::<Hours>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{text:?}: {error}");
        }
        assert_eq!("mon 01:00-02:00,".repeat(300).parse::<Hours>(), Err(NotHours::Many));
    }

    #[test]
    fn what_is_shown_of_hours_is_the_same_hours() {
        for text in [
            "mon-sun 18:00-08:00",
            "mon-fri 20:00-07:00, sat-sun 00:00-24:00",
            "sat-mon 09:05-17:45, tue 00:00-01:00",
        ] {
            let hours: Hours = text.parse().unwrap();
            assert_eq!(hours.to_string(), text);
        }
        assert_eq!("18:00-08:00".parse::<Hours>().unwrap().to_string(), "mon-sun 18:00-08:00");
    }
}
