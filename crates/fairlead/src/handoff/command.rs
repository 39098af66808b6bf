//! `fairlead handoff`: lists connections that proxies have handed off, and gives some back.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use hyper::Method;
use serde_json::Value;

use super::Handoffs;
use crate::api::client::ask;
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES};
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

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum HandoffCommand {
    /// List connections that are handed off
    List {
        /// Print the JSON document, with commands and refusals counted
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Ask all proxies to hand connections off, as far as there is room
    Take {
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Give a connection back to the proxy that handed it off, and wait until it has it
    Give {
        /// Its number, as `list` shows it
        #[arg(required_unless_present = "all")]
        number: Option<u32>,
        /// All connections
        #[arg(long, conflicts_with = "number")]
        all: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
}

/// Runs the command.
pub fn run(args: &HandoffArgs) -> ExitCode {
    let outcome = match &args.order {
        HandoffCommand::List { json, instance } => list(instance, *json),
        HandoffCommand::Take { instance } => take(instance),
        HandoffCommand::Give {
            number, instance, ..
        } => give(instance, *number),
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
