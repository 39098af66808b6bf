//! `fairlead reload`: makes a running instance take its configuration file as it is now, and tells
//! what came of it.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::control::{Answer, Order, PATIENCE, Phase, State, ask, describe};
use crate::instance::{InstanceArgs, seconds};
use crate::screen::{plural, print, print_error};
use crate::status::plain_line;

/// What `fairlead reload` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct ReloadArgs {
    /// Which instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
    /// Seconds to wait until it is in service again, 0.1 to 86400
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub timeout: Duration,
}

/// How often it is looked whether the new run is in service.
const PAUSE: Duration = Duration::from_millis(50);

/// Exit codes: 0 the new configuration is in service; 1 it is not, and standard error says why.
pub fn run(args: &ReloadArgs) -> ExitCode {
    match reloaded(args) {
        Ok(told) => {
            print(&told);
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&format!("fairlead reload: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn reloaded(args: &ReloadArgs) -> Result<String, String> {
    let begun = Instant::now();
    // Of a broken file not even the name is known; the running instance would refuse it, too.
    let unasked = |error| format!("{error}\nnothing was asked of the running switch, it goes on");
    let name = args.instance.name().map_err(unasked)?;
    // What is not answered by then is not done.
    let left = || args.timeout.saturating_sub(begun.elapsed()).max(PAUSE);
    let before = look(&name, left())?;
    let process = Process::of(&before);
    let changes = match one(&name, Order::Reload, left())? {
        Answer::Reloading(changes) => changes,
        Answer::Refused(why) => {
            return Err(format!(
                "refused, everything goes on as it was: {}",
                lines(&why)
            ));
        }
        Answer::State(_) => return Err("the answer is none to a reload".to_owned()),
    };
    print(&told(&name, &changes));
    loop {
        // Between the runs nobody listens.
        if let Ok(now) = look(&name, left())
            && now.run != before.run
        {
            if now.process != before.process {
                return Err(format!(
                    "process {} has ended, and another one ({}) was started: the log says why",
                    before.process, now.process
                ));
            }
            if now.phase != Phase::Starting {
                let took = begun.elapsed().as_secs_f64();
                return Ok(format!("in service again after {took:.1} s\n"));
            }
        }
        if process.has_ended() {
            return Err(format!(
                "process {} has ended instead of beginning anew: its log says why. The kernel \
                 goes on with what is spliced; `fairlead serve` takes it over",
                before.process
            ));
        }
        if begun.elapsed() >= args.timeout {
            return Err(format!(
                "not in service again after {} s: the log says how far it is",
                args.timeout.as_secs_f64()
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

fn told(name: &str, changes: &[String]) -> String {
    if changes.is_empty() {
        return format!("{name}: nothing in the configuration differs\n");
    }
    let mut text = format!("{name}: {}\n", plural(changes.len(), "change"));
    for change in changes {
        text += &format!("  {}\n", plain_line(change));
    }
    text
}

/// Several lines of text from elsewhere, without what could drive the terminal.
fn lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain_line).collect();
    lines.join("\n")
}

fn look(name: &str, most: Duration) -> Result<State, String> {
    match one(name, Order::Look, most)? {
        Answer::State(state) => Ok(state),
        Answer::Refused(why) => Err(plain_line(&why)),
        Answer::Reloading(_) => Err("the answer is none to a look".to_owned()),
    }
}

/// The one line that answers an order, if it comes within `most`.
fn one(name: &str, order: Order, most: Duration) -> Result<Answer, String> {
    let mut asked = ask(name, order).map_err(|error| error.to_string())?;
    let patient = asked.set_patience(most.min(PATIENCE));
    patient.map_err(|error| error.to_string())?;
    match asked.answer() {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err("the switch has ended without an answer".to_owned()),
        Err(error) => Err(describe(&error)),
    }
}

/// The process of the instance, where this one can see it.
pub(crate) struct Process(Option<String>);

impl Process {
    pub(crate) fn of(state: &State) -> Self {
        let file = format!("/proc/{}/stat", state.process);
        Self(fs::metadata(&file).is_ok().then_some(file))
    }

    /// True where it could be seen.
    pub(crate) fn is_seen(&self) -> bool {
        self.0.is_some()
    }

    /// True when it was there and is not any more, but for what its parent has to take note of.
    pub(crate) fn has_ended(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|file| fs::read_to_string(file).map_or(true, |text| is_over(&text)))
    }
}

/// Whether that is how a process stands in `/proc/PID/stat` (proc(5)) of which nothing is left. Its
/// first thread may be gone before others, and with the last one go its files: device and lock.
fn is_over(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let threads = rest.split_whitespace().nth(17);
    rest.starts_with(['Z', 'X']) && matches!(threads, Some("0" | "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_a_line_each() {
        assert_eq!(
            told("edge", &[]),
            "edge: nothing in the configuration differs\n"
        );
        let changes = ["pool a is new", "pool \u{1b}b is gone"].map(str::to_owned);
        let text = told("edge", &changes);
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.starts_with("edge: 2 changes\n  pool a is new\n"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_process_is_over_with_its_last_thread() {
        let line = |state, threads| {
            format!("7 (a) (b) {state} 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 {threads} 0 55 0 0")
        };
        assert!(!is_over(&line('S', 1)));
        assert!(!is_over(&line('Z', 3)), "others have its files");
        assert!(is_over(&line('Z', 1)) && is_over(&line('X', 0)));
        assert!(!is_over("7 (a"), "not to be read");
    }

    #[test]
    fn a_process_that_is_gone_is_known() {
        let state = |process| State {
            process,
            ..State::default()
        };
        assert!(!Process::of(&state(std::process::id())).has_ended());
        assert!(!Process::of(&state(u32::MAX)).has_ended(), "never seen");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::of(&state(child.id()));
        child.wait().unwrap();
        assert!(process.has_ended());
    }
}
