//! From a trace, or from a generator, to a stream of accesses.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::OnceLock;

use fairlead_base::Endpoint;
use fairlead_cache::bounds::{Stream as Counted, compulsory};
use fairlead_trace::{Accesses, Fault, Format, ReadOptions, Report, Requests, Source, TraceError};
use fairlead_workload::{Expanded, Expansion, PortModel, Prepared, Standard, WorkloadError, count};
use serde::{Deserialize, Serialize, Serializer};

use crate::control::Control;
use crate::error::LabError;
use crate::fingerprint::Fingerprint;
use crate::notes::{
    expansion_notes, nothing_counts, one_session, reading_notes, times, unused_expansion,
};
pub use crate::read_note::ReadNote;
use crate::table::visible_name;

/// Independent accesses to `ids` sessions, the k-th most frequent with weight 1/k^alpha.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Zipf {
    /// Sessions.
    #[serde(deserialize_with = "count::deserialize_sessions")]
    pub ids: u32,
    /// The exponent.
    pub alpha: f64,
    /// Accesses.
    #[serde(deserialize_with = "count::deserialize")]
    pub accesses: u64,
}

impl Default for Zipf {
    /// As in the comparison with libCacheSim: 20 M accesses to 1 M sessions, exponent 1.
    fn default() -> Self {
        Self {
            ids: 1_000_000,
            alpha: 1.0,
            accesses: 20_000_000,
        }
    }
}

/// How the rows of a file are interpreted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum As {
    /// As accesses where the format has them (captures, `time_us,ip,port`), else as requests
    #[default]
    Auto,
    /// Rows are accesses of sessions, as they are
    Accesses,
    /// Rows are requests, of which the expansion model makes accesses
    Requests,
}

impl As {
    /// Are rows of this format taken as accesses?
    fn takes(self, format: &Format) -> bool {
        match self {
            Self::Accesses => true,
            Self::Requests => false,
            Self::Auto => format.holds_accesses(),
        }
    }
}

/// A stream's recipe: the same recipe over the same file gives the same stream. One of `path`,
/// `standard` and `zipf` is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamSpec {
    /// A trace in a file.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_unicode")]
    pub path: Option<PathBuf>,
    /// The standard workload: ON/OFF sessions of one kind. Synthetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standard: Option<Standard>,
    /// Independent accesses by Zipf's law. Synthetic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zipf: Option<Zipf>,
    /// The file's format; detected by content if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// As what rows are taken.
    #[serde(rename = "as")]
    pub rows: As,
    /// The share of rows that may be unreadable.
    pub max_bad: f64,
    /// Whether unordered rows of accesses are sorted by time. Logs and captures are always sorted.
    pub sort: bool,
    /// How requests are expanded; ignored for accesses.
    pub expansion: Expansion,
    /// Length of a tick of the lifetime counters, ms.
    pub tick_ms: u32,
    /// What generators and the expansion are drawn from.
    pub seed: u64,
}

/// JSON is UTF-8: other bytes in a name are replaced.
fn in_unicode<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    let text = path.as_ref().map(|path| path.to_string_lossy());
    text.serialize(to)
}

/// The paper's quarter of a second (section 3.3).
pub const TICK_MS: u32 = 250;

impl Default for StreamSpec {
    fn default() -> Self {
        Self {
            path: None,
            standard: None,
            zipf: None,
            format: None,
            rows: As::Auto,
            max_bad: 0.01,
            sort: false,
            expansion: Expansion::default(),
            tick_ms: TICK_MS,
            seed: 1,
        }
    }
}

