//! The clock in a time namespace. In a process of its own: a namespace's time is its children's.

use std::process::Command;
use std::time::Duration;

use fairlead_bpf_loader::monotonic_ns;
use fairlead_netns::trial::skip;

const NAME: &str = "a_time_namespace_has_the_kernels_clock";
const INSIDE: &str = "FAIRLEAD_TEST_INSIDE";
const SAYS: &str = "the clock says ";

#[test]
fn a_time_namespace_has_the_kernels_clock() {
    if std::env::var_os(INSIDE).is_some() {
        return println!("{SAYS}{}", monotonic_ns());
    }
    let before = monotonic_ns();
    let mut inside = Command::new("unshare");
    inside.args(["--time", "--monotonic", "1000000", "--fork"]);
    inside.arg(std::env::current_exe().unwrap());
    inside.args(["--exact", NAME]);
    let output = inside.arg("--nocapture").env(INSIDE, "1").output().unwrap();
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return skip(NAME, &format!("no time namespace: {why}"));
    }
    let said = String::from_utf8(output.stdout).unwrap();
    let said = said.split(SAYS).nth(1).unwrap();
    let inside_ns: u64 = said.split_whitespace().next().unwrap().parse().unwrap();
    assert!(before < inside_ns && inside_ns < monotonic_ns(), "{said}");
    assert!(inside_ns - before < Duration::from_secs(600).as_nanos() as u64);
}
