//! `fairlead doctor`: what this machine allows, what is in the way, and what to do about each.
//!
//! Looks and changes nothing. What it may not look at it says. The mode that it foretells is found
//! by the same steps that `fairlead serve` takes.

mod capability;
mod firewall;
mod interface;
mod machine;
mod mode;
mod network;
mod view;

pub(crate) use mode::is_our_name;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use crate::config::{self, Settings};
use crate::screen::{Paint, print};

/// What this process lacks to give the kernel a program, in words; `None` when it may.
pub(crate) fn rights_for_programs() -> Option<String> {
    let rights = capability::Capabilities::own();
    if !rights.of_machine {
        return Some("a user namespace's rights do not permit programs in the kernel".to_owned());
    }
    let missing = rights.missing_for_programs();
    (!missing.is_empty()).then(|| format!("without {}", missing.join(", ")))
}

/// What `fairlead doctor` takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DoctorArgs {
    /// Look at what this configuration needs, too
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the findings as JSON
    #[arg(long)]
    pub json: bool,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It could not be looked at.
    Unseen,
    /// `serve` runs, but less well, or not for all packets.
    Warning,
    /// `serve` does not run.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about: `machine`, `network`, `configuration`, `mode`, or `interface NAME`.
    pub about: String,
    /// Which one: the same word in every version.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// What it is, in one line.
    pub what: String,
    /// What to do about it, in one line; nothing where all is well.
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

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// The program's version.
    pub version: &'static str,
    /// True when `serve` can run.
    pub can_serve: bool,
    /// Where packets of spliced connections would be translated.
    pub expected_mode: String,
    /// Why not a better one; empty where there is none.
    pub why_not_better: String,
    /// All checks, in the order of looking.
    pub checks: Vec<Check>,
}

/// Looks, and tells: 0 when `serve` can run, 1 when it cannot.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let findings = examine(args.config.as_deref());
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

/// What is looked at once and judged in several places.
struct Facts {
    /// Of the configuration, where there is a sound one.
    settings: Option<Settings>,
    capabilities: capability::Capabilities,
    /// Chains of the firewall, or why they cannot be seen.
    chains: std::io::Result<Vec<fairlead_survey::Chain>>,
    /// All interfaces.
    links: std::io::Result<Vec<fairlead_survey::Link>>,
    /// The instance of this configuration is running, with its device.
    is_running: bool,
}

/// Looks at everything.
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
    interface::look(&facts, &expected, &mut checks);
    checks.push(expected.check());
    Findings {
        version: env!("CARGO_PKG_VERSION"),
        can_serve: checks.iter().all(|check| check.state != State::Problem),
        expected_mode: expected.name.to_owned(),
        why_not_better: expected.why_not_better,
        checks,
    }
}

/// Reads the configuration; without one the rest is looked at all the same.
fn configuration(path: &Path, checks: &mut Vec<Check>) -> Option<Settings> {
    const ABOUT: &str = "configuration";
    let shown = path.display();
    let advice = format!("`fairlead check --config {shown}` shows the places");
    match config::load(path) {
        Ok(loaded) => {
            let count = loaded.warnings.warnings();
            checks.push(match count {
                0 => Check::ok(ABOUT, "configuration", format!("{shown} is sound")),
                _ => {
                    let warnings = crate::screen::plural(count, "warning");
                    let what = format!("{shown} can be used, with {warnings}");
                    Check::warning(ABOUT, "configuration", what).advise(advice)
                }
            });
            Some(loaded.settings)
        }
        Err(config::LoadError::Broken(report)) => {
            let errors = crate::screen::plural(report.errors(), "error");
            let what = format!("{shown} has {errors}; the rest is looked at without it");
            checks.push(Check::problem(ABOUT, "configuration", what).advise(advice));
            None
        }
        Err(other) => {
            let advice = "give the path of a configuration that this user may read";
            checks.push(Check::problem(ABOUT, "configuration", other.to_string()).advise(advice));
            None
        }
    }
}

/// A file's content without the line break at its end.
fn read(path: &str) -> std::io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}