impl StreamSpec {
    /// Of a file, everything else as usual.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self {
            path: Some(path.into()),
            ..Self::default()
        }
    }

    /// Of the standard workload.
    pub fn standard(standard: Standard, seed: u64) -> Self {
        Self {
            standard: Some(standard),
            seed,
            ..Self::default()
        }
    }

    /// Makes a relative path one from `folder`.
    pub fn resolve(&mut self, folder: &Path) {
        if let Some(path) = &mut self.path
            && path.is_relative()
        {
            *path = folder.join(&*path);
        }
    }

    /// True for synthetic workloads.
    pub fn is_synthetic(&self) -> bool {
        self.path.is_none()
    }

    /// Name of the stream in tables: the file name, or the generator's parameters.
    pub fn name(&self) -> String {
        if let Some(path) = &self.path {
            let name = path.file_name().unwrap_or(path.as_os_str());
            return visible_name(&name.to_string_lossy());
        }
        if let Some(zipf) = &self.zipf {
            return format!("synthetic: zipf {} of {} sessions", zipf.alpha, zipf.ids);
        }
        let sessions = self
            .standard
            .as_ref()
            .map_or(0, |standard| standard.sessions);
        format!("synthetic: standard, {sessions} sessions")
    }

    /// The recipe without ineffective parameters: equal for recipes that produce the same stream
    /// from a file. For rows of accesses, the seed has no effect. Reads the beginning of the file.
    #[must_use]
    pub fn deciding(&self) -> Self {
        let mut deciding = self.clone();
        deciding.expansion = self.expansion.used();
        // A file that cannot be opened is reported when it is read.
        let opened = self.path.as_ref().map(|path| Opened::new(path, self));
        let is_log = match opened {
            Some(Ok(opened)) => !self.rows.takes(&opened.format),
            Some(Err(_)) => true,
            None => false,
        };
        if !is_log {
            // How many are open at once has no meaning there and is refused, not left out.
            deciding.expansion = Expansion {
                concurrent_sessions: self.expansion.concurrent_sessions,
                ..Expansion::default()
            };
        }
        if !is_log && self.path.is_some() {
            deciding.seed = Self::default().seed;
        }
        deciding
    }

    /// Why a generator cannot be used, as far as known before it runs: its key, and what to write.
    pub(crate) fn workload_complaint(&self) -> Option<(&'static str, String)> {
        let standard = self.standard.as_ref().map(Standard::check);
        let zipf = self.zipf.as_ref().map(|zipf| zipf.rows().map(|_| ()));
        let checked = [("standard", standard), ("zipf", zipf)];
        checked
            .into_iter()
            .find_map(|(key, checked)| Some((key, checked?.err()?.to_string())))
    }

    /// Is the recipe sound?
    ///
    /// # Errors
    /// What is not.
    pub fn check(&self) -> Result<(), String> {
        let origins = [
            self.path.is_some(),
            self.standard.is_some(),
            self.zipf.is_some(),
        ];
        if origins.iter().filter(|there| **there).count() != 1 {
            return Err("write one of path, standard and zipf".to_owned());
        }
        if self.tick_ms == 0 {
            return Err("tick_ms is 0: write 1 or more (the paper's: 250)".to_owned());
        }
        if !(0.0..=1.0).contains(&self.max_bad) {
            let share = self.max_bad;
            return Err(format!("max_bad is {share}: write a share from 0 to 1"));
        }
        Ok(())
    }
}

/// Origin and properties of a stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenance {
    /// What it is called.
    pub trace: String,
    /// True for synthetic workloads.
    pub synthetic: bool,
    /// Fingerprint of the columns.
    pub stream: Fingerprint,
    /// Accesses, warm-up included.
    pub accesses: u64,
    /// Accesses of the warm-up, which count for nothing.
    pub warm_up: u64,
    /// Distinct session identifiers that are accessed, in the warm-up or behind it.
    pub sessions: u64,
    /// From the first access to the last, s.
    pub span_s: f64,
    /// The recipe.
    pub made: StreamSpec,
    /// What reading the file came to; nothing for synthetic streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<ReadNote>,
    /// What the expansion did; nothing where rows are accesses as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expanded: Option<Expanded>,
    /// Things to know before believing the numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Provenance {
    /// Checks that the recipe's number of open sessions has an effect, which is required if it
    /// identifies results.
    ///
    /// # Errors
    /// It does not: rows are accesses as they are.
    pub fn check_concurrency(&self) -> Result<(), LabError> {
        let chosen = self.made.expansion.concurrent_sessions.is_some();
        if !chosen || self.expanded.is_some() {
            return Ok(());
        }
        Err(no_load(&self.trace))
    }
}

