//! Checks of the kernel, its settings, and this process's privileges.

use std::io::ErrorKind;

use fairlead_splice::config::Source;

use super::{Check, Facts, read};
use crate::config::Mode;

const ABOUT: &str = "machine";
/// Oldest supported kernel of the fast path.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Before this version, maps count against the limit of locked memory.
const KERNEL_WITHOUT_MEMLOCK: (u32, u32) = (5, 11);
const FAST_PATH_ADVICE: &str = "without it the engine handles all packets through the TUN device";

/// Runs all checks of this file.
pub(super) fn look(facts: &Facts, checks: &mut Vec<Check>) {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    checks.push(kernel(&release));
    checks.push(btf());
    checks.push(built_in());
    checks.push(net_admin(facts));
    let transparent = facts.settings.as_ref().is_some_and(|settings| {
        let mut services = settings.switch.services.iter();
        services.any(|service| service.source == Source::Transparent)
    });
    if transparent {
        checks.push(net_raw(facts.capabilities.has("CAP_NET_RAW")));
    }
    checks.push(programs(facts));
    checks.push(bpf_filesystem(
        &read("/proc/self/mountinfo").unwrap_or_default(),
    ));
    checks.push(locked_memory(
        &release,
        &read("/proc/self/limits").unwrap_or_default(),
    ));
    checks.push(jit(read("/proc/sys/net/core/bpf_jit_enable").ok()));
    checks.push(tun());
    checks.push(huge_pages(
        read("/sys/kernel/mm/transparent_hugepage/enabled").ok(),
    ));
}

/// Major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|one: char| !one.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(release: &str) -> Check {
    let (major, minor) = KERNEL_MIN;
    match version(release) {
        Some(found) if found >= KERNEL_MIN => {
            Check::ok(ABOUT, "kernel", format!("Linux {release}"))
        }
        Some(_) => Check::warning(
            ABOUT,
            "kernel",
            format!("Linux {release} is older than {major}.{minor}"),
        )
        .advise(format!(
            "the kernel fast path needs {major}.{minor} or newer; {FAST_PATH_ADVICE}"
        )),
        None => Check::unseen(ABOUT, "kernel", "unknown kernel version"),
    }
}

fn btf() -> Check {
    match std::fs::metadata("/sys/kernel/btf/vmlinux") {
        Ok(file) => {
            let size = crate::screen::bytes(file.len());
            Check::ok(ABOUT, "btf", format!("kernel BTF is available ({size})"))
        }
        Err(_) => Check::ok(ABOUT, "btf", "no kernel BTF (not needed)"),
    }
}

fn built_in() -> Check {
    if fairlead_bpf_loader::is_built_in() {
        return Check::ok(ABOUT, "program", "this build contains the kernel program");
    }
    Check::warning(
        ABOUT,
        "program",
        "this build does not contain the kernel program",
    )
    .advise("install clang and libbpf-dev, then build again")
}

/// The capability needed for everything that `serve` creates.
fn net_admin(facts: &Facts) -> Check {
    let denied = facts
        .chains
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    if !facts.capabilities.has("CAP_NET_ADMIN") {
        return Check::problem(
            ABOUT,
            "net-admin",
            "no CAP_NET_ADMIN: cannot create the device and routes",
        )
        .advise(
            "run as root, or grant the capability: AmbientCapabilities=CAP_NET_ADMIN CAP_BPF \
             CAP_PERFMON in the unit, or `setcap cap_net_admin,cap_bpf,cap_perfmon+ep` on the \
             program",
        );
    }
    if denied {
        let what = "CAP_NET_ADMIN does not apply to this network namespace";
        return Check::problem(ABOUT, "net-admin", what)
            .advise("run in a network namespace owned by this user namespace, or as root");
    }
    Check::ok(
        ABOUT,
        "net-admin",
        "CAP_NET_ADMIN: can create the device and routes",
    )
}

/// The capability needed to read ICMP errors about packets to transparent servers.
fn net_raw(may: bool) -> Check {
    const NAME: &str = "net-raw";
    if may {
        let what = "CAP_NET_RAW: can read ICMP errors about packets to transparent servers";
        return Check::ok(ABOUT, NAME, what);
    }
    let what = "no CAP_NET_RAW: can read ICMP errors about packets to transparent servers only in \
                mode tc";
    Check::warning(ABOUT, NAME, what).advise(
        "run as root, or add CAP_NET_RAW to the capabilities; or set `mtu` in [network] to the \
         smallest MTU on the paths to them, otherwise uploads may stall",
    )
}

/// Whether this process can load kernel programs.
fn programs(facts: &Facts) -> Check {
    const NAME: &str = "bpf";
    let needless = facts
        .settings
        .as_ref()
        .is_some_and(|settings| settings.fastpath.mode == Mode::Engine);
    let grade = |what: String| match needless {
        true => Check::ok(
            ABOUT,
            NAME,
            format!("{what}; not needed with mode = \"engine\""),
        ),
        false => Check::warning(ABOUT, NAME, what),
    };
    let missing = facts.capabilities.missing_for_programs();
    if !missing.is_empty() {
        let all = match read("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref() {
            Ok("0") => " (kernel.unprivileged_bpf_disabled = 0 is not sufficient for tc and XDP)",
            _ => "",
        };
        let what = format!(
            "cannot load kernel programs: {} missing{all}",
            missing.join(", ")
        );
        return grade(what).advise(format!(
            "run as root, or add {} to the capabilities; {FAST_PATH_ADVICE}",
            missing.join(" ")
        ));
    }
    if !facts.capabilities.of_machine {
        let what = "a process in a user namespace cannot load kernel programs, whatever its \
                    capabilities";
        return grade(what.into()).advise(format!(
            "run outside user namespaces (in a container: --privileged or the host's user \
             namespace); {FAST_PATH_ADVICE}"
        ));
    }
    Check::ok(
        ABOUT,
        NAME,
        "CAP_BPF and CAP_PERFMON: can load kernel programs",
    )
}

