//! From a source to columns.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fairlead_base::Endpoint;

use crate::accesses::{Accesses, HINT_NONE};
use crate::builder::{Access, Builder, check_time};
use crate::error::{Fault, Place, TraceError};
use crate::format::capture::{self, Packets};
use crate::format::{self, Format};
use crate::lines;
use crate::reason::{Passed, Reason, Report, Step};
use crate::requests::Requests;
use crate::sessions::EndpointTable;
use crate::source::Source;

/// Memory limits for reading a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Distinct clients. Numbers end at 2³² − 2 whatever is set.
    pub clients_max: u32,
    /// Distinct sessions. Numbers end at 2³² − 2 whatever is set.
    pub sessions_max: u32,
    /// Rows. A row of requests takes 32 bytes, one of accesses 12 or 13.
    pub rows_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients_max: u32::MAX - 1,
            sessions_max: u32::MAX - 1,
            rows_max: 1 << 32,
        }
    }
}

/// How to read.
pub struct ReadOptions<'a> {
    /// The format; detected if `None`.
    pub format: Option<Format>,
    /// The share of rows that may be unreadable.
    pub max_bad: f64,
    /// Bounds.
    pub limits: Limits,
    /// Which packets of a capture are accesses.
    pub packets: Packets,
    /// Whether requests of which the log does not know the client (`-`, `unix:`) are those of one
    /// client, as suits studies of content. Otherwise they are passed over and counted.
    pub keep_unknown_clients: bool,
    /// Called after every block with the bytes read so far, as they are stored (packed). Reading
    /// stops with [`Fault::Stopped`] when it says so.
    pub progress: Option<&'a mut dyn FnMut(u64) -> ControlFlow<()>>,
}

impl Default for ReadOptions<'_> {
    fn default() -> Self {
        Self {
            format: None,
            max_bad: 0.01,
            limits: Limits::default(),
            packets: Packets::FromClients,
            keep_unknown_clients: false,
            progress: None,
        }
    }
}

impl core::fmt::Debug for ReadOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReadOptions")
            .field("format", &self.format)
            .field("max_bad", &self.max_bad)
            .field("limits", &self.limits)
            .field("packets", &self.packets)
            .field("keep_unknown_clients", &self.keep_unknown_clients)
            .finish_non_exhaustive()
    }
}

/// Reading stops because of unreadable rows only after this many rows.
const PATIENCE_ROWS: u64 = 10_000;

/// Keeps count while a file is read.
pub(crate) struct Watch<'a> {
    report: Report,
    max_bad: f64,
    limits: Limits,
    progress: Option<&'a mut dyn FnMut(u64) -> ControlFlow<()>>,
    taken: Arc<AtomicU64>,
    first_place: Place,
}

impl<'a> Watch<'a> {
    fn new(source: &Source, format: Format, options: ReadOptions<'a>) -> Self {
        Self {
            report: Report::new(source.name(), format),
            max_bad: options.max_bad,
            limits: options.limits,
            progress: options.progress,
            taken: source.taken(),
            first_place: Place::File,
        }
    }

