//! A reload: the process executes the current program file with the current configuration, and
//! takes over its own connections, which the kernel forwards meanwhile (docs/decisions/0014).
//!
//! Anything that would keep the new run from starting is checked first, as far as possible. If
//! there is such an obstacle, the current run continues and reports it.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::RawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_driver_tun::net;

use super::front::PREDECESSOR;
use super::restore::DEVICE;
use super::{ExitStatus, plan};
use crate::config::{self, Settings};
use crate::log;

/// What is needed to decide whether a reload can succeed.
#[derive(Debug)]
pub(super) struct Reload<'a> {
    program: &'a Program,
    file: PathBuf,
    /// The configuration of this run.
    running: Settings,
    refused: u64,
}

impl<'a> Reload<'a> {
    /// For a run of `program` with the configuration file `file`, which contained `running`.
    pub(super) fn new(program: &'a Program, file: &Path, running: &Settings) -> Self {
        Self {
            program,
            file: file.to_owned(),
            running: running.clone(),
            refused: 0,
        }
    }

    /// The changes that a reload would make, or the reason against it, which is logged and counted.
    pub(super) fn check(&mut self, is_ending: bool, outlives: bool) -> Result<Vec<String>, String> {
        let outcome = self.find_changes(is_ending, outlives);
        if let Err(why) = &outcome {
            self.refused += 1;
            tracing::error!("reload refused, the old configuration stays in service: {why}");
        }
        outcome
    }

    /// Reloads that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    fn find_changes(&self, is_ending: bool, outlives: bool) -> Result<Vec<String>, String> {
        if is_ending {
            return Err("the switch is stopping".to_owned());
        }
        if !outlives {
            return Err(
                "a reload would end the spliced connections, because they are held by this \
                 process; they survive only with the kernel fast path pinned in a BPF file system. \
                 To apply the new file, restart the switch: `fairlead drain` stops it once its \
                 connections have closed"
                    .to_owned(),
            );
        }
        self.program.find_obstacle()?;
        // Reading a pipe again could block, and packets with it.
        if std::fs::metadata(&self.file).is_ok_and(|found| !found.is_file()) {
            let file = self.file.display();
            return Err(format!(
                "{file} is not a regular file, so it cannot be read again"
            ));
        }
        let new = config::load(&self.file).map_err(|error| error.to_string())?;
        if !new.warnings.is_empty() {
            tracing::warn!("{}", new.warnings.render(false).trim_end());
        }
        takes_over(&self.running, &new.settings)?;
        let admin = new.settings.instance.admin;
        if let Some(wanted) = admin
            && !self
                .running
                .instance
                .admin
                .is_some_and(|ours| meet(ours, wanted))
        {
            can_bind(wanted)?;
        }
        log::can_open(&new.settings.log)?;
        has_room(&new.settings)?;
        Ok(config::changes(&self.running, &new.settings))
    }
}

/// Checks that a run with `new` settings can take over the connections of the running one.
fn takes_over(running: &Settings, new: &Settings) -> Result<(), String> {
    let connections = |settings: &Settings| settings.switch.limits.connections;
    let fixed = [
        ("instance.name", running.instance.name == new.instance.name),
        ("fastpath.mode", running.fastpath.mode == new.fastpath.mode),
        (
            "network.device",
            running.network.device == new.network.device,
        ),
        (
            "fastpath.interfaces",
            running.fastpath.interfaces == new.fastpath.interfaces,
        ),
        (
            "fastpath.flow_table and its size",
            running.fastpath.flow_table == new.fastpath.flow_table,
        ),
        (
            "limits.connections",
            connections(running) == connections(new),
        ),
    ];
    match fixed.iter().find(|(_, same)| !same) {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "a change of {key} needs a restart: stop this process and start it again"
        )),
    }
}

/// True if sockets at the two addresses conflict. Our own socket is no obstacle, because it is
/// closed before the new one is opened; other conflicts cannot be detected before that.
fn meet(ours: SocketAddr, wanted: SocketAddr) -> bool {
    let any = ours.ip().is_unspecified() || wanted.ip().is_unspecified();
    ours.port() == wanted.port() && (any || ours.ip() == wanted.ip())
}

fn can_bind(address: SocketAddr) -> Result<(), String> {
    let tried = TcpListener::bind(address).map(drop);
    tried.map_err(|error| format!("cannot serve the admin pages at {address}: {error}"))
}

/// Checks for obstacles to the routes and rules of the new run. The device itself exists.
fn has_room(settings: &Settings) -> Result<(), String> {
    let mut plan = plan::network_plan(settings);
    plan.resumed = true;
    let obstacles = net::check(&plan).map_err(|error| error.to_string())?;
    match obstacles.first() {
        None => Ok(()),
        Some(obstacle) => Err(obstacle.to_string()),
    }
}

/// Descriptors that stay open for the next run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOpen {
    /// Of the device. Without it first segments would be lost, and clients would have to retransmit
    /// them.
    pub(super) device: Option<RawFd>,
    /// Of the socket that clients of the front come from.
    pub(super) clients: Option<RawFd>,
}

/// The running program, as started. Another build may replace its file later.
#[derive(Debug)]
pub(super) struct Program {
    /// Its file and arguments, or why it cannot be executed again.
    known: Result<(PathBuf, Vec<OsString>), String>,
}

impl Program {
    /// The program of this process, with its arguments.
    pub(super) fn running() -> Self {
        let known = match std::env::current_exe() {
            Ok(file) => Ok((file, std::env::args_os().collect())),
            Err(error) => Err(format!("cannot determine the program's own file: {error}")),
        };
        Self { known }
    }