fn bpf_filesystem(mounts: &str) -> Check {
    const NAME: &str = "bpffs";
    // The file system type follows the separator; the mount point is the fifth field.
    let mut points = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?;
        (kind == "bpf").then(|| before.split(' ').nth(4))?
    });
    match points.next() {
        Some(point) => Check::ok(ABOUT, NAME, format!("BPF file system mounted at {point}")),
        None => Check::warning(
            ABOUT,
            NAME,
            "no BPF file system is mounted: spliced connections end with the process",
        )
        .advise("`mount -t bpf bpf /sys/fs/bpf` (systemd does this by default)"),
    }
}

fn locked_memory(release: &str, limits: &str) -> Check {
    const NAME: &str = "memlock";
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|rest| rest.split_whitespace().next());
    let counts = version(release).is_some_and(|found| found < KERNEL_WITHOUT_MEMLOCK);
    match soft {
        None => Check::unseen(ABOUT, NAME, "cannot read the limit of locked memory"),
        Some("unlimited") => Check::ok(ABOUT, NAME, "locked memory is unlimited"),
        Some(_) if !counts => Check::ok(
            ABOUT,
            NAME,
            "locked memory is limited; this kernel does not count maps against it",
        ),
        Some(limit) => Check::warning(
            ABOUT,
            NAME,
            format!("{limit} bytes of locked memory, and this kernel counts maps against it"),
        )
        .advise("LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`"),
    }
}

fn jit(setting: Option<String>) -> Check {
    const NAME: &str = "jit";
    match setting.as_deref() {
        Some("0") => Check::warning(
            ABOUT,
            NAME,
            "the BPF JIT is off: kernel programs are interpreted, which is many times slower",
        )
        .advise("`sysctl -w net.core.bpf_jit_enable=1` (and keep it in /etc/sysctl.d/)"),
        Some(_) => Check::ok(ABOUT, NAME, "the BPF JIT is on"),
        None => Check::unseen(
            ABOUT,
            NAME,
            "the BPF JIT setting is not visible in this namespace",
        ),
    }
}

fn tun() -> Check {
    const NAME: &str = "tun";
    let path = "/dev/net/tun";
    match std::fs::File::options().read(true).write(true).open(path) {
        Ok(_) => Check::ok(ABOUT, NAME, format!("{path} is accessible")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Check::problem(ABOUT, NAME, format!("{path} does not exist"))
                .advise("`modprobe tun`; in a container, pass the device (--device /dev/net/tun)")
        }
        Err(error) => Check::problem(ABOUT, NAME, format!("cannot open {path}: {error}"))
            .advise("`chmod 666 /dev/net/tun`, as udev does, or run as root"),
    }
}

fn huge_pages(setting: Option<String>) -> Check {
    const NAME: &str = "huge-pages";
    let Some(setting) = setting else {
        return Check::unseen(
            ABOUT,
            NAME,
            "the setting of transparent huge pages is not visible",
        );
    };
    let chosen = setting
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(setting.as_str(), |(word, _)| word);
    if chosen == "never" {
        return Check::warning(
            ABOUT,
            NAME,
            "transparent huge pages are off: lookups in large tables are slower",
        )
        .advise("`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`");
    }
    Check::ok(
        ABOUT,
        NAME,
        format!("transparent huge pages for large tables ({chosen})"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(version("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("linux"), None);
        for (release, state) in [
            ("6.1.0-13-amd64", State::Ok),
            ("6.1", State::Ok),
            ("5.15.0", State::Warning),
            ("5.14.21-suse", State::Warning),
            ("4.19.0", State::Warning),
            ("", State::Unseen),
        ] {
            assert_eq!(kernel(release).state, state, "{release}");
        }
    }

    #[test]
    fn the_bpf_file_system_is_found_among_mounts() {
        let proc = "25 30 0:23 / /proc rw - proc proc rw\n";
        let mounted = format!("{proc}33 25 0:29 / /sys/fs/bpf rw,nosuid shared:9 - bpf bpf rw\n");
        assert_eq!(bpf_filesystem(proc).state, State::Warning);
        let found = bpf_filesystem(&mounted);
        assert_eq!(found.state, State::Ok);
        assert!(found.what.ends_with("/sys/fs/bpf"), "{}", found.what);
    }

    #[test]
    fn locked_memory_matters_to_old_kernels_alone() {
        let limit = "Max locked memory         8388608              8388608              bytes";
        assert_eq!(locked_memory("5.4.0", limit).state, State::Warning);
        assert_eq!(locked_memory("6.1.0", limit).state, State::Ok);
        let none = "Max locked memory         unlimited            unlimited            bytes";
        assert_eq!(locked_memory("5.4.0", none).state, State::Ok);
        assert_eq!(locked_memory("5.4.0", "").state, State::Unseen);
    }

    #[test]
    fn settings_of_speed_are_judged() {
        assert_eq!(jit(Some("0".into())).state, State::Warning);
        assert_eq!(jit(Some("1".into())).state, State::Ok);
        assert_eq!(jit(None).state, State::Unseen);
        let huge = |text: &str| huge_pages(Some(text.into())).state;
        assert_eq!(huge("always [madvise] never"), State::Ok);
        assert_eq!(huge("always madvise [never]"), State::Warning);
    }
}
