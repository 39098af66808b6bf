//! `fairlead drain`: makes a running instance stop accepting connections and exit when the last one
//! closes. Shows how many are left meanwhile.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fairlead_driver_tun::EndSignals;

use crate::control::{Answer, Order, PATIENCE, Phase, State, ask, describe, is_late};
use crate::instance::{InstanceArgs, seconds};
use crate::reload::Process;
use crate::screen::{elapsed, plural, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead drain`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct DrainArgs {
    /// The instance to drain.
    #[command(flatten)]
    pub instance: InstanceArgs,
    /// How long to wait for the switch to exit, in seconds (0.1 to 86400); the drain continues
    /// afterwards
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
}

/// Interval between checks for Ctrl-C.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the process may take to exit after its last line. Its process id may belong to another
/// process in this PID namespace.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Minimum interval between lines if standard output is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The exit codes in `--help`; `docs/operator-tools.md` has the same text.
const EXIT_CODES: &str = "Exit codes:
  0    the instance has exited
  1    it has not; standard error gives the reason
  2    invalid command line
  130  interrupted by Ctrl-C; the drain continues";

/// Requests a drain and waits until the instance has exited.
pub fn run(args: &DrainArgs) -> ExitCode {
    let told = match drained(args) {
        Ok(End::Done(told)) => {
            print(&told);
            return ExitCode::SUCCESS;
        }
        Ok(End::Interrupted(told)) => {
            print_error(&told);
            return ExitCode::from(130);
        }
        Err(told) => told,
    };
    print_error(&format!("fairlead drain: {told}\n"));
    ExitCode::FAILURE
}

/// How the command ends.
enum End {
    Done(String),
    Interrupted(String),
}

fn drained(args: &DrainArgs) -> Result<End, String> {
    let begun = Instant::now();
    let name = args.instance.name()?;
    let mut asked = ask(&name, Order::Drain).map_err(|error| error.to_string())?;
    let patience = args.timeout.map_or(PATIENCE, |one| one.min(PATIENCE));
    let told = |error: std::io::Error| error.to_string();
    asked.set_patience(patience).map_err(told)?;
    let mut screen = Screen::new(name.clone());
    let mut last = None;
    // Ctrl-C is handled only after the first line, which confirms that the drain has begun.
    let mut signals = None;
    loop {
        match asked.answer() {
            Ok(Some(Answer::State(state))) if state.phase.is_over() => {
                screen.close();
                wait_for_end(&state);
                return over(&name, &state);
            }
            Ok(Some(Answer::State(state))) => {
                if last.is_none() {
                    let taken = EndSignals::take_over();
                    signals = Some(taken.map_err(|error| format!("signals: {error}"))?);
                    asked.set_patience(PAUSE).map_err(told)?;
                }
                screen.show(&state);
                last = Some(state);
            }
            Ok(Some(Answer::Refused(why))) => return Err(plain_line(&why)),
            Ok(Some(Answer::Reloading(_))) => {
                return Err("unexpected reply to `drain`".to_owned());
            }
            Ok(None) => {
                screen.close();
                return Err("the switch closed the connection without a final status".to_owned());
            }
            Err(error) if is_late(&error) && last.is_some() => {}
            Err(error) => return Err(describe(&error)),
        }
        let live = last.as_ref().map_or(0, |state| state.live);
        let left = format!("{} left; the drain continues", live_ones(live));
        if let Some(signals) = &signals
            && !matches!(signals.poll_signal(), Ok(None))
        {
            screen.close();
            return Ok(End::Interrupted(format!("{name}: {left}\n")));
        }
        if args
            .timeout
            .is_some_and(|timeout| begun.elapsed() >= timeout)
        {
            screen.close();
            let waited = begun.elapsed().as_secs_f64();
            return Err(format!("after {waited:.1} s {left}"));
        }
    }
}

/// Waits for the process to exit. It owns the device and its routes until then, so a new start
/// before that would be refused.
fn wait_for_end(state: &State) {
    let (process, begun) = (Process::of(state), Instant::now());
    while !process.has_ended() && process.is_seen() && begun.elapsed() < END_PATIENCE {
        std::thread::sleep(PAUSE / 10);
    }
}

fn over(name: &str, state: &State) -> Result<End, String> {
    match state.phase {
        Phase::Left => Err(format!(
            "{name} was stopped without waiting; the kernel keeps forwarding {}",
            live_ones(state.live)
        )),
        _ if state.cut_off > 0 => Ok(End::Done(format!(
            "{name} has exited; {} reset\n",
            live_ones(state.cut_off)
        ))),
        _ => Ok(End::Done(format!(
            "{name} has exited; no connection was reset\n"
        ))),
    }
}

fn live_ones(count: u64) -> String {
    plural(usize::try_from(count).unwrap_or(usize::MAX), "connection")
}

/// Progress output: one line that is updated in place on a terminal, otherwise a line now and then.
struct Screen {
    name: String,
    is_terminal: bool,
    written_at: Option<Instant>,
    shown: (Phase, u64),
}

impl Screen {
    fn new(name: String) -> Self {
        Self {
            name,
            is_terminal: std::io::stdout().is_terminal(),
            written_at: None,
            shown: (Phase::Starting, 0),
        }
    }

    fn show(&mut self, state: &State) {
        let line = line(&self.name, state);
        if self.is_terminal {
            // Line wrap is turned off: a wrapped line could not be overwritten.
            print(&format!("\r\x1b[?7l{line}\x1b[K\x1b[?7h"));
            return;
        }
        let now = (state.phase, state.live);
        let is_due = self
            .written_at
            .is_none_or(|at| at.elapsed() >= LINE_INTERVAL);
        if state.phase != self.shown.0 || (is_due && now != self.shown) {
            print(&format!("{line}\n"));
            self.written_at = Some(Instant::now());
            self.shown = now;
        }
    }

    /// Ends the line that is updated in place.
    fn close(&self) {
        if self.is_terminal {
            print("\n");
        }
    }
}

fn line(name: &str, state: &State) -> String {
    let live = live_ones(state.live);
    let within = match state.seconds_left {
        Some(seconds) => format!(", reset in {}", elapsed(seconds)),
        None => String::new(),
    };
    match state.phase {
        // Connections that are being reset no longer count as live.
        Phase::Resetting => format!("{name}: resetting {}", live_ones(state.cut_off)),
        _ => format!("{name}: {live} left{within}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: Phase, live: u64, cut_off: u64) -> State {
        State {
            phase,
            live,
            cut_off,
            ..State::default()
        }
    }

    #[test]
    fn lines_show_connections_and_time_left() {
        let mut draining = state(Phase::Draining, 2, 0);
        draining.seconds_left = Some(65);
        assert_eq!(
            line("edge", &draining),
            "edge: 2 connections left, reset in 1 min 5 s"
        );
        let resetting = state(Phase::Resetting, 0, 1);
        assert_eq!(line("edge", &resetting), "edge: resetting 1 connection");
    }

    #[test]
    fn the_last_line_reports_the_outcome() {
        let told = |state: State| match over("edge", &state) {
            Ok(End::Done(told)) => Ok(told),
            Ok(End::Interrupted(told)) | Err(told) => Err(told),
        };
        let clean = told(state(Phase::Ended, 0, 0));
        assert!(clean.unwrap().contains("no connection was reset"));
        assert!(
            told(state(Phase::Ended, 0, 3))
                .unwrap()
                .contains("3 connections reset")
        );
        assert!(
            told(state(Phase::Left, 4, 0)).is_err(),
            "its connections are still open"
        );
    }
}
