//! The log: `tracing` on standard error, and lines about connections where `[log]` sends them.
//!
//! | message | level | when |
//! |---|---|---|
//! | `closed` | info | a spliced connection is over: everything about it on one line |
//! | `refused` | info | a client was turned away |
//! | `decided` | debug | a server was chosen; several for one connection when servers are retried |
//! | `server` | info or warn | a server's state changed |
//!
//! All have the target `fairlead::connection` or `fairlead::server`, so that `--log
//! info,fairlead::connection=debug` adds only the decisions.
//!
//! A slow reader of the log delays nothing: see [`Log`].

mod access;
mod filter;
mod line;
mod outlet;
mod refusals;
mod unfiltered;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::Endpoint;
use fairlead_datapath::{Event, Offers, ServerState, Unavailable};
use fairlead_splice::config::{Config, PoolId, Treatment};
use fairlead_splice::snapshot::UNMATCHED;

pub(crate) use access::{AccessLog, can_open};
use outlet::{Outlet, WAITING_BYTES_MAX};
pub(crate) use unfiltered::{is_json, print_findings, print_line, print_load_error};

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Human-readable.
    #[default]
    Text,
    /// One JSON object per line; nothing is written to standard output.
    Json,
}

impl LogFormat {
    /// The word on the command line and in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Logging options, flattened into every command that logs.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LogArgs {
    /// What to log: error, warn, info, debug or trace, or a list such as
    /// info,fairlead::connection=debug [env: FAIRLEAD_LOG] [default: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// Format of log lines
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// Environment variable used if `--log` is not given.
pub const VARIABLE: &str = "FAIRLEAD_LOG";
const LEVEL: &str = "info";

impl LogArgs {
    /// Starts logging, with a thread that writes the lines.
    pub fn start(&self) -> Result<Log, StartError> {
        unfiltered::set_format(self.log_format);
        start(&self.filter(std::env::var(VARIABLE).ok()), self.log_format)
    }

    fn filter(&self, variable: Option<String>) -> String {
        let both = [self.log.clone(), variable];
        let mut said = both.into_iter().flatten().filter(|one| !one.is_empty());
        said.next().unwrap_or_else(|| LEVEL.to_owned())
    }
}

/// Why logging could not start: an invalid filter, or a system error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartError(String);

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// The running log. A thread of its own writes the lines. Up to 1 MiB of lines are buffered for a
/// slow or stalled reader; further lines are dropped and counted. Dropping the log waits a limited
/// time for buffered lines.
#[derive(Debug)]
pub struct Log {
    outlet: Arc<Outlet>,
}

/// How long shutdown waits for the log's reader.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

impl Log {
    /// Lines dropped because the reader was too slow or is gone.
    pub fn lost_lines(&self) -> u64 {
        self.outlet.lost()
    }

