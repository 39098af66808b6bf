//! Runs tests that need network namespaces, or reports them as skipped.

use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_netns::trial::{Needs, in_namespaces, name_of, skip};

use super::lab::{Lab, PROGRAMS, links_take_xdp};
use super::switch::{binary, kernel_mode};

/// Runs `test` in its own lab, or reports it as skipped. Call it from the test's own function: the
/// name comes from there.
pub(crate) fn in_a_lab<F: FnOnce(&Lab)>(test: F) {
    in_a_lab_of(name_of::<F>(), test);
}

/// As [`in_a_lab`], for the test of this name.
pub(crate) fn in_a_lab_of(name: &str, test: impl FnOnce(&Lab)) {
    let needs = Needs {
        tun: true,
        programs: &PROGRAMS,
    };
    let again = |command: &mut std::process::Command| {
        command.env("FAIRLEAD_BINARY", binary());
    };
    in_namespaces(name, needs, again, || {
        fairlead_netns::raise_open_files(65_536).expect("the limit of open files");
        let lab = Lab::new().unwrap_or_else(|error| panic!("making the world: {error}"));
        test(&lab);
    });
}

/// A lab with the kernel fast path; without the right to load programs the test is skipped, and
/// where XDP is asked for and sends into no link of it.
pub(crate) fn on_the_fast_path<F: FnOnce(&Lab)>(test: F) {
    let name = name_of::<F>();
    in_a_lab_of(name, |lab| {
        if kernel_mode() == "xdp" && !links_take_xdp() {
            return skip(name, "before Linux 6.3 XDP sends into no veth");
        }
        if may_load_programs(name) {
            test(lab);
        }
    });
}

/// As [`on_the_fast_path`], where the kernel makes sockets of cookies.
pub(crate) fn with_sockets_of_cookies<F: FnOnce(&Lab)>(test: F) {
    let name = name_of::<F>();
    in_a_lab_of(name, |lab| {
        if kernel_mode() == "xdp-generic" {
            return skip(name, "sockets of this machine need tc or XDP in the driver");
        }
        if !makes_sockets_of_cookies() {
            return skip(name, "a socket of a cookie needs Linux 6.9");
        }
        if may_load_programs(name) {
            test(lab);
        }
    });
}

pub(crate) fn makes_sockets_of_cookies() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
    let version = (numbers.next(), numbers.next());
    matches!(version, (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 9))
}

/// A lab, and `test` with a mode twice: the engine alone, and the best there is, which is skipped
/// and reported without the privileges to load programs.
pub(crate) fn with_and_without_the_fast_path<F: Fn(&Lab, &str)>(test: F) {
    let name = name_of::<F>();
    in_a_lab_of(name, |lab| {
        test(lab, "engine");
        if may_load_programs(name) {
            test(lab, "auto");
        }
    });
}

/// True where the kernel takes programs; where not, the test of this name is skipped, or the part
/// that would come now.
pub(crate) fn may_load_programs(name: &str) -> bool {
    let maps = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let all = maps.split_whitespace().eq(["0", "0", "4294967295"]);
    if !all {
        skip(name, "programs in the kernel need root itself");
    }
    all
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

/// Sets its flag when it is dropped: a scope of threads waits for them also when the test fails in
/// it, so they must learn of that.
pub(crate) struct SetAtEnd<'flag>(pub(crate) &'flag AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
