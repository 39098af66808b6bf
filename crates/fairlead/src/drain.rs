//! `fairlead drain`: makes a running instance take no new connections and end with its last one,
//! and shows how many are left until then.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fairlead_driver_tun::EndSignals;

use crate::control::{Answer, Order, PATIENCE, Phase, State, ask, describe, is_late};
use crate::instance::{InstanceArgs, seconds};
use crate::reload::Process;
use crate::screen::{elapsed, plural, print, print_error};
use crate::status::plain_line;

/// What `fairlead drain` takes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct DrainArgs {
    /// Which instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
    /// Seconds to wait for its end, 0.1 to 86400; the drain goes on afterwards
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: Option<Duration>,
}

/// How often it is looked for Ctrl-C.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a process may take from the last that it says to its end; its number may be another's
/// here.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// How often a line is written where it is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// What the help says; `docs/operator-tools.md` has the same words.
const EXIT_CODES: &str = "Exit codes:
  0    the instance has ended
  1    it has not; standard error says why
  2    the command line is wrong
  130  Ctrl-C ended the command; the drain goes on";

/// Waits until the instance has ended.
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
    // The first line says that it has begun, so that nobody leaves before.
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
                return Err("the answer is none to a drain".to_owned());
            }
            Ok(None) => {
                screen.close();
                return Err("the switch has ended without a word".to_owned());
            }
            Err(error) if is_late(&error) && last.is_some() => {}
            Err(error) => return Err(describe(&error)),
        }
        let live = last.as_ref().map_or(0, |state| state.live);
        let left = format!("{} left; the drain goes on", live_ones(live));
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

/// The device and its routes are the process's until then, so that whoever starts it again at once
/// would be refused.
fn wait_for_end(state: &State) {
    let (process, begun) = (Process::of(state), Instant::now());
    while !process.has_ended() && process.is_seen() && begun.elapsed() < END_PATIENCE {
        std::thread::sleep(PAUSE / 10);
    }
}

fn over(name: &str, state: &State) -> Result<End, String> {
    match state.phase {
        Phase::Left => Err(format!(
            "{name} was told to end at once: the kernel goes on with {}",
            live_ones(state.live)
        )),
        _ if state.cut_off > 0 => Ok(End::Done(format!(
            "{name} has ended; {} reset\n",
            live_ones(state.cut_off)
        ))),
        _ => Ok(End::Done(format!(
            "{name} has ended; no connection was cut off\n"
        ))),
    }
}

fn live_ones(count: u64) -> String {
    plural(usize::try_from(count).unwrap_or(usize::MAX), "connection")
}

/// What is shown meanwhile: on a terminal one line that changes, elsewhere few.
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
            // Cut off at the edge: what is wrapped would not be written over.
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

    /// Leaves the line that changes as it is.
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
        // They are not live any more as soon as they are being reset.
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
    fn lines_say_what_is_left_and_how_long() {
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
    fn the_end_is_told_as_it_was() {
        let told = |state: State| match over("edge", &state) {
            Ok(End::Done(told)) => Ok(told),
            Ok(End::Interrupted(told)) | Err(told) => Err(told),
        };
        let clean = told(state(Phase::Ended, 0, 0));
        assert!(clean.unwrap().contains("no connection was cut off"));
        assert!(
            told(state(Phase::Ended, 0, 3))
                .unwrap()
                .contains("3 connections reset")
        );
        assert!(
            told(state(Phase::Left, 4, 0)).is_err(),
            "its connections have not ended"
        );
    }
}
