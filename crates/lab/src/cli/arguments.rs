//! Options that several commands share.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use fairlead_workload::count::sessions;
use fairlead_workload::{Expansion, PortModel, Standard};
use serde::Deserialize;
use toml::{Table, Value};

use crate::cost::Constants;
use crate::error::{LabError, in_words};
use crate::load::{As, StreamSpec, TICK_MS};
use crate::plan::one_line;
use crate::size::Size;
use crate::spec::RunSpec;

/// Selects a stream.
#[derive(Clone, Debug, Args)]
pub(crate) struct StreamArgs {
    /// A trace (log, capture, CSV `time_us,ip,port`; optionally compressed; `-` for standard
    /// input), or a synthetic workload: `standard:4000`, `standard:sessions=4000,seconds=20`,
    /// `zipf:ids=1000,accesses=100000`
    #[arg(value_name = "TRACE")]
    pub(crate) trace: OsString,
    #[command(flatten)]
    pub(crate) made: MadeArgs,
}

const EXPANSION: &str = "Expansion of requests to accesses";
/// The key of an expansion that selects the port model.
const PORT_MODEL: &str = "ports.model";

/// How a trace is expanded to a stream.
#[derive(Clone, Debug, Args)]
pub(crate) struct MadeArgs {
    #[arg(long, value_name = "FORMAT", help = formats())]
    pub(crate) format: Option<String>,
    /// Whether rows are requests or accesses
    #[arg(long = "as", value_name = "WHAT", value_enum, default_value = "auto")]
    pub(crate) rows: As,
    /// Maximum share of unreadable rows
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    pub(crate) max_bad: f64,
    /// Sort rows of accesses by time; logs are always sorted
    #[arg(long)]
    pub(crate) sort: bool,
    /// Random seed for the expansion, index functions and policies
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Tick length of the lifetime counters, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = TICK_MS)]
    pub(crate) tick_ms: u32,
    /// Number of sessions open at the same time, by starting them densely enough [default: the
    /// log's own pace]
    #[arg(long, value_name = "SESSIONS", value_parser = sessions, help_heading = EXPANSION)]
    pub(crate) concurrency: Option<u32>,
    /// How clients choose ports if the trace has none: sequential (1995) or random (today)
    #[arg(long, value_name = "MODEL", help_heading = EXPANSION)]
    pub(crate) ports: Option<String>,
    /// Silence in seconds after which a client's next request starts a new session [default: 1800]
    #[arg(long, value_name = "SECONDS", help_heading = EXPANSION)]
    pub(crate) session_timeout: Option<f64>,
    /// How whole seconds become instants: auto, logged or drawn
    #[arg(long, value_name = "HOW", help_heading = EXPANSION)]
    pub(crate) sub_second: Option<String>,
    /// Which packets of a request are accesses: request (the request only) or packets (a SYN one
    /// round trip before a session's first request; each request; an acknowledgement for every two
    /// segments of its response, at least one; a FIN after the session's last packet)
    #[arg(long, value_name = "WHICH", help_heading = EXPANSION)]
    pub(crate) packets: Option<String>,
    /// With --concurrency: warm-up in seconds before counting starts [default: the session timeout
    /// plus a second, the longest possible silence]
    #[arg(long, value_name = "SECONDS", help_heading = EXPANSION)]
    pub(crate) warm_up: Option<f64>,
    /// With --concurrency: how many times the log's accesses are counted [default: 1]
    #[arg(long, value_name = "NUMBER", help_heading = EXPANSION)]
    pub(crate) periods: Option<u32>,
    /// Any parameter of the expansion, as in a plan: `--expand ports.skew=1`, `--expand
    /// on_gap_max_s=2`
    #[arg(
        long = "expand",
        value_name = "KEY=VALUE",
        help_heading = EXPANSION
    )]
    pub(crate) expand: Vec<String>,
}