fn no_load(trace: &str) -> LabError {
    LabError::Trace(format!(
        "{trace}: rows are accesses, so the number of open sessions cannot be chosen: omit \
         concurrent_sessions, or use a trace of requests (--as requests; in a plan: as = \
         \"requests\")"
    ))
}

/// Checks a recipe against the beginning of its file.
pub(crate) fn look_at(made: &StreamSpec) -> Result<(), LabError> {
    let Some(path) = &made.path else {
        return Ok(());
    };
    let opened = Opened::new(path, made)?;
    match made.expansion.concurrent_sessions {
        Some(_) if made.rows.takes(&opened.format) => Err(no_load(&made.name())),
        _ => Ok(()),
    }
}

/// A stream of accesses, ready to simulate.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Session of each access.
    pub ids: Vec<u32>,
    /// Tick of each access.
    pub ticks: Vec<u32>,
    /// Time of each access, µs; empty unless requested ([`Loader::with_times`]).
    pub time_us: Vec<u64>,
    /// Hint of each access; empty if there are none.
    pub hints: Vec<u8>,
    /// Session identifiers by number.
    pub keys: Vec<Endpoint>,
    /// The first access that counts.
    pub counted_from: usize,
    /// Its origin.
    pub note: Provenance,
    /// The reader's report; nothing for streams that were in no file.
    pub report: Option<Report>,
    /// Values computed from it once.
    pub counted_once: CountedOnce,
}

/// Values shared by all configurations, computed on first use. Changing a stream's columns requires
/// a new one.
#[derive(Clone, Debug, Default)]
pub struct CountedOnce {
    cold_misses: OnceLock<u64>,
}

impl Stream {
    /// First accesses among those that count.
    ///
    /// # Errors
    /// When the columns do not fit together.
    pub(crate) fn cold_misses(&self) -> Result<u64, LabError> {
        if let Some(known) = self.counted_once.cold_misses.get() {
            return Ok(*known);
        }
        let counted = Counted::new(&self.ids, self.keys.len(), self.counted_from)
            .map_err(|error| LabError::Trace(format!("{}: {error}", self.note.trace)))?;
        Ok(*self
            .counted_once
            .cold_misses
            .get_or_init(|| compulsory(&counted)))
    }

    /// Accesses that count.
    pub fn counted(&self) -> u64 {
        (self.ids.len() - self.counted_from) as u64
    }
}

/// A log that was read, to be expanded any number of times.
#[derive(Clone, Debug)]
pub struct Log {
    /// Its rows.
    pub requests: Requests,
    /// What reading came to.
    pub report: Report,
}

/// What of a recipe decides how a log is read, and whether it is.
fn reading(path: &Path, made: &StreamSpec) -> StreamSpec {
    StreamSpec {
        format: made.format.clone(),
        max_bad: made.max_bad,
        ..StreamSpec::file(path)
    }
}

/// Loads streams. Keeps the last log, and the last log cut into sessions, so that many loads of
/// one trace read it once.
#[derive(Debug, Default)]
pub struct Loader {
    log: Option<(StreamSpec, Rc<Log>)>,
    prepared: Option<(StreamSpec, Prepared)>,
    keep_times: bool,
    keep_unknown_clients: bool,
}

/// Accesses, with their origin.
#[derive(Default)]
struct Loaded {
    accesses: Accesses,
    warm_up: usize,
    report: Option<Report>,
    expanded: Option<Expanded>,
    notes: Vec<String>,
}

