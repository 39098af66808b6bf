//! The last packets of a world, written out when something breaks.

use std::collections::VecDeque;

use fairlead_base::Instant;

use crate::net::{Segment, TooBig};

/// A bounded list of events, newest last. Lines are formatted only on demand, because most are
/// never read.
#[derive(Debug)]
pub struct Trace {
    lines: VecDeque<Line>,
    printed: bool,
}

#[derive(Debug)]
struct Line {
    at: Instant,
    place: Place,
    what: What,
}

/// Where a packet was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Leaving this host.
    Leaves(u16),
    /// Arriving at this host.
    Arrives(u16),
    /// Going into the switch.
    SwitchIn,
    /// Coming out of the switch.
    SwitchOut,
    /// Anywhere.
    World,
}

#[derive(Debug)]
enum What {
    Packet(Box<Segment>, &'static str),
    Text(String),
}

const LINES_MAX: usize = 120;

impl Trace {
    /// An empty one. With `printed`, every line also goes to standard error at once.
    pub fn new(printed: bool) -> Self {
        Self {
            lines: VecDeque::with_capacity(LINES_MAX),
            printed,
        }
    }

    pub(crate) fn packet(&mut self, at: Instant, place: Place, bytes: &[u8], remark: &'static str) {
        let what = match Segment::read_unsummed(bytes) {
            Ok(segment) => What::Packet(Box::new(segment), remark),
            Err(problem) => match TooBig::read(bytes) {
                Ok(Some(quoted)) => What::Text(format!(
                    "ICMP too big, mtu {}, about {} > {} seq {}",
                    quoted.mtu, quoted.src, quoted.dst, quoted.seq
                )),
                _ => What::Text(format!("{} bytes ({problem}) {remark}", bytes.len())),
            },
        };
        self.push(Line { at, place, what });
    }

    pub(crate) fn text(&mut self, at: Instant, text: String) {
        self.push(Line {
            at,
            place: Place::World,
            what: What::Text(text),
        });
    }

    fn push(&mut self, line: Line) {
        if self.printed {
            eprintln!("{}", line.describe());
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().map(Line::describe).collect()
    }
}

impl Line {
    fn describe(&self) -> String {
        let place = match self.place {
            Place::Leaves(host) => format!("host{host} >"),
            Place::Arrives(host) => format!("> host{host}"),
            Place::SwitchIn => "> switch".to_owned(),
            Place::SwitchOut => "switch >".to_owned(),
            Place::World => "--".to_owned(),
        };
        let micros = self.at.as_nanos() / 1_000;
        let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
        match &self.what {
            What::Packet(segment, remark) => {
                format!(
                    "{seconds:4}.{rest:06} {place:9} {} {remark}",
                    segment.describe()
                )
            }
            What::Text(text) => format!("{seconds:4}.{rest:06} {place:9} {text}"),
        }
    }
}