    /// A program that embeds the switch. It cannot be executed again, because it would do something
    /// else.
    pub(super) fn anothers() -> Self {
        let why = "the switch was not started from the command line (`fairlead serve`), so it \
                   cannot restart itself";
        Self {
            known: Err(why.to_owned()),
        }
    }

    /// Checks, as far as possible, that the program can be executed again.
    fn find_obstacle(&self) -> Result<(), String> {
        match &self.known {
            Ok((file, _)) => match std::fs::metadata(file) {
                // As while another build is being installed.
                Ok(found) if found.permissions().mode() & 0o111 == 0 => {
                    Err(format!("{} is not executable (yet)", file.display()))
                }
                Ok(found) if found.is_file() => Ok(()),
                _ => Err("the program's own file no longer exists".to_owned()),
            },
            Err(why) => Err(why.clone()),
        }
    }

    /// Executes the program again, with these descriptors open. Returns only on failure.
    pub(super) fn begin_anew(&self, left: &LeftOpen) -> ExitStatus {
        let why = match &self.known {
            Err(why) => why.clone(),
            Ok((file, words)) => {
                let mut command = Command::new(file);
                if let Some((called, arguments)) = words.split_first() {
                    command.arg0(called).args(arguments);
                }
                for (name, left) in [(DEVICE, left.device), (PREDECESSOR, left.clients)] {
                    match left {
                        Some(number) => command.env(name, number.to_string()),
                        None => command.env_remove(name),
                    };
                }
                let error = command.exec();
                format!("{}: {error}", file.display())
            }
        };
        // The log is closed by then.
        crate::log::print_line(&format!(
            "cannot restart: {why}; the kernel keeps forwarding spliced connections"
        ));
        ExitStatus::Host
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SMALL;

    fn settings(file: &str) -> Settings {
        let loaded = config::parse(file, "a.toml");
        loaded.expect("a configuration").settings
    }

    fn refusal(from: &str, to: &str) -> Option<String> {
        let changed = SMALL.replace(from, to);
        assert_ne!(changed, SMALL);
        takes_over(&settings(SMALL), &settings(&changed)).err()
    }

    #[test]
    fn settings_of_pinned_state_cannot_change() {
        for (from, to, key) in [
            ("\"one\"", "\"two\"", "instance.name"),
            ("\"tc\"", "\"auto\"", "fastpath.mode"),
            ("snat =", "device = \"tun7\"\nsnat =", "network.device"),
            (
                "mode =",
                "interfaces = [\"eth7\"]\nmode =",
                "fastpath.interfaces",
            ),
            ("mode =", "flow_table = \"lru-hash\"\nmode =", "flow_table"),
            (
                "[fastpath]",
                "[limits]\nconnections = 4096\n[fastpath]",
                "limits.connections",
            ),
        ] {
            let why = refusal(from, to).unwrap_or_else(|| panic!("{key} may change"));
            assert!(why.contains(key), "{why}");
        }
    }

    #[test]
    fn services_and_servers_can_change() {
        for (from, to) in [
            ("10.2.0.1:8081", "10.2.0.9:8081"),
            ("10.1.0.3:80", "10.1.0.4:80"),
            ("100.64.0.0/24", "100.65.0.0/24"),
            ("name = \"one\"", "name = \"one\"\ndrain_timeout = \"3s\""),
        ] {
            assert_eq!(refusal(from, to), None, "{to}");
        }
    }

    #[test]
    fn refused_reloads_are_counted() {
        let program = Program::running();
        let mut reload = Reload::new(&program, Path::new("/nowhere/a.toml"), &settings(SMALL));
        for (is_ending, outlives) in [(true, true), (false, false), (false, true)] {
            assert!(reload.check(is_ending, outlives).is_err());
        }
        assert_eq!(reload.refused(), 3);
    }

    #[test]
    fn without_a_program_of_its_own_there_is_no_reload() {
        let gone = Program {
            known: Ok((PathBuf::from("/nowhere/fairlead"), Vec::new())),
        };
        let plain = Program {
            known: Ok((PathBuf::from("/proc/self/status"), Vec::new())),
        };
        for (program, said) in [
            (plain, "not executable"),
            (Program::running(), "/nowhere/a.toml"),
            (gone, "own file no longer exists"),
            (Program::anothers(), "not started from the command line"),
        ] {
            let reload = Reload::new(&program, Path::new("/nowhere/a.toml"), &settings(SMALL));
            let why = reload.find_changes(false, true).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn a_pipe_is_not_read_again() {
        let folder = std::env::temp_dir().join(format!("fairlead-reload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("a.toml");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let program = Program::running();
        let why = Reload::new(&program, &pipe, &settings(SMALL)).find_changes(false, true);
        std::fs::remove_dir_all(&folder).unwrap();
        let why = why.unwrap_err();
        assert!(why.contains("not a regular file"), "{why}");
    }

    #[test]
    fn an_address_in_use_is_noticed() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let why = can_bind(address).unwrap_err();
        assert!(why.contains(&address.to_string()), "{why}");
        drop(taken);
        assert_eq!(can_bind(address), Ok(()));
    }

    #[test]
    fn an_address_that_conflicts_only_with_ours_is_not_tried() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let local = at("127.0.0.1:9090");
        for wanted in ["127.0.0.1:9090", "0.0.0.0:9090", "[::]:9090"] {
            assert!(
                meet(local, at(wanted)) && meet(at(wanted), local),
                "{wanted}"
            );
        }
        for wanted in ["127.0.0.1:9091", "127.0.0.2:9090", "0.0.0.0:9091"] {
            assert!(!meet(local, at(wanted)), "{wanted}");
        }
    }
}