impl Loader {
    /// A loader of streams with times (8 more bytes per access).
    pub fn with_times() -> Self {
        Self {
            keep_times: true,
            ..Self::default()
        }
    }

    /// A loader of logs for studies of content: requests of which the log does not know the client
    /// are those of one client.
    pub fn with_unknown_clients() -> Self {
        Self {
            keep_unknown_clients: true,
            ..Self::default()
        }
    }

    /// Makes the stream of a recipe.
    ///
    /// # Errors
    /// A file that cannot be read or has nothing in it; a recipe that cannot be followed; a stop.
    pub fn stream(&mut self, made: &StreamSpec, control: &dyn Control) -> Result<Stream, LabError> {
        made.check().map_err(|problem| LabError::Plan {
            place: made.name(),
            problem,
        })?;
        let failed = |error: WorkloadError| workload_error(made, &error);
        let mut loaded = match (&made.path, &made.standard, &made.zipf) {
            (Some(path), _, _) => self.of_file(path, made, control)?,
            (_, Some(standard), _) => {
                let warmed = fairlead_workload::warmed(standard, made.seed).map_err(failed)?;
                let (accesses, warm_up) = warmed;
                let is_all = warm_up == accesses.len();
                Loaded {
                    notes: is_all.then(nothing_counts).into_iter().collect(),
                    warm_up,
                    accesses,
                    ..Loaded::default()
                }
            }
            (_, _, Some(zipf)) => Loaded {
                accesses: zipf
                    .rows()
                    .and_then(|rows| fairlead_workload::zipf(zipf.ids, zipf.alpha, rows, made.seed))
                    .map_err(failed)?,
                ..Loaded::default()
            },
            (None, None, None) => return Err(LabError::Trace("no trace".to_owned())),
        };
        if made.is_synthetic() {
            loaded.notes.extend(unused_expansion(made));
        }
        if control.stopped() {
            return Err(LabError::Stopped);
        }
        Ok(self.finish(loaded, made))
    }
}

impl Loader {
    fn of_file(
        &mut self,
        path: &Path,
        made: &StreamSpec,
        control: &dyn Control,
    ) -> Result<Loaded, LabError> {
        let takes = |format: &Format| made.rows.takes(format);
        let log = match self.known_log(path, made) {
            Some(log) if !takes(&log.report.format) => log,
            _ => {
                let opened = Opened::new(path, made)?;
                if takes(&opened.format) {
                    return of_accesses(opened, path, made, control);
                }
                self.read_log(opened, path, made, control)?
            }
        };
        let mut expanded = self.expand(&log.requests, made)?;
        let mut notes = reading_notes(&log.report);
        notes.extend(expansion_notes(&made.expansion, &expanded));
        Ok(Loaded {
            accesses: std::mem::take(&mut expanded.accesses),
            warm_up: expanded.warm_up_rows,
            report: Some(log.report.clone()),
            expanded: Some(expanded),
            notes,
        })
    }

    fn expand(&mut self, requests: &Requests, made: &StreamSpec) -> Result<Expanded, LabError> {
        let concurrent = made.expansion.concurrent_sessions;
        let failed = |error: WorkloadError| workload_error(made, &error);
        let mut plain = made.clone();
        plain.expansion.concurrent_sessions = None;
        let known = self.prepared.take().filter(|(recipe, _)| *recipe == plain);
        let (recipe, prepared) = match known {
            Some(known) => known,
            None => {
                let prepared = Prepared::new(requests, &plain.expansion, made.seed);
                (plain, prepared.map_err(failed)?)
            }
        };
        let expanded = prepared.load(concurrent).map_err(failed);
        self.prepared = Some((recipe, prepared));
        expanded
    }