/// Help of `--format`.
fn formats() -> String {
    format!(
        "Format of the trace; detected from the content by default. One of: {}. COLUMNS describe \
         any other table, by numbers or names: `csv:time=1,client=2`, \
         `csv:time=ts,client=src,port=sport`; also bytes, object, status, unit=s|ms|us|ns|iso, \
         separator=;, header=yes",
        fairlead_trace::format::names()
    )
}

/// Prefixes of synthetic workloads, and the key of a lone value.
const STANDARD: &str = "standard";
const SESSIONS: &str = "sessions";
const ZIPF: &str = "zipf";
const IDS: &str = "ids";

impl StreamArgs {
    /// The requested recipe.
    pub(crate) fn spec(&self) -> Result<StreamSpec, LabError> {
        let mut spec = self.made.spec()?;
        // A file may have any name; workload names consist of letters.
        let text = self.trace.to_str().unwrap_or_default();
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        match name {
            STANDARD => {
                spec.standard = Some(self.standard(text, settings)?);
                if self.made.concurrency.is_some() {
                    // A setting of the workload is not one of the expansion.
                    spec.expansion.concurrent_sessions = None;
                }
            }
            ZIPF => spec.zipf = Some(Settings::read(ZIPF, settings, IDS)?.describe()?),
            // By convention; a file of this name is `./-`.
            "-" if text == "-" => spec.path = Some(PathBuf::from("/dev/stdin")),
            _ => spec.path = Some(PathBuf::from(&self.trace)),
        }
        Ok(spec)
    }

    /// The recipe for a command that determines the number of open sessions itself.
    pub(crate) fn spec_of_any_load(&self) -> Result<StreamSpec, LabError> {
        let spec = self.spec()?;
        let problem = "this command determines the number of open sessions; omit it";
        if let Some(sessions) = self.made.concurrency {
            let value = sessions.to_string();
            return Err(LabError::option("--concurrency", value, problem));
        }
        if spec.expansion.concurrent_sessions.is_some() {
            return Err(LabError::option("--expand", "concurrent_sessions", problem));
        }
        let text = self.trace.to_str().unwrap_or_default();
        let (_, settings) = text.split_once(':').unwrap_or((text, ""));
        let is_standard = spec.standard.is_some();
        if is_standard && Settings::read(STANDARD, settings, SESSIONS)?.name(SESSIONS) {
            return Err(LabError::option("TRACE", text, problem));
        }
        Ok(spec)
    }

    /// The standard workload of `text`. `--concurrency` may give its number of sessions instead.
    fn standard(&self, text: &str, settings: &str) -> Result<Standard, LabError> {
        let settings = Settings::read(STANDARD, settings, SESSIONS)?;
        let names_sessions = settings.name(SESSIONS);
        let mut standard: Standard = settings.describe()?;
        let Some(sessions) = self.made.concurrency else {
            return Ok(standard);
        };
        if names_sessions && standard.sessions != sessions {
            let problem = format!("{text} also sets the number; give only one of them");
            let value = sessions.to_string();
            return Err(LabError::option("--concurrency", value, problem));
        }
        standard.sessions = sessions;
        Ok(standard)
    }
}

impl MadeArgs {
    fn spec(&self) -> Result<StreamSpec, LabError> {
        if self.tick_ms == 0 {
            return Err(LabError::option(
                "--tick-ms",
                "0",
                "write 1 or more (the paper's: 250)",
            ));
        }
        check_max_bad(self.max_bad)?;
        if let Some(sessions) = self.concurrency {
            check_some("--concurrency", sessions)?;
        }
        let expansion = self.expansion()?;
        let mut spec = StreamSpec {
            format: self.format.clone(),
            rows: self.rows,
            max_bad: self.max_bad,
            sort: self.sort,
            seed: self.seed,
            tick_ms: self.tick_ms,
            expansion,
            ..StreamSpec::default()
        };
        if self.concurrency.is_some() {
            spec.expansion.concurrent_sessions = self.concurrency.map(f64::from);
        }
        if let Some(problem) = spec.expansion.complaint() {
            return Err(LabError::option("expansion", "", problem));
        }
        Ok(spec)
    }

