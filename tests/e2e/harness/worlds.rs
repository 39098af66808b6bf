//! Running a test where it may make a world, and skipping it aloud where it may not.

use std::process::Command;

use fairlead_netns::{Rights, in_user_namespace, program};

use super::lab::{Lab, PROGRAMS};
use super::switch::binary;

/// Marks the second run of a test, in a user namespace.
const INSIDE: &str = "FAIRLEAD_E2E_INSIDE";

/// Runs `test` in a lab of its own: right away for root; an ordinary user's test runs itself once
/// more, in a user namespace. Call it from the test's own function: the name comes from there.
pub(crate) fn in_a_lab<F: FnOnce(&Lab)>(test: F) {
    let name = name_of::<F>();
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(tool, _)| program(tool).is_none())
        .map(|(_, package)| *package)
        .collect();
    let rights =
        fairlead_netns::allowed().and_then(|rights| fairlead_netns::tun_allowed().map(|()| rights));
    match rights {
        Err(why) => skip(name, &why.to_string()),
        Ok(_) if !missing.is_empty() => {
            skip(
                name,
                &format!(
                    "programs are missing: apt-get install {}",
                    missing.join(" ")
                ),
            );
        }
        Ok(Rights::AsItIs) => {
            fairlead_netns::raise_open_files(65_536).expect("the limit of open files");
            let lab = Lab::new().unwrap_or_else(|error| panic!("making the world: {error}"));
            test(&lab);
        }
        Ok(Rights::InUserNamespace) => run_in_user_namespace(name),
    }
}

/// `module::test`, as the test harness knows it, from the type of the closure inside it.
fn name_of<F>() -> &'static str {
    let name = std::any::type_name::<F>();
    let name = name.strip_suffix("::{{closure}}").unwrap_or(name);
    name.split_once("::").map_or(name, |(_, name)| name)
}

fn run_in_user_namespace(name: &str) {
    assert!(
        std::env::var_os(INSIDE).is_none(),
        "a user namespace without its rights"
    );
    let mut again = Command::new(std::env::current_exe().expect("the path of this test"));
    again
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1");
    again.env("FAIRLEAD_BINARY", binary());
    in_user_namespace(&mut again);
    let output = again.output().expect("running the test once more");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && text.contains("1 passed"),
        "in a user namespace:\n{text}\n{errors}"
    );
}

/// Says that a test is skipped: on standard error itself, because the test harness shows nobody
/// what passing tests print, and in the list that `make test` repeats at its end.
fn skip(name: &str, why: &str) {
    use std::io::Write;
    let line = format!("{name}: {why}");
    // Neither may fail the test that is skipped.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {line}");
    let list = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/skipped-tests");
    let _ = std::fs::File::options()
        .create(true)
        .append(true)
        .open(list)
        .and_then(|mut list| writeln!(list, "{line}"));
}

/// True for the long form of the tests.
pub(crate) fn long() -> bool {
    std::env::var_os("FAIRLEAD_LONG").is_some_and(|value| value != "0")
}

/// `short` rounds, or `in_long_form` of them.
pub(crate) fn rounds(short: usize, in_long_form: usize) -> usize {
    if long() { in_long_form } else { short }
}

/// The seeds to run: those from 1 on, or the one that `FAIRLEAD_SEED` names.
pub(crate) fn seeds(short: usize, in_long_form: usize) -> Vec<u64> {
    match std::env::var("FAIRLEAD_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        Some(seed) => vec![seed],
        None => (1..=rounds(short, in_long_form) as u64).collect(),
    }
}