    /// The log of a recipe, read unless it is the last that was read.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log(
        &mut self,
        path: &Path,
        made: &StreamSpec,
        control: &dyn Control,
    ) -> Result<Rc<Log>, LabError> {
        match self.known_log(path, made) {
            Some(log) => Ok(log),
            None => self.read_log(Opened::new(path, made)?, path, made, control),
        }
    }

    /// The last log that was read, if it is this one.
    fn known_log(&self, path: &Path, made: &StreamSpec) -> Option<Rc<Log>> {
        let (known, log) = self.log.as_ref()?;
        (*known == reading(path, made)).then(|| Rc::clone(log))
    }

    fn read_log(
        &mut self,
        mut opened: Opened,
        path: &Path,
        made: &StreamSpec,
        control: &dyn Control,
    ) -> Result<Rc<Log>, LabError> {
        self.log = None;
        opened.keep_unknown_clients = self.keep_unknown_clients;
        let (requests, report) = opened.read(path, made, control, fairlead_trace::read_requests)?;
        let log = Rc::new(Log { requests, report });
        self.log = Some((reading(path, made), Rc::clone(&log)));
        Ok(log)
    }

    fn finish(&self, loaded: Loaded, made: &StreamSpec) -> Stream {
        let Loaded {
            accesses,
            warm_up,
            report,
            expanded,
            notes,
        } = loaded;
        let read = report.as_ref().map(ReadNote::new);
        let ticks = accesses.ticks(u64::from(made.tick_ms) * 1_000);
        let Accesses {
            time_us,
            id,
            keys,
            hint,
        } = accesses;
        let mut notes = notes;
        if keys.len() == 1 && id.len() > 1 {
            notes.push(one_session(report.as_ref().map(|report| &report.format)));
        }
        let span_s = time_us.last().copied().unwrap_or(0) as f64 / 1e6;
        let note = Provenance {
            trace: made.name(),
            synthetic: made.is_synthetic(),
            stream: Fingerprint::of_stream(&id, &ticks, &hint, &keys, warm_up),
            accesses: id.len() as u64,
            warm_up: warm_up as u64,
            sessions: accessed(&id, keys.len()),
            span_s,
            made: made.clone(),
            read,
            expanded,
            notes,
        };
        Stream {
            ids: id,
            ticks,
            time_us: if self.keep_times { time_us } else { Vec::new() },
            hints: hint,
            keys,
            counted_from: warm_up,
            note,
            report,
            counted_once: CountedOnce::default(),
        }
    }
}

/// How many sessions are accessed: a synthetic workload can be too short for all that it has.
pub fn accessed(ids: &[u32], sessions: usize) -> u64 {
    let mut seen = vec![false; sessions];
    let mut count = 0;
    for id in ids {
        count += u64::from(!std::mem::replace(&mut seen[*id as usize], true));
        if count == sessions as u64 {
            break;
        }
    }
    count
}

fn workload_error(made: &StreamSpec, error: &WorkloadError) -> LabError {
    match error {
        WorkloadError::Empty if made.path.is_none() => LabError::Empty(made.name()),
        WorkloadError::Empty => LabError::Trace(format!("{}: {error}", made.name())),
        _ => LabError::option(made.name(), "", error.to_string()),
    }
}

/// Rows of accesses must be in order, unless sorting is requested. Captures are exempt: several are
/// often joined in one file.
///
/// # Errors
/// When they are not.
pub fn in_order(made: &StreamSpec, report: &Report) -> Result<(), LabError> {
    if report.stepped_back == 0 || made.sort || report.format == Format::Pcap {
        return Ok(());
    }
    let first = report
        .first_back
        .map_or_else(String::new, |row| format!(", first at row {row}"));
    Err(LabError::Trace(format!(
        "{}: time steps back {}{first}; rows of accesses must be in order of time: sort the file, \
         or give --sort (in a plan: sort = true, in Python: sort=True)",
        report.name,
        times(report.stepped_back)
    )))
}

