//! Tables of separated fields, with a map from columns to meanings.
//!
//! Fields may be quoted, with doubled quotation marks inside and blanks around the quotes. A row
//! ends at its line's end.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeSet;

use memchr::memchr;
use serde::{Deserialize, Serialize};

use super::{Format, edgar};
use crate::builder::{Builder, Row, check_time};
use crate::field;
use crate::hash::hash64;
use crate::lines::{LineFormat, end_of};
use crate::reason::{Passed, Reason, Step};
use crate::requests::BYTES_UNKNOWN;
use crate::stamp::{IsoCalendar, fraction_us};

/// The header of a table of accesses.
const ACCESSES: &[u8] = b"time_us,ip,port";

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Column {
    /// By its number; the first is 1.
    Number(usize),
    /// By its name in the header.
    Name(String),
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl From<&str> for Column {
    fn from(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Name(text.to_owned()), Self::Number)
    }
}

/// What a number in the column of times counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds; may have a fraction.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
    /// A date and time as in ISO 8601.
    Iso,
}

/// Times of this many seconds and more are after the year 5000. Milliseconds since 1970 have been
/// more than that since March 1973.
const FAR_S: u64 = 100_000_000_000;

impl TimeUnit {
    const ALL: [Self; 5] = [Self::S, Self::Ms, Self::Us, Self::Ns, Self::Iso];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::Ms => "ms",
            Self::Us => "us",
            Self::Ns => "ns",
            Self::Iso => "iso",
        }
    }

    /// What a number counts that is in the far future as seconds.
    fn of_far(number: u64) -> Option<Self> {
        match number / FAR_S {
            0 => None,
            1..1_000 => Some(Self::Ms),
            1_000..1_000_000 => Some(Self::Us),
            _ => Some(Self::Ns),
        }
    }
}

/// Which column is what. Written `time=ts,client=2,port=src_port,unit=ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnMap {
    /// When.
    pub time: Column,
    /// Who: address or name.
    #[serde(default)]
    pub client: Option<Column>,
    /// The client's port.
    #[serde(default)]
    pub port: Option<Column>,
    /// Bytes of the response.
    #[serde(default)]
    pub bytes: Option<Column>,
    /// What.
    #[serde(default)]
    pub object: Option<Column>,
    /// Status of the response.
    #[serde(default)]
    pub status: Option<Column>,
    /// What times count. Default: seconds; then times after the year 5000 are an error, since
    /// they are most likely of another unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<TimeUnit>,
    /// What separates fields: an ASCII character; `tab` and `blank` in text.
    #[serde(default = "comma")]
    pub separator: char,
    /// Whether the first line is a header. Default: if a column is given by name.
    #[serde(default)]
    pub header: Option<bool>,
}

fn comma() -> char {
    ','
}

impl ColumnMap {
    /// With a time column only; the others can be set.
    pub fn new(time: Column) -> Self {
        Self {
            time,
            client: None,
            port: None,
            bytes: None,
            object: None,
            status: None,
            unit: None,
            separator: ',',
            header: None,
        }
    }

    /// A table of accesses: `time_us,ip,port`.
    pub fn accesses() -> Self {
        Self {
            client: Some(Column::Number(2)),
            port: Some(Column::Number(3)),
            unit: Some(TimeUnit::Us),
            header: Some(true),
            ..Self::new(Column::Number(1))
        }
    }

    fn columns(&self) -> [Option<&Column>; 6] {
        [
            Some(&self.time),
            self.client.as_ref(),
            self.port.as_ref(),
            self.bytes.as_ref(),
            self.object.as_ref(),
            self.status.as_ref(),
        ]
    }

    fn has_header(&self) -> bool {
        let named = |column: &Option<&Column>| matches!(column, Some(Column::Name(_)));
        self.header
            .unwrap_or_else(|| self.columns().iter().any(named))
    }

    /// What keeps this map from being used.
    pub(crate) fn complaint(&self) -> Option<String> {
        if !self.separator.is_ascii() || matches!(self.separator, '"' | '\n' | '\r') {
            return Some(format!("{:?} cannot separate fields", self.separator));
        }
        for column in self.columns().into_iter().flatten() {
            match column {
                Column::Number(number) if !(1..=COLUMNS_MAX).contains(number) => {
                    return Some(format!("column {number}: columns are 1 to {COLUMNS_MAX}"));
                }
                Column::Name(name) if self.header == Some(false) => {
                    return Some(format!(
                        "column `{name}` is given by name, but the table has no header"
                    ));
                }
                _ => {}
            }
        }
        None
    }
}

impl fmt::Display for ColumnMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["time", "client", "port", "bytes", "object", "status"];
        let set = names.iter().zip(self.columns());
        let set: Vec<String> = set
            .filter_map(|(name, column)| Some(format!("{name}={}", column?)))
            .collect();
        write!(f, "{}", set.join(","))?;
        if let Some(unit) = self.unit {
            write!(f, ",unit={}", unit.name())?;
        }
        match self.separator {
            ',' => {}
            '\t' => f.write_str(",separator=tab")?,
            ' ' => f.write_str(",separator=blank")?,
            other => write!(f, ",separator={other}")?,
        }
        match self.header {
            None => Ok(()),
            Some(true) => f.write_str(",header=yes"),
            Some(false) => f.write_str(",header=no"),
        }
    }
}

