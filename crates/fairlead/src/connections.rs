//! `fairlead connections`: lists live connections of a running instance, shows one, ends some.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use hyper::Method;
use serde_json::Value;

use crate::api::{ConnectionList, ConnectionRow, client::ask, client::encoded};
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES, seconds};
use crate::screen::Side::{Left, Right};
use crate::screen::{columns, elapsed, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead connections`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ORDER_EXIT_CODES)]
pub struct ConnectionsArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: ConnectionsCommand,
}

/// Which connections are meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// Those of this service
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Those of this pool
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Those of this server
    #[arg(long, value_name = "POOL/ADDR")]
    pub server: Option<String>,
    /// Those of clients of this address or prefix
    #[arg(long, value_name = "CIDR")]
    pub client: Option<String>,
    /// Those on which no packet has passed for this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub idle_over: Option<Duration>,
}

/// What lists are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// As they stand in the connection table.
    #[default]
    Table,
    /// The oldest first.
    Age,
    /// The longest idle first.
    Idle,
    /// Those that have carried the most bytes first.
    Bytes,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum ConnectionsCommand {
    /// List live connections
    List {
        /// Which connections.
        #[command(flatten)]
        which: Which,
        /// At most this many
        #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
        limit: u32,
        /// What the list is sorted by
        #[arg(long, value_enum, default_value_t)]
        sort: Sort,
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Show one connection as JSON
    Show {
        /// Its id, as `list` shows it
        id: String,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// End connections: both ends get a RST
    Kill {
        /// The id of one, as `list` shows it
        id: Option<String>,
        /// Which connections.
        #[command(flatten)]
        which: Which,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
}

impl Which {
    fn query(&self) -> Vec<(&'static str, String)> {
        let texts = [
            ("service", &self.service),
            ("pool", &self.pool),
            ("server", &self.server),
            ("client", &self.client),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.clone()?)));
        let idle = self
            .idle_over
            .map(|idle| ("idle_over", idle.as_secs().max(1).to_string()));
        texts.chain(idle).collect()
    }
}

fn path(query: &[(&'static str, String)]) -> String {
    let pairs: Vec<_> = query
        .iter()
        .map(|(key, value)| format!("{key}={}", encoded(value)))
        .collect();
    format!("/v1/connections?{}", pairs.join("&"))
}

/// Runs the command.
pub fn run(args: &ConnectionsArgs) -> ExitCode {
    match carried_out(&args.order) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead connections: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn carried_out(order: &ConnectionsCommand) -> Result<String, String> {
    match order {
        ConnectionsCommand::List {
            which,
            limit,
            sort,
            json,
            instance,
        } => list(instance, which, *limit, *sort, *json),
        ConnectionsCommand::Show { id, instance } => {
            let path = format!("/v1/connections/{}", encoded(id));
            let row: Value = ask(&instance.name()?, Method::GET, &path, None)?;
            Ok(format!("{row:#}\n"))
        }
        ConnectionsCommand::Kill {
            id,
            which,
            instance,
        } => {
            let query = which.query();
            let path = match id {
                Some(id) if query.is_empty() => format!("/v1/connections/{}", encoded(id)),
                Some(_) => return Err("an id or a filter, not both".to_owned()),
                None => path(&query),
            };
            let _: Value = ask(&instance.name()?, Method::DELETE, &path, None)?;
            Ok("ended\n".to_owned())
        }
    }
}

/// Connections that one answer of the API has at most.
const PAGE: u32 = 100_000;

fn list(
    instance: &InstanceArgs,
    which: &Which,
    limit: u32,
    sort: Sort,
    json: bool,
) -> Result<String, String> {
    let name = instance.name()?;
    let mut rows: Vec<ConnectionRow> = Vec::new();
    let mut after = Some(0);
    while let Some(from) = after
        && rows.len() < limit as usize
    {
        let mut query = which.query();
        query.push(("after", from.to_string()));
        // A list that is sorted needs all of them first.
        let wanted = match sort {
            Sort::Table => (limit - rows.len() as u32).min(PAGE),
            _ => PAGE,
        };
        query.push(("limit", wanted.to_string()));
        let page: ConnectionList = ask(&name, Method::GET, &path(&query), None)?;
        rows.extend(page.connections);
        after = page.next;
    }
    match sort {
        Sort::Table => {}
        Sort::Age => rows.sort_by(|one, other| other.age_seconds.total_cmp(&one.age_seconds)),
        Sort::Idle => rows.sort_by(|one, other| other.idle_seconds.total_cmp(&one.idle_seconds)),
        Sort::Bytes => rows.sort_by_key(|one| std::cmp::Reverse(one.bytes_in + one.bytes_out)),
    }
    rows.truncate(limit as usize);
    if json {
        let document = serde_json::to_value(&rows).map_err(|error| error.to_string())?;
        return Ok(format!("{document:#}\n"));
    }
    Ok(table(&rows))
}

fn table(rows: &[ConnectionRow]) -> String {
    let mut lines = vec![
        [
            "id", "client", "service", "server", "state", "age", "idle", "in", "out",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        let server = row.server.clone();
        lines.push(vec![
            row.id.clone(),
            row.client.clone(),
            row.service.clone(),
            server.unwrap_or_else(|| "-".to_owned()),
            row.state.clone(),
            elapsed(row.age_seconds as u64),
            elapsed(row.idle_seconds as u64),
            row.bytes_in.to_string(),
            row.bytes_out.to_string(),
        ]);
    }
    let sides = [Left, Left, Left, Left, Left, Right, Right, Right, Right];
    columns(0, &sides, &lines)
}