    /// The keys of an expansion that dedicated options have set.
    fn given_by_options(&self) -> BTreeSet<&str> {
        let given = [
            (PORT_MODEL, self.ports.is_some()),
            ("session_timeout_s", self.session_timeout.is_some()),
            ("sub_second", self.sub_second.is_some()),
            ("packets", self.packets.is_some()),
            ("warm_up_s", self.warm_up.is_some()),
            ("periods", self.periods.is_some()),
            ("concurrent_sessions", self.concurrency.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(key, _)| key).collect()
    }

    /// The defaults with the options applied.
    fn expansion(&self) -> Result<Expansion, LabError> {
        let mut table = Table::new();
        if let Some(name) = &self.ports {
            let model = Value::try_from(port_model(name)?)
                .map_err(|error| LabError::option("--ports", name, error.to_string()))?;
            table.insert("ports".to_owned(), model);
        }
        let number = |value: Option<f64>| value.map(Value::Float);
        let word = |value: &Option<String>| value.clone().map(Value::String);
        let given = [
            ("session_timeout_s", number(self.session_timeout)),
            ("sub_second", word(&self.sub_second)),
            ("packets", word(&self.packets)),
            ("warm_up_s", number(self.warm_up)),
            (
                "periods",
                self.periods.map(|periods| Value::Integer(periods.into())),
            ),
        ];
        for (key, value) in given {
            if let Some(value) = value {
                table.insert(key.to_owned(), value);
            }
        }
        let mut given = self.given_by_options();
        for setting in &self.expand {
            // Otherwise the last one would win silently.
            let key = key_of(setting);
            if !given.insert(key) {
                let problem = format!("duplicate {key}; give it once");
                return Err(LabError::option("--expand", setting, problem));
            }
            if setting.starts_with("ports.") && !table.contains_key("ports") {
                let mut named = self.expand.iter();
                let named = named.find_map(|one| one.strip_prefix("ports.model="));
                let model = named.map_or(Ok(PortModel::SEQUENTIAL), port_model)?;
                let usual = Value::try_from(model).ok();
                table.extend(usual.map(|model| ("ports".to_owned(), model)));
            }
            insert(&mut table, setting)
                .map_err(|problem| LabError::option("--expand", setting, problem))?;
        }
        let failed = |table: Table| deserialize::<Expansion>(table).err();
        let one = |(key, value): (&String, &Value)| {
            let alone = failed(Table::from_iter([(key.clone(), value.clone())]))?;
            Some(LabError::option(option_of(key), "", alone))
        };
        if let Some(error) = table.iter().find_map(one) {
            return Err(error);
        }
        deserialize(table).map_err(|problem| LabError::option("expansion", "", problem))
    }
}

/// The key of `key=value`, without blanks. A port model alone is the key `ports`.
fn key_of(setting: &str) -> &str {
    let key = setting.split('=').next().unwrap_or_default().trim();
    if key == "ports" { PORT_MODEL } else { key }
}

/// Checks a share of rows.
pub(crate) fn check_max_bad(share: f64) -> Result<(), LabError> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    let problem = "write a share from 0 to 1";
    Err(LabError::option("--max-bad", share.to_string(), problem))
}

/// Checks for a positive number.
pub(crate) fn check_some(option: &str, sessions: u32) -> Result<(), LabError> {
    if sessions > 0 {
        return Ok(());
    }
    Err(LabError::option(option, "0", "write 1 or more"))
}

/// The name of the option for a parameter of the expansion.
fn option_of(key: &str) -> String {
    match key {
        "ports" => "--ports or --expand ports".to_owned(),
        "session_timeout_s" => "--session-timeout".to_owned(),
        "sub_second" => "--sub-second".to_owned(),
        "packets" => "--packets".to_owned(),
        "warm_up_s" => "--warm-up".to_owned(),
        "periods" => "--periods".to_owned(),
        other => format!("--expand {other}"),
    }
}