/// What a map may say.
const PROPERTIES: &str = "time client port bytes object status unit separator header";

impl FromStr for ColumnMap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut time = None;
        let mut map = Self::new(Column::Number(1));
        let mut given = BTreeSet::new();
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}`: write time=COLUMN,client=COLUMN,…"))?;
            // Otherwise the last one would win silently.
            if !given.insert(key.trim()) {
                return Err(format!("`{}` is there twice; write it once", key.trim()));
            }
            let column = || Some(Column::from(value));
            match key.trim() {
                "time" => time = column(),
                "client" => map.client = column(),
                "port" => map.port = column(),
                "bytes" => map.bytes = column(),
                "object" => map.object = column(),
                "status" => map.status = column(),
                "unit" => {
                    let unit = TimeUnit::ALL.into_iter().find(|unit| unit.name() == value);
                    if unit.is_none() {
                        return Err(format!("unit `{value}`: write s, ms, us, ns or iso"));
                    }
                    map.unit = unit;
                }
                "separator" => {
                    map.separator = match value {
                        "tab" => '\t',
                        "blank" => ' ',
                        "comma" => ',',
                        one if one.chars().count() == 1 => one.chars().next().unwrap_or(','),
                        _ => return Err(format!("separator `{value}`: write one character")),
                    }
                }
                "header" => {
                    map.header = match value {
                        "yes" => Some(true),
                        "no" => Some(false),
                        _ => return Err(format!("header `{value}`: write yes or no")),
                    }
                }
                _ => {
                    return Err(format!(
                        "`{key}` is not a property of a table; available: {PROPERTIES}"
                    ));
                }
            }
        }
        map.time = time.ok_or("a table needs time=COLUMN")?;
        map.complaint().map_or(Ok(map), Err)
    }
}

/// Formats of tables that are known by their header.
pub(crate) fn by_header(head: &[u8]) -> Option<Format> {
    let end = memchr(end_of(head), head).unwrap_or(head.len());
    let line = head[..end].trim_ascii();
    if line.starts_with(edgar::HEADER) {
        return Some(Format::Edgar);
    }
    // Names may be quoted.
    let names: Vec<u8> = line.iter().copied().filter(|byte| *byte != b'"').collect();
    (names == ACCESSES).then_some(Format::AccessCsv)
}

/// Are these the names of a table of accesses?
fn is_header_of_accesses(fields: &[&[u8]]) -> bool {
    let names = ACCESSES.split(|byte| *byte == b',');
    names.eq(fields.iter().map(|field| field.trim_ascii()))
}

/// Maximum number of columns.
const COLUMNS_MAX: usize = 256;

/// Where meanings are, from 0: time, client, port, bytes, object, status.
type Places = [Option<usize>; 6];

/// Reads lines of a table.
#[derive(Debug)]
pub(crate) struct Csv {
    map: ColumnMap,
    separator: u8,
    places: Option<Places>,
    header_due: bool,
    /// Clients are addresses; other text is not taken as a name.
    only_addresses: bool,
    calendar: IsoCalendar,
    unquoted: Vec<u8>,
    ends: Vec<usize>,
}

impl Csv {
    pub(crate) fn new(map: &ColumnMap) -> Self {
        let mut csv = Self {
            separator: map.separator as u8,
            places: None,
            header_due: map.has_header(),
            only_addresses: false,
            calendar: IsoCalendar::default(),
            unquoted: Vec::new(),
            ends: Vec::new(),
            map: map.clone(),
        };
        if !csv.header_due {
            csv.places = csv.find(&[]);
        }
        csv
    }

    /// A table of accesses.
    pub(crate) fn accesses() -> Self {
        Self {
            only_addresses: true,
            ..Self::new(&ColumnMap::accesses())
        }
    }

    /// Positions of the columns in a header; `None` if one is missing or ambiguous.
    fn find(&self, header: &[&[u8]]) -> Option<Places> {
        let mut places = [None; 6];
        for (place, column) in places.iter_mut().zip(self.map.columns()) {
            *place = match column {
                None => None,
                Some(Column::Number(number)) => Some(number - 1),
                Some(Column::Name(name)) => {
                    let is_it = |field: &&[u8]| field.trim_ascii() == name.as_bytes();
                    let at = header.iter().position(is_it)?;
                    if header[at + 1..].iter().any(is_it) {
                        return None;
                    }
                    Some(at)
                }
            };
        }
        Some(places)
    }

    fn row(&mut self, fields: &[&[u8]], out: &mut Builder) -> Result<Step, Reason> {
        let places = self.places.ok_or(Reason::Fields)?;
        let [time, client, port, bytes, object, status] = places;
        let at = |place: Option<usize>| match place {
            None => Ok(None),
            Some(at) => fields
                .get(at)
                .map(|text| Some(text.trim_ascii()))
                .ok_or(Reason::Fields),
        };
        let time = at(time)?.unwrap_or_default();
        let time_us = self.time_us(time)?;
        // Before the client is registered, which would otherwise have no row.
        check_time(time_us)?;
        let port = match at(port)? {
            None => None,
            Some(text) => Some(field::number16(text).ok_or(Reason::Port)?),
        };
        let bytes = match at(bytes)? {
            None | Some(b"" | b"-") => BYTES_UNKNOWN,
            Some(text) => field::whole(text).ok_or(Reason::Size)?,
        };
        let status = match at(status)? {
            None | Some(b"" | b"-") => 0,
            Some(text) => field::number16(text).ok_or(Reason::Status)?,
        };
        let object = at(object)?.map_or(0, hash64);
        let (client, own_port) = match at(client)? {
            // All of one.
            None => (out.client_named(b"-")?, 0),
            Some(text) if self.only_addresses => (out.client_at(text)?, 0),
            Some(text) => out.client_and_port(text)?,
        };
        // A client's port may stand behind its address.
        let port = port.unwrap_or(own_port);
        out.push(Row {
            port,
            bytes,
            object,
            status,
            ..Row::new(time_us, client)
        })
    }

    fn time_us(&mut self, text: &[u8]) -> Result<i64, Reason> {
        if self.map.unit == Some(TimeUnit::Iso) {
            return self.calendar.stamp_us(text).ok_or(Reason::Time);
        }
        let (text, negative) = match text {
            [b'-', rest @ ..] => (rest, true),
            text => (text, false),
        };
        let (whole, fraction) = field::cut(text, b'.').unwrap_or((text, b""));
        let whole = field::number(whole).ok_or(Reason::Time)?;
        let fraction = fraction_us(fraction).ok_or(Reason::Time)?;
        let unit = match self.map.unit {
            Some(unit) => unit,
            None => {
                TimeUnit::of_far(whole).map_or(Ok(TimeUnit::S), |unit| Err(Reason::Unit(unit)))?
            }
        };
        let value = count_us(whole, fraction, unit).ok_or(Reason::Time)?;
        Ok(if negative { -value } else { value })
    }

    /// Cuts a line with quotation marks: fields are the pieces of `unquoted` up to each of `ends`.
    fn unquote(&mut self, line: &[u8]) -> Result<(), Reason> {
        self.unquoted.clear();
        self.ends.clear();
        let mut rest = line;
        loop {
            let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t') && **byte != self.separator;
            let blanks = rest.iter().take_while(is_blank).count();
            if let [b'"', inside @ ..] = &rest[blanks..] {
                rest = self.quoted(inside)?;
            }
            let end = memchr(self.separator, rest);
            self.unquoted
                .extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            self.ends.push(self.unquoted.len());
            match end {
                Some(at) => rest = &rest[at + 1..],
                None => return Ok(()),
            }
        }
    }

    /// Reads up to the closing quotation mark; returns the rest.
    fn quoted<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], Reason> {
        loop {
            let at = memchr(b'"', rest).ok_or(Reason::Quote)?;
            self.unquoted.extend_from_slice(&rest[..at]);
            rest = &rest[at + 1..];
            let [b'"', more @ ..] = rest else {
                return Ok(rest);
            };
            self.unquoted.push(b'"');
            rest = more;
        }
    }
}

/// Microseconds of a number with a fraction, the latter as microseconds of a second.
fn count_us(whole: u64, fraction: i64, unit: TimeUnit) -> Option<i64> {
    let whole = i64::try_from(whole).ok()?;
    match unit {
        TimeUnit::S => whole.checked_mul(1_000_000)?.checked_add(fraction),
        TimeUnit::Ms => whole.checked_mul(1_000)?.checked_add(fraction / 1_000),
        TimeUnit::Ns => Some(whole / 1_000),
        TimeUnit::Us | TimeUnit::Iso => Some(whole),
    }
}

impl LineFormat for Csv {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let mut fields = [&b""[..]; COLUMNS_MAX];
        let mut count = 0;
        let unquoted;
        if memchr(b'"', line).is_none() {
            for field in line.split(|byte| *byte == self.separator).take(COLUMNS_MAX) {
                fields[count] = field;
                count += 1;
            }
        } else {
            self.unquote(line)?;
            unquoted = self.unquoted.clone();
            let mut from = 0;
            for end in self.ends.iter().take(COLUMNS_MAX) {
                fields[count] = &unquoted[from..*end];
                count += 1;
                from = *end;
            }
        }
        let fields = &fields[..count];
        if std::mem::take(&mut self.header_due) {
            self.places = self.find(fields);
            let is_first_row = self.only_addresses && !is_header_of_accesses(fields);
            if is_first_row {
                return self.row(fields, out);
            }
            return match self.places {
                Some(_) => Ok(Step::Passed(Passed::Comment)),
                None => Err(Reason::Header),
            };
        }
        self.row(fields, out)
    }
}
