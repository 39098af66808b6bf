//! The clock that this process and the kernel program share.

use std::sync::OnceLock;

/// The monotonic clock as the kernel program reads it, nanoseconds. In a time namespace
/// (time_namespaces(7)) a process is told another time than that.
pub fn monotonic_ns() -> u64 {
    static AHEAD_NS: OnceLock<i64> = OnceLock::new();
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills in a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    now_ns.wrapping_sub_signed(*AHEAD_NS.get_or_init(ahead_ns))
}

/// How far the clock of this process is ahead of the kernel's, nanoseconds.
fn ahead_ns() -> i64 {
    let namespace = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // What follows is about the one that children are in.
    if namespace("time") != namespace("time_for_children") {
        return 0;
    }
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    offset_ns(&offsets).unwrap_or(0)
}

fn offset_ns(offsets: &str) -> Option<i64> {
    let mut lines = offsets.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| (words.next()? == "monotonic").then_some(words))?;
    let mut number = || words.next()?.parse::<i64>().ok();
    let (seconds, ns) = (number()?, number()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let offsets = |monotonic: &str| format!("{monotonic}\nboottime           5         0\n");
        for (line, ns) in [
            ("monotonic           0         0", Some(0)),
            (
                "monotonic     1000000       250",
                Some(1_000_000_000_000_250),
            ),
            ("monotonic         -2 500000000", Some(-1_500_000_000)),
            ("monotonic 9300000000000 0", None),
            ("monotonic 1", None),
            ("", None),
        ] {
            assert_eq!(offset_ns(&offsets(line)), ns, "{line}");
        }
    }
}
