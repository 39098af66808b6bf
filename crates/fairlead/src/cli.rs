//! The command line.

use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Parser, Subcommand};

use crate::access::{self, AccessArgs};
use crate::announce::{self, AnnounceArgs};
use crate::cache::{self, CacheArgs};
use crate::capture::{self, CaptureArgs};
use crate::check::{self, CheckArgs};
use crate::connections::{self, ConnectionsArgs};
use crate::content::{self, ContentArgs};
use crate::demo::{self, DemoArgs};
use crate::doctor::{self, DoctorArgs};
use crate::down::{self, DownArgs};
use crate::drain::{self, DrainArgs};
use crate::handoff::{self, command::HandoffArgs};
use crate::lab;
use crate::manual::{self, CompletionsArgs, ManualArgs};
use crate::offload::{self, OffloadArgs, run::RunArgs};
use crate::reload::{self, ReloadArgs};
use crate::replay::{self, ReplayArgs};
use crate::serve::{self, ServeArgs};
use crate::server::{self, ServerArgs};
use crate::sleepers::{self, SleepersArgs};
use crate::status::{self, StatusArgs};
use crate::top::{self, TopArgs};

/// The whole command line.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "fairlead",
    version = version(),
    about = "A content-aware TCP front end for Linux",
    long_about = "A content-aware TCP front end for Linux. It reads the first bytes of a \
                  connection (an HTTP/1 request head or a TLS ClientHello), chooses a server, and \
                  splices the client's and the server's connections packet by packet.",
    propagate_version = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The version and the number of the layout of kernel maps: `0.1.0 (layout 8)`. Only builds with
/// the same layout take over each other's connections.
fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    let layout = fairlead_bpf_loader::LAYOUT_VERSION;
    TEXT.get_or_init(|| format!("{} (layout {layout})", env!("CARGO_PKG_VERSION")))
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run the switch in the foreground until it is stopped
    Serve(ServeArgs),
    /// Reload the configuration file of a running switch and report the result
    Reload(ReloadArgs),
    /// Stop accepting connections, wait for open ones to close, then stop the switch
    Drain(DrainArgs),
    /// List the servers of a running switch, and take them out of or into service
    Server(ServerArgs),
    /// List the access lists of a running switch, and change them
    Access(AccessArgs),
    /// Announce the listening addresses of a running switch, or stop that
    Announce(AnnounceArgs),
    /// List live connections of a running switch, show one, end some
    Connections(ConnectionsArgs),
    /// List connections that proxies have handed off, and give some back
    Handoff(HandoffArgs),
    /// Let a second network stack carry connections of unmodified programs
    Offload(OffloadArgs),
    /// Start a program whose connections a card may carry
    Run(RunArgs),
    /// Show what a running switch keeps of responses, and purge some
    Cache(CacheArgs),
    /// List idle connections that have outlived their socket, and end some
    Sleepers(SleepersArgs),
    /// Remove what a stopped instance left in the kernel
    ///
    /// Before Linux 6.6 the empty `clsact` queueing discipline stays on the interfaces that were
    /// served. It has no effect, and other programs may be using it.
    Down(DownArgs),
    /// Validate a configuration and show its effective settings
    Check(CheckArgs),
    /// Demonstrate the switch with real servers and a real client
    Demo(DemoArgs),
    /// Show how the switch would handle the connections in a capture file
    Replay(ReplayArgs),
    /// Show the status of a running switch
    Status(StatusArgs),
    /// Write packets of a running switch to a pcapng file, before and after translation
    Capture(CaptureArgs),
    /// Show live rates, services and servers of a running switch
    Top(TopArgs),
    /// Check whether this machine can run the switch, and suggest fixes
    Doctor(DoctorArgs),
    /// Measure what a server on this machine sends, for content caches
    Content(ContentArgs),
    /// Simulate connection-state caches on traces
    Lab(Box<fairlead_lab::cli::LabArgs>),
    /// Generate shell completions
    Completions(CompletionsArgs),
    /// Generate manual pages, one per command
    Manual(ManualArgs),
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Reload(args) => reload::run(args),
        Command::Drain(args) => drain::run(args),
        Command::Server(args) => server::run(args),
        Command::Access(args) => access::run(args),
        Command::Announce(args) => announce::run(args),
        Command::Connections(args) => connections::run(args),
        Command::Handoff(args) => handoff::command::run(args),
        Command::Offload(args) => offload::run(args),
        Command::Run(args) => offload::run::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Sleepers(args) => sleepers::run(args),
        Command::Down(args) => down::run(args),
        Command::Check(args) => check::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Status(args) => status::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Top(args) => top::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Content(args) => content::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Completions(args) => manual::completions(args),
        Command::Manual(args) => manual::manual(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_address_is_given_once() {
        let twice = [
            "fairlead",
            "status",
            "--admin",
            "127.0.0.1:1",
            "--config",
            "a.toml",
        ];
        assert!(Cli::try_parse_from(twice).is_err());
        assert!(Cli::try_parse_from(["fairlead", "status", "--admin", "localhost"]).is_err());
        let six = ["fairlead", "status", "--admin", "[::1]:9090", "--json"];
        let Command::Status(args) = Cli::try_parse_from(six).unwrap().command else {
            panic!("status")
        };
        assert_eq!(args.admin, Some("[::1]:9090".parse().unwrap()));
        assert!(args.json);
    }
}
