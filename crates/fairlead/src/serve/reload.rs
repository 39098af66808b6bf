//! A reload: the process begins anew, by the program's file and the configuration of now, and takes
//! up its own connections, which the kernel forwards meanwhile (docs/decisions/0014).
//!
//! Whatever would keep the new run from starting is looked for first, as far as it can be known:
//! then the present one goes on, and says why.

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_driver_tun::net;

use super::{Ending, plan};
use crate::config::{self, Settings};

/// What is needed to judge whether a reload can succeed.
#[derive(Debug)]
pub(super) struct Reload {
    /// Where the program lies, if that can be told.
    program: Option<PathBuf>,
    file: PathBuf,
    /// What the file said when this run began.
    running: Settings,
    refused: u64,
}

impl Reload {
    /// Of a run with this configuration file, which said that.
    pub(super) fn new(file: &Path, running: &Settings) -> Self {
        Self {
            program: std::env::current_exe().ok(),
            file: file.to_owned(),
            running: running.clone(),
            refused: 0,
        }
    }

    /// True when there is no reason against it; logs what there is, and counts.
    pub(super) fn check(&mut self, is_ending: bool, outlives: bool) -> bool {
        let Err(why) = self.find_obstacle(is_ending, outlives) else {
            return true;
        };
        self.refused += 1;
        tracing::error!("no reload, everything goes on as it was: {why}");
        false
    }

    /// Reloads that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    fn find_obstacle(&self, is_ending: bool, outlives: bool) -> Result<(), String> {
        if is_ending {
            return Err("the switch is about to end".to_owned());
        }
        if !outlives {
            return Err(
                "spliced connections live in this process and would end with it; only with the \
                 kernel's fast path, pinned in a BPF file system, do they outlive it"
                    .to_owned(),
            );
        }
        if !self.program.as_ref().is_some_and(|file| file.is_file()) {
            return Err("the program's own file is gone".to_owned());
        }
        let new = config::load(&self.file).map_err(|error| error.to_string())?;
        if !new.warnings.is_empty() {
            tracing::warn!("{}", new.warnings.render(false).trim_end());
        }
        takes_over(&self.running, &new.settings)?;
        let admin = new.settings.instance.admin;
        if admin != self.running.instance.admin {
            can_bind(admin)?;
        }
        has_room(&new.settings)
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

fn can_bind(admin: Option<SocketAddr>) -> Result<(), String> {
    let Some(address) = admin else {
        return Ok(());
    };
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

/// The program's file and how it was called, as of now: another build may lie there later.
pub(super) fn program() -> io::Result<(PathBuf, Vec<OsString>)> {
    Ok((std::env::current_exe()?, std::env::args_os().collect()))
}

/// Becomes a new run of the program; returns when that fails.
pub(super) fn begin_anew(program: &io::Result<(PathBuf, Vec<OsString>)>) -> Ending {
    let (file, words) = match program {
        Ok(program) => program,
        Err(error) => return cannot(Path::new("its own file"), error),
    };
    let mut command = Command::new(file);
    if let Some((called, arguments)) = words.split_first() {
        command.arg0(called).args(arguments);
    }
    let error = command.exec();
    cannot(file, &error)
}

/// The log is closed by then.
fn cannot(file: &Path, error: &io::Error) -> Ending {
    let file = file.display();
    crate::screen::print_error(&format!(
        "fairlead: cannot begin anew from {file}: {error}; the kernel goes on with what is \
         spliced\n"
    ));
    Ending::Host
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [instance]
        name = "one"
        [fastpath]
        mode = "tc"
        snat = ["100.64.0.0/24"]
        [[service]]
        name = "web"
        listen = "10.1.0.3:80"
        protocol = "http"
        source = "snat"
        [[service.route]]
        pool = "all"
        [[pool]]
        name = "all"
        server = [{ address = "10.2.0.1:8080" }]
    "#;

    fn settings(file: &str) -> Settings {
        let loaded = config::parse(file, "a.toml");
        loaded.expect("a configuration").settings
    }

    fn refusal(from: &str, to: &str) -> Option<String> {
        let changed = FILE.replace(from, to);
        assert_ne!(changed, FILE);
        takes_over(&settings(FILE), &settings(&changed)).err()
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
            ("10.2.0.1:8080", "10.2.0.9:8080"),
            ("10.1.0.3:80", "10.1.0.4:80"),
            ("100.64.0.0/24", "100.65.0.0/24"),
            ("name = \"one\"", "name = \"one\"\ndrain_timeout = \"3s\""),
        ] {
            assert_eq!(refusal(from, to), None, "{to}");
        }
    }

    #[test]
    fn a_reload_that_cannot_be_is_counted() {
        let mut reload = Reload::new(Path::new("/nowhere/a.toml"), &settings(FILE));
        assert!(!reload.check(true, true) && !reload.check(false, false));
        assert!(!reload.check(false, true), "without a file");
        reload.program = Some(PathBuf::from("/nowhere/fairlead"));
        let why = reload.find_obstacle(false, true).unwrap_err();
        assert!(why.contains("gone"), "{why}");
        assert_eq!(reload.refused(), 3);
    }

    #[test]
    fn an_address_in_use_is_noticed() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let why = can_bind(Some(address)).unwrap_err();
        assert!(why.contains(&address.to_string()), "{why}");
        drop(taken);
        assert_eq!(can_bind(Some(address)), Ok(()));
    }
}
