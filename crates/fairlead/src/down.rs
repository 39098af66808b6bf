//! `fairlead down`: removes everything that an instance left in the kernel, and nothing else.

use std::process::ExitCode;

use fairlead_bpf_loader::{Pins, PinsError};
use fairlead_driver_tun::net;

use crate::control;
use crate::instance::InstanceArgs;
use crate::screen::{print, print_error};
use crate::serve::inherit::owner;

/// What `fairlead down` takes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct DownArgs {
    /// Which instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// What the help says; `docs/operator-tools.md` has the same words.
const EXIT_CODES: &str = "Exit codes:
  0  nothing is left
  1  what was removed cannot be written to standard output
  2  the configuration or the command line is wrong
  3  the instance runs, or something is left; standard error says what";

/// Removes pinned maps, what is attached by pinned links, device, routes and rules of an instance
/// that does not run, and says what it removed. Connections that only the kernel still forwards
/// end. What is at work in another network namespace is left to a call there.
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
                told = format!("instance \"{instance}\" has left nothing\n");
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
    // The kernel's forwarding ends before what its packets need goes.
    let pins = Pins::existing(instance).map_err(|error| match error {
        PinsError::InUse(_) => format!("instance \"{instance}\" runs; end it first"),
        other => other.to_string(),
    })?;
    if let Some(pins) = pins {
        if fairlead_bpf_loader::is_at_work_elsewhere(&pins) {
            return Err(format!(
                "instance \"{instance}\" has left its fast path in another network namespace; \
                 remove it there (`ip netns exec NAME fairlead down`, or `nsenter --net=FILE`); \
                 where that namespace is gone and its interface is not, `rm -r {}` takes the \
                 program off",
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
            "instance \"{instance}\" runs: a process has its device {device}; end it first"
        ));
    }
    removed.extend(fairlead_bpf_loader::remove_filters(instance));
    for left in owned {
        removed.extend(net::remove_device(&left.device, &owner).map_err(|error| text(&error))?);
    }
    removed.extend(net::remove_leftovers().map_err(|error| text(&error))?);
    let socket = control::socket_of(instance).map_err(|error| text(&error))?;
    if control::remove_if_dead(&socket) {
        removed.push(format!("the socket {}", socket.display()));
    }
    Ok(removed)
}
