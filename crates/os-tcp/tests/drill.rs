//! packetdrill on sockets that were moved: each script must pass on the kernel's own socket, and
//! when its connection has been taken out of it and put back. `FAIRLEAD_PACKETDRILL` names
//! packetdrill's source, of which a copy is built, or its program.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_netns::trial::{Needs, in_namespaces, skip};
use fairlead_os_tcp::repair::{self, own_namespace};
use fairlead_os_tcp::{Identity, PeerClock, State};

const SOURCE: &str = "FAIRLEAD_PACKETDRILL";
/// Where the source is in a checkout.
const INSIDE: &str = "gtests/net/packetdrill";

fn output(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("a program");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

/// The program, built in this folder if a source was given.
fn program(given: &OsStr, folder: &Path) -> PathBuf {
    if Path::new(given).is_file() {
        return given.into();
    }
    let copy = folder.join("packetdrill");
    let inside = Path::new(given).join(INSIDE);
    let source = if inside.is_dir() {
        inside
    } else {
        given.into()
    };
    for mut command in [
        Command::new("cp"),
        Command::new("./configure"),
        Command::new("make"),
    ] {
        match command.get_program().to_str() {
            Some("cp") => command.arg("-r").arg(&source).arg(&copy),
            Some("make") => command.arg("packetdrill").current_dir(&copy),
            _ => command.current_dir(&copy),
        };
        let (done, said) = output(&mut command);
        assert!(done, "{command:?}: {said}");
    }
    copy.join("packetdrill")
}

#[test]
fn scripts_pass_on_moved_sockets_as_on_others() {
    let name = "scripts_pass_on_moved_sockets_as_on_others";
    let Some(given) = std::env::var_os(SOURCE) else {
        return skip(name, &format!("{SOURCE} names neither source nor program"));
    };
    let needs = Needs {
        tun: true,
        ..Needs::default()
    };
    in_namespaces(name, needs, |_| {}, || drill(&given));
}

fn drill(given: &OsStr) {
    let folder = std::env::temp_dir().join(format!("fairlead-drill-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let program = program(given, &folder);
    for (key, value) in [("tcp_congestion_control", "reno"), ("tcp_timestamps", "0")] {
        fs::write(format!("/proc/sys/net/ipv4/{key}"), value).unwrap();
    }
    let mover = std::env::current_exe().unwrap();
    let mover = format!("{} --ignored --exact move_the_socket", mover.display());
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drill");
    let mut scripts: Vec<PathBuf> = fs::read_dir(scripts)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 9);
    let mut failed = Vec::new();
    for script in &scripts {
        for (moved, mover) in [(false, "true"), (true, mover.as_str())] {
            let mut command = Command::new(&program);
            // What a script waits for may be late on a busy machine.
            command.arg("--tolerance_usecs=60000").arg(script);
            let (done, said) = output(command.env("MOVE", mover));
            println!("{} {moved} {done}", script.display());
            if !done {
                failed.push(format!("moved: {moved}: {said}"));
            }
        }
    }
    let _ = fs::remove_dir_all(&folder);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a script runs: moves the connected socket of the packetdrill above it.
#[test]
#[ignore = "scripts of packetdrill run it"]
fn move_the_socket() {
    let process = packetdrill_above();
    // SAFETY: makes a descriptor, touches no memory of ours.
    let of_process = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    assert!(of_process >= 0);
    let mut moved = 0;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
        let number: i32 = entry
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        // SAFETY: as above.
        let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, of_process, number, 0) };
        assert!(taken >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a descriptor that was just made and that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(taken as i32) };
        let fd = socket.as_fd();
        let Ok(identity) = Identity::of(fd, own_namespace().unwrap()) else {
            continue;
        };
        repair::enter(fd).unwrap();
        let state = State::export(fd, identity, PeerClock::Unknown).unwrap();
        repair::disconnect(fd).unwrap();
        state.restore_in(fd).unwrap();
        repair::leave(fd, false).unwrap();
        repair::settle(fd).unwrap();
        moved += 1;
    }
    assert_eq!(moved, 1);
}

fn packetdrill_above() -> i32 {
    let mut process = std::process::id().to_string();
    loop {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process above");
        let (before, after) = stat.rsplit_once(')').unwrap();
        if before.ends_with("(packetdrill") {
            return process.parse().unwrap();
        }
        process = after.split_whitespace().nth(1).unwrap().to_owned();
    }
}