    /// Sends panic messages to the log from now on; the standard library would block on a stalled
    /// standard error. With a backtrace if `RUST_BACKTRACE` is set.
    pub fn take_over_panics(&self) {
        std::panic::set_hook(Box::new(log_panic));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.outlet.flush(FLUSH_PATIENCE);
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload_as_str().unwrap_or("(no message)");
    let place = panic
        .location()
        .map_or_else(String::new, ToString::to_string);
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("(no name)");
    let backtrace = std::backtrace::Backtrace::capture();
    match backtrace.status() {
        std::backtrace::BacktraceStatus::Captured => {
            tracing::error!(place, thread, "panic: {payload}\n{backtrace}");
        }
        _ => tracing::error!(place, thread, "panic: {payload}"),
    }
}

/// Starts logging. `filter` is a level (`error`, `warn`, `info`, `debug`, `trace`) or a list such
/// as `info,fairlead::connection=debug`.
pub fn start(filter: &str, format: LogFormat) -> Result<Log, StartError> {
    let levels = filter::parse(filter).map_err(StartError)?;
    let impossible = |error: std::io::Error| StartError(format!("cannot start the log: {error}"));
    // Its own descriptor: the standard library's handle would hold a lock during a blocking write.
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let stderr = std::fs::File::from(stderr.map_err(impossible)?);
    let outlet = Outlet::start(stderr, WAITING_BYTES_MAX, |lines| {
        tracing::warn!(lines, "log lines were lost: their reader was too slow");
    });
    let outlet = outlet.map_err(impossible)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(levels)
        // The log's reader may be gone; that must not stop the switch.
        .log_internal_errors(false)
        .with_writer(Arc::clone(&outlet));
    let started = match format {
        LogFormat::Text => {
            let terminal = std::io::stderr().is_terminal();
            let color = terminal && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(color).try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| StartError(error.to_string()))?;
    Ok(Log { outlet })
}

/// Logs a fatal error, or writes it to standard error if the filter excludes errors.
pub(crate) fn fatal(error: &dyn std::fmt::Display) {
    const TARGET: &str = "fairlead::serve";
    match tracing::enabled!(target: TARGET, tracing::Level::ERROR) {
        true => tracing::error!(target: TARGET, "{error}"),
        false => print_line(&error.to_string()),
    }
}

/// Logs an event that is not of the access log, with names from `config`.
fn log_event(event: &Event, config: &Config) {
    match event {
        Event::Decided {
            client,
            listen,
            service,
            route,
            pool,
            server,
            attempt,
            treatment,
            subject,
        } => tracing::debug!(
            target: "fairlead::connection",
            %client,
            %listen,
            service = service_name(config, *service),
            route = route_name(config, *service, *route),
            pool = pool_name(config, *pool),
            %server,
            attempt,
            treatment = treatment_name(*treatment),
            subject = subject.as_str(),
            "decided"
        ),
        Event::Given { .. } | Event::Refused { .. } | Event::Closed { .. } => {}
        Event::Server { .. } => server_state(event, config),
        Event::Availability {
            server,
            pool,
            unavailable,
        } => availability(*server, pool_name(config, *pool), *unavailable),
        Event::LaterRequest { .. } => later_request(event, config),
    }
}

fn later_request(event: &Event, config: &Config) {
    let Event::LaterRequest {
        client,
        service,
        route,
        would_be,
        closes,
    } = *event
    else {
        return;
    };
    let action = match closes {
        true => "the connection is reset",
        false => "it follows the first request",
    };
    tracing::warn!(
        %client,
        service = service_name(config, service),
        route = route_name(config, service, route),
        would_be = would_be.map_or(UNMATCHED, |route| route_name(config, service, route)),
        action,
        "a later request belongs to another pool (said once an hour for these routes)"
    );
}

fn availability(server: Endpoint, pool: &str, unavailable: Option<Unavailable>) {
    match unavailable {
        None => tracing::info!(%server, pool, "server is available"),
        Some(why) => tracing::warn!(%server, pool, why = why.name(), "server is unavailable"),
    }
}

fn server_state(event: &Event, config: &Config) {
    let Event::Server {
        server,
        pool,
        state,
        offers,
        fewer,
    } = event
    else {
        return;
    };
    let (pool, state) = (pool_name(config, *pool), state.name());
    let options = offers.map(options_shown);
    if *fewer {
        tracing::warn!(
            target: "fairlead::server", %server, state, pool, options,
            "the server's TCP options change; clients are offered what all its answers had"
        );
    } else if state == ServerState::Down.name() {
        tracing::warn!(target: "fairlead::server", %server, state, pool, "server");
    } else {
        tracing::info!(target: "fairlead::server", %server, state, pool, options, "server");
    }
}

/// `mss 1460, wscale 10, sack, ts`
fn options_shown(offers: Offers) -> String {
    let mut shown = format!("mss {}", offers.mss);
    if let Some(scale) = offers.window_scale {
        shown += &format!(", wscale {scale}");
    }
    for (has, name) in [(offers.sack, ", sack"), (offers.timestamps, ", ts")] {
        if has {
            shown += name;
        }
    }
    shown
}

fn service_name(config: &Config, service: u16) -> &str {
    config
        .services
        .get(usize::from(service))
        .map_or("?", |service| &service.name)
}

fn route_name(config: &Config, service: u16, route: u16) -> &str {
    config
        .services
        .get(usize::from(service))
        .and_then(|service| service.routes.get(usize::from(route)))
        .map_or("?", |route| &route.name)
}

fn pool_name(config: &Config, pool: PoolId) -> &str {
    config
        .pools
        .get(usize::from(pool.0))
        .map_or("?", |pool| &pool.name)
}

/// Name of a treatment in the configuration file and the log.
pub(crate) fn treatment_name(treatment: Treatment) -> &'static str {
    match treatment {
        Treatment::Splice => "splice",
        Treatment::OneShot => "one-shot",
        Treatment::Host => "host",
        Treatment::PerRequest => "per-request",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use fairlead_base::{Address, Endpoint};
    use fairlead_wire::Asked;
    use tracing_subscriber::EnvFilter;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn config() -> Config {
        let text = include_str!("../../../../examples/edge.toml");
        crate::config::parse(text, "edge.toml")
            .unwrap()
            .settings
            .switch
    }

    fn at(last: u8, port: u16) -> Endpoint {
        Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        }
    }

    /// What the log holds after `events`, as text and as JSON.
    fn logged(events: &[Event], filter: &str) -> (String, Vec<serde_json::Value>) {
        let (text, json) = (Lines::default(), Lines::default());
        let writer = |lines: &Lines| {
            let lines = lines.clone();
            move || lines.clone()
        };
        let builder = || {
            tracing_subscriber::fmt()
                .with_env_filter(EnvFilter::builder().parse(filter).unwrap())
                .with_ansi(false)
        };
        let config = config();
        tracing::subscriber::with_default(builder().with_writer(writer(&text)).finish(), || {
            events.iter().for_each(|event| log_event(event, &config));
        });
        let flat = builder()
            .json()
            .flatten_event(true)
            .with_writer(writer(&json))
            .finish();
        tracing::subscriber::with_default(flat, || {
            events.iter().for_each(|event| log_event(event, &config));
        });
        let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
        let json = String::from_utf8(json.0.lock().unwrap().clone()).unwrap();
        (
            text,
            json.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
        )
    }

    #[test]
    fn decisions_are_logged_at_debug() {
        let decided = Event::Decided {
            client: at(1, 4000),
            listen: at(3, 80),
            service: 0,
            route: 0,
            pool: PoolId(0),
            server: at(9, 8081),
            attempt: 1,
            treatment: Treatment::Splice,
            subject: Asked::http("GET", "a.example", b"/x.jpg"),
        };
        assert_eq!(logged(std::slice::from_ref(&decided), "info").0, "");
        let (text, json) = logged(&[decided], "info,fairlead::connection=debug");
        assert!(
            text.contains("DEBUG fairlead::connection: decided client="),
            "{text}"
        );
        assert_eq!(json[0]["route"], "#1");
        assert_eq!(json[0]["attempt"], 1);
        assert_eq!(json[0]["treatment"], "splice");
    }

    #[test]
    fn server_events_name_the_pool_and_a_lost_server_is_a_warning() {
        let server =
            crate::config::parse(include_str!("../../../../examples/edge.toml"), "edge.toml")
                .unwrap()
                .settings
                .switch
                .pools[2]
                .servers[0]
                .endpoint;
        let event = |state| Event::Server {
            server,
            pool: PoolId(2),
            state,
            offers: None,
            fewer: false,
        };
        let (text, json) = logged(&[event(ServerState::Up), event(ServerState::Down)], "info");
        assert!(text.contains("INFO fairlead::server: server server=10.2.0.1:8084 state=\"up\""));
        assert!(text.contains("WARN fairlead::server"), "{text}");
        assert_eq!(json[1]["pool"], "pages");
    }

    #[test]
    fn a_server_that_shows_fewer_options_is_logged_with_them() {
        let event = |fewer| Event::Server {
            server: at(9, 8081),
            pool: PoolId(1),
            state: ServerState::Up,
            offers: Some(Offers {
                mss: 1_460,
                window_scale: Some(7),
                sack: true,
                timestamps: false,
            }),
            fewer,
        };
        let (text, json) = logged(&[event(false), event(true)], "info");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("server server=10.0.0.9:8081"), "{text}");
        assert!(
            lines[0].contains("options=\"mss 1460, wscale 7, sack\""),
            "{text}"
        );
        assert!(lines[1].contains("WARN fairlead::server"), "{text}");
        assert!(
            lines[1].contains("the server's TCP options change"),
            "{text}"
        );
        assert_eq!(json[1]["options"], "mss 1460, wscale 7, sack");
    }

    #[test]
    fn the_option_overrides_the_variable_overrides_the_default() {
        let args = |log: Option<&str>| LogArgs {
            log: log.map(str::to_owned),
            ..LogArgs::default()
        };
        let variable = || Some("warn".to_owned());
        assert_eq!(args(Some("debug")).filter(variable()), "debug");
        assert_eq!(args(None).filter(variable()), "warn");
        assert_eq!(args(None).filter(Some(String::new())), "info");
        assert_eq!(args(Some("")).filter(variable()), "warn");
        assert_eq!(args(None).filter(None), "info");
    }

    #[test]
    fn an_invalid_filter_is_refused() {
        assert!(start("loud=very=much", LogFormat::Text).is_err());
    }
}