/// What is said of a folder in place of a file.
pub fn is_folder(path: &Path) -> LabError {
    let name = path.display();
    LabError::Trace(format!("{name}: is a directory; name a file in it"))
}

impl StreamSpec {
    /// The requested format.
    pub(crate) fn chosen_format(&self) -> Result<Option<Format>, LabError> {
        let Some(text) = &self.format else {
            return Ok(None);
        };
        text.parse()
            .map(Some)
            .map_err(|problem: String| LabError::option("--format", text, problem))
    }
}

/// An open trace and its format. Opened only once, because a pipe can be read only once.
struct Opened {
    source: Source,
    /// Bytes as they are stored.
    stored: u64,
    format: Format,
    /// Whether requests without a known client are read, too.
    keep_unknown_clients: bool,
}

impl Opened {
    /// Opens the trace of a recipe; its format is detected by the first bytes unless given.
    fn new(path: &Path, made: &StreamSpec) -> Result<Self, LabError> {
        let format = made.chosen_format()?;
        let failed = |error| LabError::file(path, error);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(is_folder(path));
        }
        let source = fairlead_trace::open(path.display().to_string(), file).map_err(trace_error)?;
        let format = match format {
            Some(format) => format,
            None => source.detect().map_err(trace_error)?,
        };
        Ok(Self {
            source,
            stored: metadata.len(),
            format,
            keep_unknown_clients: false,
        })
    }

    /// Reads it to its end.
    fn read<T>(
        self,
        path: &Path,
        made: &StreamSpec,
        control: &dyn Control,
        read: impl FnOnce(Source, ReadOptions<'_>) -> Result<T, TraceError>,
    ) -> Result<T, LabError> {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = visible_name(&name.to_string_lossy());
        control.begin(&format!("reading {name}"), self.stored);
        let mut watch = |bytes: u64| {
            control.reached(bytes);
            if control.stopped() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let options = ReadOptions {
            format: Some(self.format),
            max_bad: made.max_bad,
            keep_unknown_clients: self.keep_unknown_clients,
            progress: Some(&mut watch),
            ..ReadOptions::default()
        };
        let result = read(self.source, options).map_err(trace_error);
        control.end();
        result
    }
}

/// Rows that are accesses as they are.
fn of_accesses(
    opened: Opened,
    path: &Path,
    made: &StreamSpec,
    control: &dyn Control,
) -> Result<Loaded, LabError> {
    let (accesses, report) = opened.read(path, made, control, fairlead_trace::read_accesses)?;
    in_order(made, &report)?;
    let mut notes = reading_notes(&report);
    notes.extend(unused_expansion(made));
    Ok(Loaded {
        accesses,
        report: Some(report),
        notes,
        ..Loaded::default()
    })
}

fn trace_error(error: TraceError) -> LabError {
    match error.fault {
        Fault::Stopped => LabError::Stopped,
        _ => LabError::Trace(error.to_string()),
    }
}

impl Zipf {
    /// How many rows there are, if they can be made.
    fn rows(&self) -> Result<usize, WorkloadError> {
        let rows = usize::try_from(self.accesses).unwrap_or(usize::MAX);
        if rows > ZIPF_ROWS_MAX {
            // Nothing that an expansion's message advises is there to be lowered.
            let complaint = format!("accesses must be {ZIPF_ROWS_MAX} at most");
            return Err(WorkloadError::Parameter(complaint));
        }
        fairlead_workload::check_zipf(self.ids, self.alpha, rows)?;
        Ok(rows)
    }
}

/// As many as every other generator makes at most: 3 GiB of columns.
const ZIPF_ROWS_MAX: usize = 1 << 28;

/// What a port model is called in tables, and by options.
pub fn port_model_name(ports: &PortModel) -> &'static str {
    match ports {
        PortModel::Sequential { .. } => "sequential",
        PortModel::Random { .. } => "random",
    }
}
