//! `fairlead offload`: a second network stack of Linux carries single connections of unmodified
//! programs (docs/offload.md); [`run`] loads the bypass library into such a program.

pub(crate) mod orders;
pub mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use fairlead_card::orders::orders_at;
use fairlead_card::{Settings, setup};
use fairlead_driver_tun::EndSignals;

use crate::screen::{print, print_error};

/// The card's network namespace, unless another is named.
const CARD: &str = "fairlead-card";
/// Where programs connect, unless something else is said.
pub(crate) const SOCKET: &str = "/run/fairlead-offload.sock";
/// Connections at most, unless something else is said.
const CONNECTIONS: &str = "1000";
/// Seconds without bytes after which a connection makes room, unless something else is said.
const IDLE: &str = "10";

/// The exit codes in `--help`; `docs/operator-tools.md` has the same text.
const EXIT_CODES: &str = "Exit codes:
  0  done
  1  it could not be done; see standard error
  2  invalid command line";

/// Arguments of `fairlead offload`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct OffloadArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: OffloadCommand,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum OffloadCommand {
    /// Make a card of an interface: it moves into a network namespace, and the host gets a device
    /// of the same name, addresses and routes
    Up {
        /// The interface to the network
        #[arg(long, value_name = "INTERFACE")]
        wire: String,
        /// The card's name, which becomes that of its network namespace
        #[arg(long, value_name = "NAME", default_value = CARD)]
        card: String,
    },
    /// Take the card away and give the host its interface back
    Down {
        /// The card's name
        #[arg(long, value_name = "NAME", default_value = CARD)]
        card: String,
    },
    /// Serve offloaded connections in the foreground
    ///
    /// At SIGTERM and SIGINT programs take their connections back, for two seconds at most. What
    /// was counted is written to standard output.
    Serve {
        /// The card's name
        #[arg(long, value_name = "NAME", default_value = CARD)]
        card: String,
        /// Where programs connect
        #[arg(long, value_name = "PATH", default_value = SOCKET)]
        socket: PathBuf,
        /// Connections at most; more stay with the host
        #[arg(long, value_name = "COUNT", default_value = CONNECTIONS)]
        connections: u32,
        /// How long a connection must have moved no bytes before it goes back to the host, when
        /// less than an eighth of the room is free
        #[arg(long, value_name = "SECONDS", default_value = IDLE)]
        idle: u64,
    },
    /// Show how many packets the card has steered, and where to
    Packets {
        /// The card's name
        #[arg(long, value_name = "NAME", default_value = CARD)]
        card: String,
    },
}

/// Runs the command.
pub fn run(args: &OffloadArgs) -> ExitCode {
    let outcome = match &args.order {
        OffloadCommand::Up { wire, card } => {
            setup::up(card, wire).map(|()| format!("{wire} is behind the card {card}\n"))
        }
        OffloadCommand::Down { card } => setup::down(card).map(|()| format!("removed {card}\n")),
        OffloadCommand::Serve {
            card,
            socket,
            connections,
            idle,
        } => serve(Settings {
            card: card.clone(),
            socket: socket.clone(),
            connections: *connections,
            idle: Duration::from_secs(*idle),
            orders: orders_at(card),
            at_step: |_| {},
        }),
        OffloadCommand::Packets { card } => packets(card),
    };
    match outcome {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead offload: {why}\n"));
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: Settings) -> Result<String, String> {
    let signals = EndSignals::take_over().map_err(|error| error.to_string())?;
    let stop = || matches!(signals.poll_signal(), Ok(Some(_)));
    let ready = || print("ready\n");
    let counts = fairlead_card::serve(&settings, ready, stop).map_err(|error| error.to_string())?;
    Ok(format!("{:#}\n", counts.document()))
}

fn packets(card: &str) -> Result<String, String> {
    let counts = fairlead_bpf_loader::card_counts(card).map_err(|error| error.to_string())?;
    let lines = counts.iter();
    Ok(lines
        .map(|(name, count)| format!("{name} {count}\n"))
        .collect())
}
