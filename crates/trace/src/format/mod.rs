//! One file per format, and format detection.

pub mod capture;
pub(crate) mod clf;
pub mod csv;
pub(crate) mod edgar;
pub(crate) mod elb;
pub(crate) mod epa;
pub mod lab;
pub mod oracle_general;
pub(crate) mod sdsc;
pub(crate) mod syslog;
pub(crate) mod vscsi;
pub(crate) mod world_cup;
pub(crate) mod world_cup_csv;
pub(crate) mod youtube;
pub(crate) mod zeek;

use core::fmt;
use core::str::FromStr;

use crate::field;
use crate::lines::{end_of, probe};
use crate::source::HEAD_BYTES;
use csv::ColumnMap;

/// Formats selected by a plain name, in the order of listings.
const PLAIN: [Format; 14] = [
    Format::Clf,
    Format::Epa,
    Format::Sdsc,
    Format::WorldCupBinary,
    Format::WorldCupCsv,
    Format::Elb,
    Format::Zeek,
    Format::Edgar,
    Format::Youtube,
    Format::Vscsi,
    Format::Pcap,
    Format::OracleGeneral,
    Format::Lab,
    Format::AccessCsv,
];

/// The names of all formats, for messages and help, separated by blanks: those parsed by
/// [`Format::from_str`], and `csv:COLUMNS`.
pub fn names() -> String {
    let mut names: Vec<&str> = PLAIN.iter().map(Format::name).collect();
    names.push("csv:COLUMNS");
    names.join(" ")
}

/// A format of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Common and Combined Log Format, with anything after it; NASA, Calgary, ClarkNet,
    /// Saskatchewan.
    Clf,
    /// EPA-HTTP of 1995: `host [DD:HH:MM:SS] "request" status bytes`.
    Epa,
    /// SDSC-HTTP of 1995: `N+M: Www Mmm DD HH:MM:SS YYYY (path): outcome: request`.
    Sdsc,
    /// World Cup 98: big-endian records of 20 bytes.
    WorldCupBinary,
    /// World Cup 98 as a table: client, date, time, object, status, bytes.
    WorldCupCsv,
    /// AWS classic load balancer.
    Elb,
    /// Zeek's tables: `conn.log`, `http.log`, `ssl.log`.
    Zeek,
    /// SEC EDGAR: a table with header.
    Edgar,
    /// UMass YouTube requests: time, server, client, kind, video, content server.
    Youtube,
    /// CloudPhysics block accesses, version 1: little-endian records of 32 bytes.
    Vscsi,
    /// pcap and pcapng.
    Pcap,
    /// libCacheSim: little-endian records of 24 bytes.
    OracleGeneral,
    /// The laboratory's own file (docs/trace-format.md).
    Lab,
    /// A table with header `time_us,ip,port`.
    AccessCsv,
    /// Any other table.
    Csv(ColumnMap),
}

impl Format {
    /// Its name, without columns.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Clf => "clf",
            Self::Epa => "epa",
            Self::Sdsc => "sdsc",
            Self::WorldCupBinary => "worldcup",
            Self::WorldCupCsv => "worldcup-csv",
            Self::Elb => "elb",
            Self::Zeek => "zeek",
            Self::Edgar => "edgar",
            Self::Youtube => "youtube",
            Self::Vscsi => "vscsi",
            Self::Pcap => "pcap",
            Self::OracleGeneral => "oracleGeneral",
            Self::Lab => "lab",
            Self::AccessCsv => "accesses",
            Self::Csv(_) => "csv",
        }
    }

    /// True when rows are sessions as they are: [`crate::read_accesses`] is what to call.
    pub fn holds_accesses(&self) -> bool {
        matches!(
            self,
            Self::Pcap | Self::Lab | Self::AccessCsv | Self::OracleGeneral
        )
    }

    /// True if rows have client ports, so that requests can be taken as accesses.
    pub fn has_ports(&self) -> bool {
        match self {
            Self::Csv(columns) => columns.port.is_some(),
            other => matches!(other, Self::Elb | Self::Zeek | Self::AccessCsv),
        }
    }

    /// Detects the format of a file by its first (decompressed) bytes; the name only decides
    /// ambiguous cases.
    ///
    /// # Errors
    /// What the bytes look like, when they are of no format that is known.
    pub fn detect(name: &str, head: &[u8]) -> Result<Self, String> {
        if capture::begins(head) {
            return Ok(Self::Pcap);
        }
        if lab::begins(head) {
            return Ok(Self::Lab);
        }
        if is_binary(head) {
            return binary(name, head);
        }
        text(head)
    }
}