/// The settings after a workload's name: `a=1,b=2`, or a lone value for one key.
struct Settings<'a> {
    /// The workload's name.
    what: &'a str,
    text: &'a str,
    table: Table,
}

impl<'a> Settings<'a> {
    fn read(what: &'a str, text: &'a str, key: &str) -> Result<Self, LabError> {
        let mut table = Table::new();
        let mut given = BTreeSet::new();
        for setting in text.split(',').filter(|setting| !setting.is_empty()) {
            let setting = if setting.contains('=') {
                setting.to_owned()
            } else {
                format!("{key}={setting}")
            };
            // Otherwise the last one would win silently.
            let name = setting.split('=').next().unwrap_or_default().trim();
            if !given.insert(name.to_owned()) {
                let problem = format!("duplicate {name}; give it once");
                return Err(LabError::option(what, text, problem));
            }
            insert(&mut table, &setting)
                .map_err(|problem| LabError::option(what, text, problem))?;
        }
        Ok(Self { what, text, table })
    }

    /// True if this key is set.
    fn name(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The workload described by the settings.
    fn describe<T: for<'de> Deserialize<'de>>(self) -> Result<T, LabError> {
        deserialize(self.table).map_err(|problem| LabError::option(self.what, self.text, problem))
    }
}

/// Adds `key=value` or `key.inner=value`. The value is TOML; a word needs no quotes.
fn insert(table: &mut Table, setting: &str) -> Result<(), String> {
    let (path, value) = setting
        .split_once('=')
        .ok_or_else(|| format!("{setting}: write KEY=VALUE"))?;
    let value = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(value.to_owned()));
    let mut table = table;
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    let last = keys.pop().unwrap_or_default();
    for key in keys {
        let inner = table
            .entry(key.to_owned())
            .or_insert_with(|| Value::Table(Table::new()));
        table = inner
            .as_table_mut()
            .ok_or_else(|| format!("{setting}: {key} already has a value"))?;
    }
    table.insert(last.to_owned(), value);
    Ok(())
}

fn deserialize<T: for<'de> Deserialize<'de>>(table: Table) -> Result<T, String> {
    T::deserialize(Value::Table(table)).map_err(|error| in_words(error.message()))
}

/// Options of geometry and schemes.
#[derive(Clone, Debug, Args)]
pub(crate) struct GeometryArgs {
    /// Total size of the lines in bytes
    #[arg(long, value_name = "SIZE", default_value = "32K")]
    pub(crate) capacity: Size,
    /// Line size in bytes
    #[arg(long, value_name = "SIZE", default_value = "64")]
    pub(crate) line: Size,
    /// Ways per set, in each bank
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    pub(crate) ways: u32,
    /// Bits of the session identifier that select the set: `all48`, the lowest 1 to 40 bits of the
    /// address and the port's low byte (`16` in the paper), or masks of address and port,
    /// `000000ff:00ff`
    #[arg(long, value_name = "BITS")]
    pub(crate) index_bits: Option<String>,
    /// Value of the 3-bit counter from which a line is ON: 4 in the paper, 0 always, 8 never
    #[arg(long, value_name = "NUMBER")]
    pub(crate) threshold: Option<u8>,
}

impl GeometryArgs {
    /// A configuration with this geometry.
    pub(crate) fn run(&self, scheme: &str, seed: u64) -> RunSpec {
        RunSpec {
            scheme: scheme.to_owned(),
            capacity: self.capacity,
            line: self.line,
            ways: self.ways,
            index_bits: self.index_bits.clone(),
            threshold: self.threshold,
            seed,
        }
    }
}

/// Options for the constants of the cost models.
#[derive(Clone, Debug, Args)]
pub(crate) struct CostArgs {
    /// Constants of the cost models, as TOML; others keep their defaults
    #[arg(long, value_name = "FILE")]
    pub(crate) constants: Option<PathBuf>,
    /// Set one constant: `--constant toe.memory_ns=80`
    #[arg(long = "constant", value_name = "KEY=VALUE")]
    pub(crate) constant: Vec<String>,
}

