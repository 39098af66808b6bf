//! `fairlead down`: removes everything that a stopped instance left in the kernel, and nothing
//! else.

use std::process::ExitCode;

use fairlead_bpf_loader::{Pins, PinsError};
use fairlead_driver_tun::net;

use crate::control;
use crate::front;
use crate::instance::InstanceArgs;
use crate::screen::{print, print_error};
use crate::serve::restore::owner;

/// Arguments of `fairlead down`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct DownArgs {
    /// The instance to clean up.
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// The exit codes in `--help`; `docs/operator-tools.md` has the same text.
const EXIT_CODES: &str = "Exit codes:
  0  nothing is left
  1  standard output cannot be written
  2  invalid configuration or command line
  3  the instance is running, or something could not be removed; see standard error";

/// Removes the pinned maps and links, the device, routes and rules of an instance that is not
/// running, and lists what it removed. Connections that the kernel still forwards end. A fast path
/// in another network namespace is refused: the command must run there.
pub fn run(args: &DownArgs) -> ExitCode {
    let instance = match args.instance.name() {
        Ok(instance) => instance,
        Err(error) => {
            print_error(&format!("fairlead down: {error}\n"));
            return ExitCode::from(2);
        }
    };
    match down(&instance) {
        Ok(removed) => {
            let mut told: String = removed
                .iter()
                .map(|line| format!("removed {line}\n"))
                .collect();
            if removed.is_empty() {
                told = format!("nothing to remove for instance \"{instance}\"\n");
            }
            print(&told);
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&format!("fairlead down: {error}\n"));
            ExitCode::from(3)
        }
    }
}

fn down(instance: &str) -> Result<Vec<String>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut removed = Vec::new();
    // Kernel forwarding stops first, before the device and routes that its packets need go away.
    let pins = Pins::existing(instance).map_err(|error| match error {
        PinsError::InUse(_) => format!("instance \"{instance}\" is running; stop it first"),
        other => other.to_string(),
    })?;
    if let Some(pins) = pins {
        if fairlead_bpf_loader::is_at_work_elsewhere(&pins) {
            return Err(format!(
                "the fast path of instance \"{instance}\" is in another network namespace; run the \
                 command there (`ip netns exec NAME fairlead down`, or `nsenter --net=FILE`); if \
                 that namespace no longer exists but its interface does, `rm -r {}` detaches the \
                 program",
                pins.folder().display()
            ));
        }
        removed.extend(pins.clear().map_err(|error| text(&error))?);
    }
    let owner = owner(instance);
    let owned = net::owned_by(&owner).map_err(|error| text(&error))?;
    if let Some(running) = owned.iter().find(|one| one.in_use) {
        let device = &running.device;
        return Err(format!(
            "instance \"{instance}\" is running: a process has its device {device} open; stop it \
             first"
        ));
    }
    removed.extend(fairlead_bpf_loader::remove_filters(instance));
    for left in owned {
        removed.extend(net::remove_device(&left.device, &owner).map_err(|error| text(&error))?);
    }
    removed.extend(net::remove_leftovers().map_err(|error| text(&error))?);
    let socket = control::socket_of(instance).map_err(|error| text(&error))?;
    if control::remove_if_dead(&socket) {
        removed.push(format!("socket {}", socket.display()));
    }
    for file in front::remove_of(instance).map_err(|error| text(&error))? {
        removed.push(format!("stored responses {}", file.display()));
    }
    Ok(removed)
}
