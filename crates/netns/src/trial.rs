//! Tests that need namespaces: run if they are available, otherwise reported as skipped.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::command::program;
use crate::rights::{Rights, allowed, in_user_namespace, tun_allowed};

/// What a test needs besides network namespaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs<'a> {
    /// The TUN device.
    pub tun: bool,
    /// Programs, each with the Debian package that has it.
    pub programs: &'a [(&'a str, &'a str)],
}

/// Marks the second run of a test, in a user namespace.
const INSIDE: &str = "FAIRLEAD_TEST_INSIDE";

/// The list that `scripts/skipped` repeats after the tests, in cargo's target folder.
const LIST: &str = "skipped-tests";

/// Runs `test`, which creates [`crate::World`]s: directly for root; for an ordinary user in a child
/// process that is root in a user namespace. If something is missing the test is skipped: see
/// [`skip`].
///
/// Call it first of all in a test function of the standard test harness, and give it that
/// function's `name` with its modules: [`name_of`]. `again` may add to the command of the second
/// run.
///
/// # Panics
/// When the second run fails, with what it wrote; where the test has another name.
pub fn in_namespaces(
    name: &str,
    needs: Needs<'_>,
    again: impl FnOnce(&mut Command),
    test: impl FnOnce(),
) {
    // By a wrong name nothing would be run again, which only an ordinary user would find out. With
    // one thread for all tests that thread is "main".
    let thread = std::thread::current();
    let known = thread.name().filter(|known| *known != "main");
    assert!(
        known.is_none_or(|known| known == name),
        "{known:?} is no {name}"
    );
    let tun = |rights| {
        if needs.tun {
            tun_allowed().map(|()| rights)
        } else {
            Ok(rights)
        }
    };
    let rights = match allowed().and_then(tun) {
        Ok(rights) => rights,
        Err(why) => return skip(name, &why.to_string()),
    };
    let missing = needs.programs.iter().filter(|one| program(one.0).is_none());
    let packages: Vec<&str> = missing.map(|one| one.1).collect();
    if !packages.is_empty() {
        let install = packages.join(" ");
        return skip(
            name,
            &format!("programs are missing: apt-get install {install}"),
        );
    }
    match rights {
        Rights::AsItIs => {
            let _watch = Watch::over(name);
            test();
        }
        Rights::InUserNamespace => run_again(name, again),
    }
}

/// Ends the whole run when a test does not end, and names that test: what waits for ever would
/// otherwise hide which test it is, and the results of all others.
struct Watch {
    /// Dropped at the test's end.
    _test: mpsc::Sender<()>,
}

impl Watch {
    /// Far above the slowest test in an emulated machine.
    const PATIENCE: Duration = Duration::from_secs(15 * 60);

    fn over(name: &str) -> Self {
        let (test, ended) = mpsc::channel();
        let name = name.to_owned();
        std::thread::spawn(move || {
            let news = ended.recv_timeout(Self::PATIENCE);
            if news == Err(mpsc::RecvTimeoutError::Timeout) {
                let minutes = Self::PATIENCE.as_secs() / 60;
                say(&format!("{name} has not ended after {minutes} minutes"));
                std::process::exit(101);
            }
        });
        Self { _test: test }
    }
}

fn run_again(name: &str, prepare: impl FnOnce(&mut Command)) {
    let inside = std::env::var_os(INSIDE).is_some();
    assert!(!inside, "a user namespace without its rights");
    let mut again = Command::new(std::env::current_exe().expect("the path of this test"));
    again
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1");
    prepare(&mut again);
    in_user_namespace(&mut again);
    let output = again.output().expect("running the test once more");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{name} in a user namespace:\n{text}\n{errors}"
    );
    for line in errors.lines().filter(|line| line.starts_with(SKIPPED)) {
        say(line);
    }
}

const SKIPPED: &str = "SKIPPED: ";

/// Reports that a test, or a part of it, is skipped: directly on standard error, because the test
/// harness hides output of passing tests, and in the list that `make test` prints at its end.
pub fn skip(name: &str, why: &str) {
    let line = format!("{name}: {}", why.replace('\n', " "));
    say(&format!("{SKIPPED}{line}"));
    // A list that cannot be written must not fail the test that is skipped.
    if let Some(list) = list_beside(&std::env::current_exe().unwrap_or_default()) {
        let list = std::fs::File::options()
            .create(true)
            .append(true)
            .open(list);
        let _ = list.and_then(|mut list| list.write_all(format!("{line}\n").as_bytes()));
    }
}

fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The list of a test that cargo has built as `TARGET/PROFILE/deps/NAME`.
fn list_beside(test: &Path) -> Option<PathBuf> {
    let deps = test.parent().filter(|folder| folder.ends_with("deps"))?;
    Some(deps.ancestors().nth(2)?.join(LIST))
}

/// Lays a copy of `program` at `place`, over what lies there, for a test that runs the copy.
///
/// By cp(1), not by this process: tests run in threads, and while one writes the copy another may
/// start a process. That process has the open file until it is another program, and as long as
/// anybody has a program open for writing, the kernel starts it for nobody ("Text file busy").
///
/// # Panics
/// When it cannot be copied.
pub fn copy_program(program: &Path, place: &Path) {
    let copied = Command::new("cp").arg(program).arg(place).status();
    assert!(copied.expect("running cp").success(), "no {place:?}");
}

/// `module::test`, as the standard test harness knows it, for a closure of type `F` written inside
/// that test.
pub fn name_of<F>() -> &'static str {
    let name = std::any::type_name::<F>();
    let name = name.strip_suffix("::{{closure}}").unwrap_or(name);
    name.split_once("::").map_or(name, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_the_name_that_the_harness_knows() {
        fn name_by<F: FnOnce()>(_closure: F) -> &'static str {
            name_of::<F>()
        }
        let expected = "trial::tests::a_test_has_the_name_that_the_harness_knows";
        assert_eq!(name_by(|| {}), expected);
        assert_eq!(std::thread::current().name(), Some(expected));
    }

    #[test]
    fn a_copied_program_can_be_run_while_others_are_started() {
        let folder = std::env::temp_dir().join(format!("fairlead-copies-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let others = || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                Command::new("/bin/true").status().unwrap();
            }
        };
        let copies = || {
            for number in 0..50 {
                let copy = folder.join(format!("copy-{number}"));
                copy_program(Path::new("/bin/true"), &copy);
                assert!(Command::new(&copy).status().unwrap().success());
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(others);
            let end = scope.spawn(copies).join();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            end.expect("every copy runs");
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_test_under_a_wrong_name_fails_for_everybody() {
        let named = std::thread::Builder::new().name("a::test".to_owned());
        let run = || in_namespaces("test", Needs::default(), |_| {}, || {});
        let end = named.spawn(run).unwrap().join().unwrap_err();
        let said = end.downcast_ref::<String>().expect("a formatted message");
        assert_eq!(said, "Some(\"a::test\") is no test");
    }

    #[test]
    fn the_list_lies_in_the_target_folder() {
        let list = |path: &str| list_beside(Path::new(path));
        assert_eq!(
            list("/a/target/debug/deps/e2e-12ab"),
            Some("/a/target/skipped-tests".into())
        );
        assert_eq!(list("/usr/bin/fairlead"), None, "nothing that cargo tests");
    }
}