impl CostArgs {
    /// The constants with the options applied.
    pub(crate) fn constants(&self) -> Result<Constants, LabError> {
        let mut table = Table::new();
        let mut place = "--constant".to_owned();
        if let Some(path) = &self.constants {
            let text =
                std::fs::read_to_string(path).map_err(|error| LabError::file(path, error))?;
            table = text
                .parse()
                .map_err(|error: toml::de::Error| LabError::Plan {
                    place: path.display().to_string(),
                    problem: one_line(&text, &error),
                })?;
            place = path.display().to_string();
            // Parse the text itself, so that errors have the line.
            toml::from_str::<Constants>(&text).map_err(|error| LabError::Plan {
                place: place.clone(),
                problem: one_line(&text, &error),
            })?;
        }
        let mut given = BTreeSet::new();
        for setting in &self.constant {
            let wrong = |problem: String| LabError::option("--constant", setting, problem);
            let key = key_of(setting);
            if !given.insert(key) {
                return Err(wrong(format!("duplicate {key}; give it once")));
            }
            let mut alone = Table::new();
            insert(&mut alone, &number(setting)).map_err(wrong)?;
            deserialize::<Constants>(alone).map_err(wrong)?;
            insert(&mut table, &number(setting)).map_err(wrong)?;
        }
        if let Some(key) = senseless(&table, "") {
            let problem = format!("{key}: must be a number of 0 or more");
            return Err(LabError::Plan { place, problem });
        }
        deserialize(table).map_err(|problem| LabError::Plan { place, problem })
    }
}

/// The key of the first invalid number.
fn senseless(table: &Table, before: &str) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let key = format!("{before}{key}");
        let wrong = match value {
            Value::Table(inner) => return senseless(inner, &format!("{key}.")),
            Value::Float(number) => !number.is_finite() || *number < 0.0,
            Value::Integer(number) => *number < 0,
            _ => false,
        };
        wrong.then_some(key)
    })
}

/// Accepts integers for floating-point constants.
fn number(setting: &str) -> String {
    match setting.split_once('=') {
        Some((key, value)) if !key.starts_with("storage.") && value.parse::<u64>().is_ok() => {
            format!("{key}={value}.0")
        }
        _ => setting.to_owned(),
    }
}

/// Option for the number of threads.
#[derive(Clone, Debug, Args)]
pub(crate) struct ThreadArgs {
    /// Number of threads [default: number of cores]
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) threads: usize,
}

