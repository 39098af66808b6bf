//! A reload: the process begins anew, by the program's file and the configuration of now, and takes
//! up its own connections, which the kernel forwards meanwhile (docs/decisions/0014).
//!
//! Whatever would keep the new run from starting is looked for first, as far as it can be known:
//! then the present one goes on, and says why.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::RawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_driver_tun::net;

use super::inherit::DEVICE;
use super::{Ending, plan};
use crate::config::{self, Settings};

/// What is needed to judge whether a reload can succeed.
#[derive(Debug)]
pub(super) struct Reload<'a> {
    program: &'a Program,
    file: PathBuf,
    /// What the file said when this run began.
    running: Settings,
    refused: u64,
}

impl<'a> Reload<'a> {
    /// Of a run of this program with this configuration file, which said that.
    pub(super) fn new(program: &'a Program, file: &Path, running: &Settings) -> Self {
        Self {
            program,
            file: file.to_owned(),
            running: running.clone(),
            refused: 0,
        }
    }

    /// What would be different; or the reason against it, which is logged and counted.
    pub(super) fn check(&mut self, is_ending: bool, outlives: bool) -> Result<Vec<String>, String> {
        let outcome = self.find_changes(is_ending, outlives);
        if let Err(why) = &outcome {
            self.refused += 1;
            tracing::error!("no reload, everything goes on as it was: {why}");
        }
        outcome
    }

    /// Reloads that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    fn find_changes(&self, is_ending: bool, outlives: bool) -> Result<Vec<String>, String> {
        if is_ending {
            return Err("the switch is about to end".to_owned());
        }
        if !outlives {
            return Err(
                "spliced connections live in this process and would end with it; only with the \
                 kernel's fast path, pinned in a BPF file system, do they outlive it. For the \
                 file as it is now start the switch anew: `fairlead drain` ends it once they have \
                 ended"
                    .to_owned(),
            );
        }
        self.program.find_obstacle()?;
        // A pipe was read at the start; now it would be waited for, and packets with it.
        if std::fs::metadata(&self.file).is_ok_and(|found| !found.is_file()) {
            let file = self.file.display();
            return Err(format!(
                "{file} is no regular file, so it cannot be read again"
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
        has_room(&new.settings)?;
        Ok(config::changes(&self.running, &new.settings))
    }
}

/// Whether a run with `new` settings can take up the connections of one with the present ones.
fn takes_over(running: &Settings, new: &Settings) -> Result<(), String> {
    let connections = |settings: &Settings| settings.switch.limits.connections;
    let fixed = [
        ("instance.name", running.instance.name == new.instance.name),
        ("fastpath.mode", running.fastpath.mode == new.fastpath.mode),
        (
            "fastpath.device",
            running.fastpath.device == new.fastpath.device,
        ),
        (
            "fastpath.interfaces",
            running.fastpath.interfaces == new.fastpath.interfaces,
        ),
        (
            "fastpath.flow_table and flow_lines",
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
            "a change of {key} needs a new start: end this process and start it again"
        )),
    }
}

/// Whether a socket at one of them is in the way of one at the other: ours is in nobody's, being
/// closed before the new one is opened. What else is in the way cannot be known before then.
fn meet(ours: SocketAddr, wanted: SocketAddr) -> bool {
    let any = ours.ip().is_unspecified() || wanted.ip().is_unspecified();
    ours.port() == wanted.port() && (any || ours.ip() == wanted.ip())
}

fn can_bind(address: SocketAddr) -> Result<(), String> {
    let tried = TcpListener::bind(address).map(drop);
    tried.map_err(|error| format!("admin pages cannot be served at {address}: {error}"))
}

/// Whether nothing is in the way of what the new run makes around the device, which is there.
fn has_room(settings: &Settings) -> Result<(), String> {
    let mut plan = plan::network_plan(settings);
    plan.resumed = true;
    let obstacles = net::check(&plan).map_err(|error| error.to_string())?;
    match obstacles.first() {
        None => Ok(()),
        Some(obstacle) => Err(obstacle.to_string()),
    }
}

/// The program that runs, as of its start: another build may lie at its place later.
#[derive(Debug)]
pub(super) struct Program {
    /// Its file and how it was called; or why it cannot be begun anew.
    known: Result<(PathBuf, Vec<OsString>), String>,
}

impl Program {
    /// This process's, whose words say that it is to serve.
    pub(super) fn running() -> Self {
        let known = match std::env::current_exe() {
            Ok(file) => Ok((file, std::env::args_os().collect())),
            Err(error) => Err(format!("the program's own file cannot be told: {error}")),
        };
        Self { known }
    }

    /// Another's, of which the switch is a part: begun anew, that would do whatever it does.
    pub(super) fn anothers() -> Self {
        let why = "the switch was not begun by the command line (`fairlead serve`), so there is \
                   no program to begin anew";
        Self {
            known: Err(why.to_owned()),
        }
    }

    /// Whether it can be begun anew, as far as that can be known.
    fn find_obstacle(&self) -> Result<(), String> {
        match &self.known {
            Ok((file, _)) => match std::fs::metadata(file) {
                // As it is while another build is put in its place.
                Ok(found) if found.permissions().mode() & 0o111 == 0 => {
                    Err(format!("{} is not executable (yet)", file.display()))
                }
                Ok(found) if found.is_file() => Ok(()),
                _ => Err("the program's own file is gone".to_owned()),
            },
            Err(why) => Err(why.clone()),
        }
    }

    /// Becomes a new run of it, for which the device was left open under this number; returns when
    /// that fails.
    pub(super) fn begin_anew(&self, device: Option<RawFd>) -> Ending {
        let why = match &self.known {
            Err(why) => why.clone(),
            Ok((file, words)) => {
                let mut command = Command::new(file);
                if let Some((called, arguments)) = words.split_first() {
                    command.arg0(called).args(arguments);
                }
                match device {
                    Some(number) => command.env(DEVICE, number.to_string()),
                    None => command.env_remove(DEVICE),
                };
                let error = command.exec();
                format!("{}: {error}", file.display())
            }
        };
        // The log is closed by then.
        crate::screen::print_error(&format!(
            "fairlead: cannot begin anew: {why}; the kernel goes on with what is spliced\n"
        ));
        Ending::Host
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
    fn what_the_kernel_holds_cannot_be_changed() {
        for (from, to, key) in [
            ("\"one\"", "\"two\"", "instance.name"),
            ("\"tc\"", "\"auto\"", "fastpath.mode"),
            ("mode =", "device = \"tun7\"\nmode =", "fastpath.device"),
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
    fn what_clients_and_servers_see_can() {
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
    fn a_reload_that_cannot_be_is_counted() {
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
            (gone, "own file is gone"),
            (Program::anothers(), "not begun by the command line"),
        ] {
            let reload = Reload::new(&program, Path::new("/nowhere/a.toml"), &settings(SMALL));
            let why = reload.find_changes(false, true).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("fairlead-reload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let pipe = folder.join("a.toml");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let program = Program::running();
        let why = Reload::new(&program, &pipe, &settings(SMALL)).find_changes(false, true);
        std::fs::remove_dir_all(&folder).unwrap();
        let why = why.unwrap_err();
        assert!(why.contains("no regular file"), "{why}");
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
    fn an_address_in_the_way_of_none_but_our_own_is_not_tried() {
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
