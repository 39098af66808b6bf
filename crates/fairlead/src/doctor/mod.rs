//! `fairlead doctor`: checks whether this machine can run the switch, and suggests fixes.
//!
//! It changes nothing, and reports what it has no permission to inspect. The expected mode is
//! determined by the same steps as in `fairlead serve`.

mod capability;
mod firewall;
mod host;
mod interface;
mod machine;
mod mode;
mod network;
mod offload;
mod view;

pub(crate) use mode::is_our_name;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::config::{self, Settings};
use crate::screen::{Paint, print};

/// Describes the privileges that this process lacks to load kernel programs; `None` if it lacks
/// none.
pub(crate) fn rights_for_programs() -> Option<String> {
    let rights = capability::Capabilities::own();
    if !rights.of_machine {
        return Some("a process in a user namespace cannot load kernel programs".to_owned());
    }
    let missing = rights.missing_for_programs();
    (!missing.is_empty()).then(|| format!("without {}", missing.join(", ")))
}

/// Arguments of `fairlead doctor`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DoctorArgs {
    /// Also check what this configuration needs
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It could not be checked.
    Unseen,
    /// `serve` runs, but with restrictions.
    Warning,
    /// `serve` cannot run.
    Problem,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Subject: `machine`, `network`, `configuration`, `offload`, `mode`, or `interface NAME`.
    pub about: String,
    /// Name of the check, stable across versions.
    pub name: &'static str,
    /// The result.
    pub state: State,
    /// The finding, in one line.
    pub what: String,
    /// What to do, in one line; `None` if nothing.
    pub advice: Option<String>,
}

impl Check {
    fn new(about: &str, name: &'static str, state: State, what: impl Into<String>) -> Self {
        Self {
            about: about.to_owned(),
            name,
            state,
            what: what.into(),
            advice: None,
        }
    }

    fn ok(about: &str, name: &'static str, what: impl Into<String>) -> Self {
        Self::new(about, name, State::Ok, what)
    }

    fn unseen(about: &str, name: &'static str, what: impl Into<String>) -> Self {
        Self::new(about, name, State::Unseen, what)
    }

    fn warning(about: &str, name: &'static str, what: impl Into<String>) -> Self {
        Self::new(about, name, State::Warning, what)
    }

    fn problem(about: &str, name: &'static str, what: impl Into<String>) -> Self {
        Self::new(about, name, State::Problem, what)
    }

    fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// All findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// The program's version.
    pub version: &'static str,
    /// True if `serve` can run.
    pub can_serve: bool,
    /// Where packets of spliced connections would be translated.
    pub expected_mode: String,
    /// Why no better mode is available; empty if there is none.
    pub why_not_better: String,
    /// All checks, in order.
    pub checks: Vec<Check>,
}

/// Runs all checks and prints them. Exit code 0 if `serve` can run, 1 if not.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let findings = examine(config::path_if_there(args.config.as_deref()).as_deref());
    if args.json {
        let document = serde_json::to_string_pretty(&findings);
        print(&format!("{}\n", document.unwrap_or_default()));
    } else {
        print(&view::render(&findings, Paint::stdout()));
    }
    if findings.can_serve {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Facts that several checks use.
struct Facts {
    /// Settings of a valid configuration, if one was given.
    settings: Option<Settings>,
    capabilities: capability::Capabilities,
    /// Chains of the firewall, or why they cannot be read.
    chains: std::io::Result<Vec<fairlead_survey::Chain>>,
    /// All interfaces.
    links: std::io::Result<Vec<fairlead_survey::Link>>,
    /// True if the instance of this configuration is running.
    is_running: bool,
}

/// Runs all checks.
pub fn examine(path: Option<&Path>) -> Findings {
    let mut checks = Vec::new();
    let settings = path.and_then(|path| configuration(path, &mut checks));
    let is_running = settings.as_ref().is_some_and(network::is_running);
    let facts = Facts {
        settings,
        capabilities: capability::Capabilities::own(),
        chains: fairlead_survey::chains(),
        links: fairlead_survey::links(),
        is_running,
    };
    machine::look(&facts, &mut checks);
    network::look(&facts, &mut checks);
    firewall::look(&facts, &mut checks);
    let expected = mode::expect(&facts);
    firewall::bypassed(&facts, expected.name, &mut checks);
    host::look(&facts, expected.name, &mut checks);
    interface::look(&facts, &expected, &mut checks);
    offload::look(&facts, &mut checks);
    checks.push(expected.check());
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        can_serve: checks.iter().all(|check| check.state != State::Problem),
        expected_mode: expected.name.to_owned(),
        why_not_better: expected.why_not_better,
        checks,
    }
}

/// Loads the configuration. If that fails, the other checks run without it.
fn configuration(path: &Path, checks: &mut Vec<Check>) -> Option<Settings> {
    const ABOUT: &str = "configuration";
    let shown = path.display();
    let advice = format!("`fairlead check --config {shown}` lists them");
    match config::load(path) {
        Ok(loaded) => {
            let count = loaded.warnings.warnings();
            checks.push(match count {
                0 => Check::ok(ABOUT, "configuration", format!("{shown}: configuration OK")),
                _ => {
                    let warnings = crate::screen::plural(count, "warning");
                    let what = format!("{shown}: configuration OK, with {warnings}");
                    Check::warning(ABOUT, "configuration", what).advise(advice)
                }
            });
            Some(loaded.settings)
        }
        Err(config::LoadError::Broken(report)) => {
            let errors = crate::screen::plural(report.errors(), "error");
            let what = format!("{shown} has {errors}; the other checks ignore it");
            checks.push(Check::problem(ABOUT, "configuration", what).advise(advice));
            None
        }
        Err(other) => {
            let advice = "pass the path of a configuration file that this user can read";
            checks.push(Check::problem(ABOUT, "configuration", other.to_string()).advise(advice));
            None
        }
    }
}

/// Contents of a file without the trailing line break.
fn read(path: &str) -> std::io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}
