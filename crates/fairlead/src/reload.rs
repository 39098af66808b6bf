//! `fairlead reload`: makes a running instance reload its configuration file, and reports the
//! result.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::control::{Answer, Order, PATIENCE, Phase, State, ask, describe};
use crate::instance::{InstanceArgs, seconds};
use crate::screen::{plural, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead reload`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReloadArgs {
    /// The instance to reload.
    #[command(flatten)]
    pub instance: InstanceArgs,
    /// How long to wait for the reload to finish, in seconds (0.1 to 86400)
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub timeout: Duration,
}

/// Interval between checks whether the new configuration is in service.
const PAUSE: Duration = Duration::from_millis(50);

/// Exit codes: 0 if the new configuration is in service; 1 if not, with the reason on standard
/// error.
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
    // A broken file does not even give the instance's name, and the instance would refuse it too.
    let unasked = |error| {
        format!(
            "{error}\nno reload was requested; the running switch is \
                                   unchanged"
        )
    };
    let name = args.instance.name().map_err(unasked)?;
    // The instance does not carry out an order that nobody waits for any more.
    let left = || args.timeout.saturating_sub(begun.elapsed()).max(PAUSE);
    let before = look(&name, left())?;
    let process = Process::of(&before);
    let changes = match one(&name, Order::Reload, left())? {
        Answer::Reloading(changes) => changes,
        Answer::Refused(why) => {
            return Err(format!(
                "refused; the old configuration stays in service: {}",
                lines(&why)
            ));
        }
        Answer::State(_) => return Err("unexpected reply to `reload`".to_owned()),
    };
    print(&told(&name, &changes));
    loop {
        // Nothing listens at the socket between the old run and the new one.
        if let Ok(now) = look(&name, left())
            && now.run != before.run
        {
            if now.process != before.process {
                return Err(format!(
                    "process {} has exited and was replaced by process {}; see the log for the \
                     reason",
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
                "process {} has exited instead of reloading; see its log for the reason. The \
                 kernel keeps forwarding spliced connections; `fairlead serve` takes them over",
                before.process
            ));
        }
        if begun.elapsed() >= args.timeout {
            return Err(format!(
                "the reload has not finished after {} s; see the log for its progress",
                args.timeout.as_secs_f64()
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

fn told(name: &str, changes: &[String]) -> String {
    if changes.is_empty() {
        return format!("{name}: the configuration has not changed\n");
    }
    let mut text = format!("{name}: {}\n", plural(changes.len(), "change"));
    for change in changes {
        text += &format!("  {}\n", plain_line(change));
    }
    text
}

/// Lines of untrusted text, without terminal control characters.
fn lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(plain_line).collect();
    lines.join("\n")
}

fn look(name: &str, most: Duration) -> Result<State, String> {
    match one(name, Order::Look, most)? {
        Answer::State(state) => Ok(state),
        Answer::Refused(why) => Err(plain_line(&why)),
        Answer::Reloading(_) => Err("unexpected reply to `look`".to_owned()),
    }
}

/// Sends an order and returns the first line of its answer, if that arrives within `most`.
fn one(name: &str, order: Order, most: Duration) -> Result<Answer, String> {
    let mut asked = ask(name, order).map_err(|error| error.to_string())?;
    let patient = asked.set_patience(most.min(PATIENCE));
    patient.map_err(|error| error.to_string())?;
    match asked.answer() {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err("the switch closed the connection without answering".to_owned()),
        Err(error) => Err(describe(&error)),
    }
}

/// The instance's process, if it is visible from this process.
pub(crate) struct Process(Option<String>);

impl Process {
    pub(crate) fn of(state: &State) -> Self {
        let file = format!("/proc/{}/stat", state.process);
        Self(fs::metadata(&file).is_ok().then_some(file))
    }

    /// True if the process was visible.
    pub(crate) fn is_seen(&self) -> bool {
        self.0.is_some()
    }

    /// True if the process was visible and has exited. A zombie counts as exited.
    pub(crate) fn has_ended(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|file| fs::read_to_string(file).map_or(true, |text| is_over(&text)))
    }
}

/// True if `/proc/PID/stat` (proc(5)) shows a process without running threads. The first thread can
/// exit before the others; the process's files, among them device and lock, are closed with the
/// last one.
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
    fn changes_take_one_line_each() {
        assert_eq!(
            told("edge", &[]),
            "edge: the configuration has not changed\n"
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
        assert!(!is_over("7 (a"), "unreadable");
    }

    #[test]
    fn a_process_that_has_exited_is_noticed() {
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