    /// Bytes of the unpacked file so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.report.bytes
    }

    pub(crate) fn add_bytes(&mut self, count: u64) {
        self.report.bytes += count;
    }

    /// Connections of a capture whose client was guessed.
    pub(crate) fn guessed(&mut self, connections: u64) {
        self.report.guessed = connections;
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Records a skipped row; `rows` is the current number of rows.
    #[cold]
    pub(crate) fn other(
        &mut self,
        place: Place,
        step: Result<Step, Reason>,
        rows: u64,
    ) -> Result<(), TraceError> {
        let reason = match step {
            Ok(Step::Row) => return Ok(()),
            Ok(Step::Passed(why)) => {
                *self.report.passed.entry(why).or_insert(0) += 1;
                return Ok(());
            }
            Err(Reason::NoClient) => {
                *self.report.passed.entry(Passed::NoClient).or_insert(0) += 1;
                return Ok(());
            }
            Err(Reason::Clients) => {
                let fault = Fault::TooManyClients(self.limits.clients_max);
                return Err(self.error(place, fault));
            }
            Err(Reason::Sessions) => {
                let fault = Fault::TooManySessions(self.limits.sessions_max);
                return Err(self.error(place, fault));
            }
            Err(reason) => reason,
        };
        *self.report.bad.entry(reason).or_insert(0) += 1;
        if self.report.first_bad.is_none() {
            let number = match place {
                Place::Line(number) | Place::Packet(number) | Place::Row(number) => number,
                _ => rows + 1,
            };
            self.report.first_bad = Some((number, reason));
            self.first_place = place;
        }
        let seen = rows + self.report.bad_rows();
        if seen >= PATIENCE_ROWS {
            self.judge(seen)?;
        }
        Ok(())
    }

    pub(crate) fn error(&self, place: Place, fault: Fault) -> TraceError {
        TraceError {
            name: self.report.name.clone(),
            place,
            fault,
        }
    }

    fn judge(&self, seen: u64) -> Result<(), TraceError> {
        let bad = self.report.bad_rows();
        let Some((_, reason)) = self.report.first_bad else {
            return Ok(());
        };
        if bad as f64 <= self.max_bad * seen as f64 {
            return Ok(());
        }
        let fault = Fault::TooManyBad {
            reason,
            bad,
            seen,
            max_bad: self.max_bad,
            format: self.report.format.name(),
        };
        Err(self.error(self.first_place, fault))
    }

    /// After a block: is there room for more rows, does the caller want to go on?
    pub(crate) fn turn(&mut self, rows: u64) -> Result<(), TraceError> {
        if rows > self.limits.rows_max {
            let fault = Fault::TooManyRows(self.limits.rows_max);
            return Err(self.error(Place::File, fault));
        }
        if let Some(progress) = &mut self.progress
            && progress(self.taken.load(Ordering::Relaxed)).is_break()
        {
            return Err(self.error(Place::Byte(self.report.bytes), Fault::Stopped));
        }
        Ok(())
    }

    /// Why a row is skipped.
    fn nothing(&self) -> TraceError {
        match self.report.first_bad {
            Some((_, reason)) => {
                let fault = Fault::AllBad {
                    reason,
                    bad: self.report.bad_rows(),
                    format: self.report.format.name(),
                };
                self.error(self.first_place, fault)
            }
            None => self.error(Place::File, Fault::Empty("row")),
        }
    }

    /// At the end of the file.
    fn finish(mut self, rows: u64) -> Result<Report, TraceError> {
        self.turn(rows)?;
        self.report.rows = rows;
        let seen = self.report.seen();
        self.judge(seen)?;
        if rows == 0 && self.report.passed.contains_key(&Passed::Link) {
            return Err(self.error(Place::File, Fault::Link));
        }
        if rows == 0
            && self.report.bad_rows() == 0
            && self.report.passed.contains_key(&Passed::NoClient)
        {
            return Err(self.error(Place::File, Fault::NoClients));
        }
        if rows == 0 {
            return Err(self.nothing());
        }
        Ok(self.report)
    }
}

/// Reads a log.
///
/// # Errors
/// [`TraceError`] if the trace is empty, has too many unreadable rows, is truncated or damaged,
/// exceeds a limit, or its format has no requests.
pub fn read_requests(
    mut source: Source,
    options: ReadOptions<'_>,
) -> Result<(Requests, Report), TraceError> {
    let format = match &options.format {
        Some(format) => format.clone(),
        None => source.detect()?,
    };
    let mut out = Builder::new(options.limits.clients_max);
    if options.keep_unknown_clients {
        out.keep_unknown_clients();
    }
    let mut watch = Watch::new(&source, format.clone(), options);
    request_rows(&mut source, &format, &mut out, &mut watch)?;
    let mut report = watch.finish(out.rows())?;
    report.stepped_back = out.stepped_back();
    let requests = out.finish();
    let times = &requests.time_us;
    report.span_us = (
        times.iter().copied().min().unwrap_or(0),
        times.iter().copied().max().unwrap_or(0),
    );
    Ok((requests, report))
}

