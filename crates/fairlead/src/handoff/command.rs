//! `fairlead handoff`: lists connections that proxies have handed off, and gives some back; with
//! `--card` those of the programs above a card.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use hyper::Method;
use serde_json::Value;

use super::Handoffs;
use crate::api::client::ask;
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES};
use crate::offload::orders;
use crate::screen::Side::{Left, Right};
use crate::screen::{columns, print, print_error};
use crate::status::plain_line;

/// How long `give` waits for owners to take their connections.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Arguments of `fairlead handoff`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ORDER_EXIT_CODES)]
pub struct HandoffArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: HandoffCommand,
}

/// What carries the connections.
#[derive(Clone, Debug, clap::Args)]
pub struct CarrierArgs {
    /// The instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
    /// Connections on this card of `fairlead offload`, instead of those of an instance
    #[arg(long, value_name = "NAME", conflicts_with_all = ["instance", "config"])]
    pub card: Option<String>,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum HandoffCommand {
    /// List connections that are handed off
    List {
        /// Print the JSON document, with commands and refusals counted
        #[arg(long)]
        json: bool,
        /// Where the connections are.
        #[command(flatten)]
        carrier: CarrierArgs,
    },
    /// Ask all proxies to hand connections off, as far as there is room; with --card: connections
    /// that were given back may be handed off again
    Take {
        /// Where the connections are.
        #[command(flatten)]
        carrier: CarrierArgs,
    },
    /// Give a connection back to the proxy or program that handed it off, and wait until it has it
    Give {
        /// Its number, as `list` shows it
        #[arg(required_unless_present = "all")]
        number: Option<u32>,
        /// All connections
        #[arg(long, conflicts_with = "number")]
        all: bool,
        /// Where the connections are.
        #[command(flatten)]
        carrier: CarrierArgs,
    },
}

/// Runs the command.
pub fn run(args: &HandoffArgs) -> ExitCode {
    let (HandoffCommand::List { carrier, .. }
    | HandoffCommand::Take { carrier }
    | HandoffCommand::Give { carrier, .. }) = &args.order;
    let instance = &carrier.instance;
    let outcome = match (&args.order, &carrier.card) {
        (HandoffCommand::List { json, .. }, None) => list(instance, *json),
        (HandoffCommand::List { json, .. }, Some(card)) => orders::list(card, *json),
        (HandoffCommand::Take { .. }, None) => take(instance),
        (HandoffCommand::Take { .. }, Some(card)) => orders::take(card),
        (HandoffCommand::Give { number, .. }, None) => give(instance, *number),
        (HandoffCommand::Give { number, .. }, Some(card)) => orders::give(card, *number),
    };
    match outcome {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead handoff: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn list(instance: &InstanceArgs, json: bool) -> Result<String, String> {
    let name = instance.name()?;
    if json {
        let all: Value = ask(&name, Method::GET, "/v1/handoffs", None)?;
        return Ok(format!("{all:#}\n"));
    }
    let all: Handoffs = ask(&name, Method::GET, "/v1/handoffs", None)?;
    let head = [
        "number", "user", "phase", "seconds", "in", "out", "client", "listen", "source", "server",
    ];
    let rows = all.handoffs.iter().map(|row| {
        vec![
            row.cid.to_string(),
            row.user.to_string(),
            row.phase.clone(),
            row.seconds.to_string(),
            row.bytes_in.to_string(),
            row.bytes_out.to_string(),
            row.client.clone(),
            row.listen.clone(),
            row.source.clone(),
            row.server.clone(),
        ]
    });
    let rows: Vec<_> = [head.map(str::to_owned).to_vec()]
        .into_iter()
        .chain(rows)
        .collect();
    let sides = [
        Right, Right, Left, Right, Right, Right, Left, Left, Left, Left,
    ];
    Ok(columns(0, &sides, &rows))
}

/// Asks for connections.
fn take(instance: &InstanceArgs) -> Result<String, String> {
    let answer: Value = ask(&instance.name()?, Method::POST, "/v1/handoffs/take", None)?;
    match answer["asked"].as_u64() {
        Some(0) | None => Err("no proxy is connected".to_owned()),
        Some(1) => Ok("asked 1 proxy\n".to_owned()),
        Some(count) => Ok(format!("asked {count} proxies\n")),
    }
}

/// Gives one connection back, or all.
fn give(instance: &InstanceArgs, number: Option<u32>) -> Result<String, String> {
    let name = instance.name()?;
    let here = || -> Result<Vec<u32>, String> {
        let all: Handoffs = ask(&name, Method::GET, "/v1/handoffs", None)?;
        Ok(all.handoffs.iter().map(|row| row.cid).collect())
    };
    let wanted = match number {
        Some(number) => vec![number],
        None => here()?,
    };
    for number in &wanted {
        let path = format!("/v1/handoffs/{number}/give");
        let asked: Result<Value, String> = ask(&name, Method::POST, &path, None);
        asked.map_err(|why| format!("{number}: {why}"))?;
    }
    until_given(&wanted, here)
}

/// Waits until none of these connections is on the list any more.
pub(crate) fn until_given(
    wanted: &[u32],
    here: impl Fn() -> Result<Vec<u32>, String>,
) -> Result<String, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = here()?;
        let left = wanted.iter().filter(|number| left.contains(number)).count();
        match left {
            0 => return Ok(format!("{} given back\n", wanted.len())),
            _ if Instant::now() > until => {
                return Err(format!("{left} of {} were not taken", wanted.len()));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}