/// A port model by its name.
pub(crate) fn port_model(name: &str) -> Result<PortModel, LabError> {
    match name {
        "sequential" => Ok(PortModel::SEQUENTIAL),
        "random" => Ok(PortModel::RANDOM),
        _ => Err(LabError::option(
            "--ports",
            name,
            "write sequential (1995) or random (today)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(allow_negative_numbers = true)]
    struct One {
        #[command(flatten)]
        stream: StreamArgs,
    }

    fn asked(words: &[&str]) -> Result<StreamSpec, String> {
        asked_of("x.log", words)
    }

    fn asked_of(trace: &str, words: &[&str]) -> Result<StreamSpec, String> {
        let words = ["lab", trace].into_iter().chain(words.iter().copied());
        let one = One::try_parse_from(words).map_err(|error| error.to_string())?;
        one.stream.spec().map_err(|error| error.to_string())
    }

    #[test]
    fn port_parameters_belong_to_the_named_model() {
        let of = |words: &[&str]| asked(words).map(|spec| spec.expansion.ports);
        let random = [
            "--expand",
            "ports.model=random",
            "--expand",
            "ports.low=2000",
        ];
        let PortModel::Random { low, high } = of(&random).unwrap() else {
            panic!("another model");
        };
        assert_eq!((low, high), (2000, 60_999));
        assert!(matches!(
            of(&["--expand", "ports.skew=1.0"]),
            Ok(PortModel::Sequential { .. })
        ));
        assert!(
            of(&["--expand", "ports.model=odd"])
                .unwrap_err()
                .contains("odd")
        );
    }

    #[test]
    fn duplicates_are_refused() {
        for words in [
            &["--session-timeout", "6", "--expand", "session_timeout_s=5"][..],
            &["--concurrency", "9", "--expand", "concurrent_sessions=5"],
            &["--expand", "periods=2", "--expand", "periods = 3"],
            &["--ports", "random", "--expand", "ports=sequential"],
            &["--ports", "random", "--expand", "ports.model=sequential"],
        ] {
            let problem = asked(words).unwrap_err();
            assert!(problem.contains("duplicate"), "{words:?}: {problem}");
        }
        assert!(asked(&["--ports", "random", "--expand", "ports.low=2000"]).is_ok());
        let constants = |constant: &[&str]| {
            let constant = constant.iter().map(ToString::to_string).collect();
            let asked = CostArgs {
                constants: None,
                constant,
            };
            asked.constants().map_err(|error| error.to_string())
        };
        let problem = constants(&["toe.memory_ns=80", "toe.memory_ns=90"]).unwrap_err();
        assert!(problem.contains("duplicate"), "{problem}");
        assert!(constants(&["toe.memory_ns=80", "toe.hit_ns=9"]).is_ok());
    }

    #[test]
    fn the_number_of_sessions_is_given_once() {
        let of = |trace: &str, words: &[&str]| {
            let spec = asked_of(trace, words)?;
            let loaded = crate::Loader::default().stream(&spec, &crate::Silent);
            let notes = loaded.map_err(|error| error.to_string())?.note.notes;
            Ok::<_, String>((spec.standard.map(|standard| standard.sessions), notes.len()))
        };
        let load = ["--concurrency", "30"];
        assert_eq!(of("standard:seconds=2", &load), Ok((Some(30), 0)));
        assert_eq!(of("standard:30,seconds=2", &load), Ok((Some(30), 0)));
        for trace in ["standard:40", "standard:seconds=2, sessions=40"] {
            let problem = of(trace, &load).unwrap_err();
            assert!(
                problem.contains(trace) && problem.contains("one of them"),
                "{problem}"
            );
        }
        // Unused settings are reported.
        assert_eq!(of("zipf:ids=9,accesses=99", &load), Ok((None, 1)));
        assert_eq!(
            of("standard:30", &["--packets", "packets"]),
            Ok((Some(30), 1))
        );
    }

    #[test]
    fn calibrate_refuses_a_given_load() {
        let of = |trace: &str, words: &[&str]| {
            let words = ["lab", trace].into_iter().chain(words.iter().copied());
            let one = One::try_parse_from(words).map_err(|error| error.to_string())?;
            let spec = one.stream.spec_of_any_load();
            spec.map(|_| ()).map_err(|error| error.to_string())
        };
        for (trace, words, said) in [
            ("x.log", &["--concurrency", "9"][..], "--concurrency 9"),
            ("standard", &["--concurrency", "9"], "--concurrency 9"),
            (
                "x.log",
                &["--expand", "concurrent_sessions=9"],
                "concurrent_sessions",
            ),
            ("standard:10", &[], "standard:10"),
            ("standard:seconds=5,sessions=4000", &[], "sessions=4000"),
        ] {
            let problem = of(trace, words).unwrap_err();
            assert!(
                problem.contains(said) && problem.contains("omit it"),
                "{problem}"
            );
        }
        for trace in ["x.log", "10:20", "standard", "standard:seconds=5"] {
            assert_eq!(of(trace, &["--warm-up", "5"]), Ok(()), "{trace}");
        }
    }

    #[test]
    fn a_negative_number_is_refused() {
        for (option, said) in [
            ("--session-timeout", "session_timeout_s must be above 0"),
            ("--warm-up", "warm_up_s"),
            ("--max-bad", "a share from 0 to 1"),
            ("--seed", "'-1' for '--seed"),
        ] {
            let problem = asked(&[option, "-1"]).unwrap_err();
            assert!(problem.contains(said), "{option}: {problem}");
        }
    }
}