fn request_rows(
    source: &mut Source,
    format: &Format,
    out: &mut Builder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    macro_rules! lines {
        ($reader:expr) => {{
            let mut reader = $reader;
            lines::read(source, &mut reader, out, watch)
        }};
    }
    match format {
        Format::Clf => lines!(format::clf::Clf::default()),
        Format::Epa => lines!(format::epa::Epa),
        Format::Sdsc => lines!(format::sdsc::Sdsc),
        Format::WorldCupCsv => lines!(format::world_cup_csv::WorldCupCsv::default()),
        Format::Elb => lines!(format::elb::Elb::default()),
        Format::Zeek => lines!(format::zeek::Zeek::default()),
        Format::Edgar => lines!(format::edgar::Edgar::default()),
        Format::Youtube => lines!(format::youtube::Youtube),
        Format::AccessCsv => lines!(format::csv::Csv::accesses()),
        Format::Csv(columns) => {
            let complaint = columns.complaint();
            if let Some(complaint) = complaint {
                return Err(watch.error(Place::File, Fault::Columns(complaint)));
            }
            lines!(format::csv::Csv::new(columns))
        }
        Format::WorldCupBinary => format::world_cup::requests(source, out, watch),
        Format::OracleGeneral => format::oracle_general::requests(source, out, watch),
        Format::Vscsi => format::vscsi::requests(source, out, watch),
        Format::Pcap | Format::Lab => {
            Err(watch.error(Place::File, Fault::NoRequests(format.name())))
        }
    }
}

/// Collects accesses in the order of the file.
#[derive(Debug)]
pub(crate) struct AccessBuilder {
    table: EndpointTable,
    times: Vec<i64>,
    accesses: Accesses,
    sessions_max: u32,
    stepped_back: u64,
}

impl AccessBuilder {
    fn new(limits: Limits) -> Self {
        Self {
            table: EndpointTable::default(),
            times: Vec::new(),
            accesses: Accesses::default(),
            sessions_max: limits.sessions_max,
            stepped_back: 0,
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.times.len() as u64
    }

    #[inline]
    pub(crate) fn push(&mut self, access: Access) -> Result<Step, Reason> {
        check_time(access.time_us)?;
        let id = self.number(access.key)?;
        self.push_numbered(access.time_us, id, access.hint);
        Ok(Step::Row)
    }

    /// Many accesses of IPv4 identifiers, as keys of 48 bits, without hints; times are of 32 bits
    /// of seconds, and so never beyond what a row may have. Returns how many were taken: fewer if
    /// there are too many sessions.
    #[inline]
    pub(crate) fn push_v4<'a>(
        &mut self,
        times: impl Iterator<Item = i64> + Clone + 'a,
        packed: &[u64],
    ) -> usize {
        let from = self.accesses.id.len();
        self.accesses.id.resize(from + packed.len(), 0);
        let numbers = &mut self.accesses.id[from..];
        let taken = self.table.numbers_v4(packed, numbers, self.sessions_max);
        self.accesses.id.truncate(from + taken);
        let last = self.times.last().copied();
        self.times.extend(times.take(taken));
        let fresh = &self.times[from..];
        let back = fresh.windows(2).filter(|pair| pair[0] > pair[1]).count();
        let first_back = last.is_some_and(|last| fresh.first().is_some_and(|first| last > *first));
        self.stepped_back += back as u64 + u64::from(first_back);
        taken
    }

    #[inline]
    pub(crate) fn number(&mut self, key: Endpoint) -> Result<u32, Reason> {
        let number = self.table.number(key, self.sessions_max);
        number.ok_or(Reason::Sessions)
    }