fn is_binary(head: &[u8]) -> bool {
    let odd = |byte: &&u8| **byte < 0x20 && !matches!(**byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b);
    head.contains(&0) || head.iter().filter(odd).count() * 20 > head.len()
}

fn binary(name: &str, head: &[u8]) -> Result<Format, String> {
    if vscsi::plausible(head) {
        return Ok(Format::Vscsi);
    }
    if world_cup::plausible(head) {
        return Ok(Format::WorldCupBinary);
    }
    if name.contains("oracleGeneral") || oracle_general::plausible(head) {
        return Ok(Format::OracleGeneral);
    }
    let first: Vec<String> = head
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Err(format!(
        "a binary file of unknown format, starting with {}",
        first.join(" ")
    ))
}

fn text(head: &[u8]) -> Result<Format, String> {
    if zeek::begins(head) {
        return Ok(Format::Zeek);
    }
    if let Some(format) = csv::by_header(head) {
        return Ok(format);
    }
    let found = [
        (Format::Clf, probe(head, clf::Clf::default())),
        (Format::Epa, probe(head, epa::Epa)),
        (Format::Sdsc, probe(head, sdsc::Sdsc)),
        (
            Format::WorldCupCsv,
            probe(head, world_cup_csv::WorldCupCsv::default()),
        ),
        (Format::Elb, probe(head, elb::Elb::default())),
        (Format::Youtube, probe(head, youtube::Youtube)),
    ];
    if head.trim_ascii().is_empty() {
        return Err("only blank lines".to_owned());
    }
    let best = found.into_iter().max_by_key(|(_, (rows, _))| *rows);
    match best {
        // More than half of the first lines: a log may start with some broken ones.
        Some((format, (rows, seen))) if rows > 0 && rows * 2 >= seen => Ok(format),
        _ if head.len() >= HEAD_BYTES && !head.contains(&end_of(head)) => Err(format!(
            "text with a first line longer than the {HEAD_BYTES} bytes used for detection, \
             starting with `{}`",
            beginning(head)
        )),
        _ => Err(format!(
            "text of unknown format, starting with `{}`; for a table specify the columns \
             (csv:time=1,client=2,…)",
            beginning(head)
        )),
    }
}

/// The first characters of the first line, as they can be shown.
fn beginning(head: &[u8]) -> String {
    let line = head
        .split(|byte| *byte == end_of(head))
        .find(|line| !line.trim_ascii().is_empty())
        .unwrap_or_default();
    let shown = &line.trim_ascii()[..line.trim_ascii().len().min(60)];
    shown.escape_ascii().to_string()
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Csv(columns) => write!(f, "csv:{columns}"),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    /// A format by its name; a table is `csv:` and its columns ([`ColumnMap`]).
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(columns) = text.strip_prefix("csv:") {
            return columns.parse().map(Self::Csv);
        }
        let found = PLAIN
            .into_iter()
            .find(|format| format.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("unknown format `{text}`; write one of: {}", names()))
    }
}

/// The next field up to a blank, and the rest.
#[inline]
pub(crate) fn word(text: &[u8]) -> (&[u8], &[u8]) {
    field::cut(text, b' ').unwrap_or((text, &[]))
}