    #[inline]
    pub(crate) fn push_numbered(&mut self, time_us: i64, id: u32, hint: u8) {
        if self.times.last().is_some_and(|last| *last > time_us) {
            self.stepped_back += 1;
        }
        self.times.push(time_us);
        self.accesses.id.push(id);
        if hint != 0 {
            self.push_hint(hint);
        }
    }

    /// Hints are few: rows after the last one have none.
    #[inline]
    fn push_hint(&mut self, hint: u8) {
        let hints = &mut self.accesses.hint;
        hints.resize(self.times.len() - 1, HINT_NONE);
        hints.push(hint);
    }

    fn first_back(&self) -> Option<u64> {
        if self.stepped_back == 0 {
            return None;
        }
        let at = self.times.windows(2).position(|pair| pair[0] > pair[1]);
        at.map(|at| at as u64 + 2)
    }

    fn finish(self) -> (Accesses, (i64, i64), u64) {
        let mut accesses = self.accesses;
        if !accesses.hint.is_empty() {
            accesses.hint.resize(self.times.len(), HINT_NONE);
        }
        accesses.keys = self.table.into_keys();
        let span = accesses.set_times(self.times);
        (accesses, span, self.stepped_back)
    }
}

/// Reads accesses as they are: captures, the laboratory's own files, `oracleGeneral`, tables of
/// time, address and port, and logs that have the clients' ports.
///
/// # Errors
/// As [`read_requests`]; [`Fault::NoPorts`] when the log has none.
pub fn read_accesses(
    mut source: Source,
    options: ReadOptions<'_>,
) -> Result<(Accesses, Report), TraceError> {
    let format = match &options.format {
        Some(format) => format.clone(),
        None => source.detect()?,
    };
    let mut out = AccessBuilder::new(options.limits);
    let packets = options.packets;
    let mut watch = Watch::new(&source, format.clone(), options);
    match format {
        Format::Lab => {
            let accesses = format::lab::read(&mut source, &mut watch)?;
            let mut report = watch.finish(accesses.len() as u64)?;
            report.span_us.1 = accesses.time_us.last().map_or(0, |last| *last as i64);
            return Ok((accesses, report));
        }
        Format::Pcap => capture::read(source, packets, &mut out, &mut watch)?,
        Format::OracleGeneral => {
            format::oracle_general::accesses(&mut source, &mut out, &mut watch)?;
        }
        format => {
            let mut requests = Builder::new(watch.limits().clients_max);
            request_rows(&mut source, &format, &mut requests, &mut watch)?;
            out = of_requests(&watch, &format, requests.finish(), out)?;
        }
    }
    finished(out, watch)
}

fn finished(out: AccessBuilder, watch: Watch<'_>) -> Result<(Accesses, Report), TraceError> {
    let mut report = watch.finish(out.rows())?;
    report.first_back = out.first_back();
    let (accesses, span_us, stepped_back) = out.finish();
    (report.span_us, report.stepped_back) = (span_us, stepped_back);
    Ok((accesses, report))
}

/// Requests of a log with ports, each one access.
fn of_requests(
    watch: &Watch<'_>,
    format: &Format,
    requests: Requests,
    mut out: AccessBuilder,
) -> Result<AccessBuilder, TraceError> {
    // The Common Log Format may have ports.
    let has_ports = format.has_ports() || requests.port.iter().any(|port| *port != 0);
    if !requests.is_empty() && !has_ports {
        return Err(watch.error(Place::File, Fault::NoPorts(format.name())));
    }
    for row in 0..requests.len() {
        let key = Endpoint {
            addr: requests.clients[requests.client[row] as usize].address,
            port: requests.port[row],
        };
        let access = Access {
            time_us: requests.time_us[row],
            key,
            hint: 0,
        };
        // Its time was checked when the request was taken.
        if out.push(access).is_err() {
            let fault = Fault::TooManySessions(out.sessions_max);
            return Err(watch.error(Place::File, fault));
        }
    }
    Ok(out)
}
