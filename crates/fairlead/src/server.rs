//! `fairlead server`: lists the servers of a running instance, and orders what becomes of them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::api::{ServerRow, client::ask, client::encoded};
use crate::instance::InstanceArgs;
use crate::screen::Side::{Left, Right};
use crate::screen::{columns, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead server`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct ServerArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: ServerCommand,
}

/// The exit codes in `--help`; `docs/operator-tools.md` has the same text.
const EXIT_CODES: &str = "Exit codes:
  0  done
  1  refused, or not done within the time; standard error gives the reason
  2  invalid command line";

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerCommand {
    /// List servers, with what was ordered, what health checks show, and open connections
    List {
        /// Only those of this pool
        pool: Option<String>,
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Give a server no new connections; open ones go on, and so do health checks
    Drain(OutOfService),
    /// The same without health checks
    Disable(OutOfService),
    /// Give a server connections again
    Enable(Named),
    /// Change the weight of a server
    Weight {
        /// The server, as POOL/ADDRESS:PORT
        #[arg(value_name = "POOL/ADDR", value_parser = server)]
        server: Server,
        /// The weight, 0 to 1000, or a percentage of the present one (50%)
        weight: String,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Add a server to a pool; the process restarts in place, as for a reload
    Add {
        /// The pool
        pool: String,
        /// Address and port of the server
        address: String,
        /// Its weight, 0 to 1000
        #[arg(long, default_value_t = 1)]
        weight: u16,
        /// It serves only while no other server of the pool is available
        #[arg(long)]
        backup: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Remove a server from its pool; open connections go on. The process restarts in place, as for
    /// a reload
    Remove(Named),
    /// Forget what was ordered of a server: it is what the configuration says
    Reset(Named),
}

/// A server.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    /// The server, as POOL/ADDRESS:PORT
    #[arg(value_name = "POOL/ADDR", value_parser = server)]
    pub server: Server,
    /// The instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// A server that is taken out of service.
#[derive(Clone, Debug, clap::Args)]
pub struct OutOfService {
    /// The server.
    #[command(flatten)]
    pub named: Named,
    /// Wait until it has no open connections, and show how many are left
    #[arg(long)]
    pub wait: bool,
    /// Reset connections on which no packet has passed for this many seconds. Choose more than the
    /// slowest answer takes
    #[arg(long, value_name = "SECONDS", value_parser = crate::instance::seconds)]
    pub close_idle: Option<Duration>,
    /// Reset all connections that are left after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = crate::instance::seconds)]
    pub reset_after: Option<Duration>,
    /// With --wait: give up after this many seconds; the order stays
    #[arg(long, value_name = "SECONDS", value_parser = crate::instance::seconds)]
    pub timeout: Option<Duration>,
}

/// A server by its pool and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pool: String,
    address: String,
}

fn server(text: &str) -> Result<Server, String> {
    let wrong = "expected POOL/ADDRESS:PORT, as `fairlead server list` shows it";
    let (pool, address) = text.rsplit_once('/').ok_or(wrong)?;
    Ok(Server {
        pool: pool.to_owned(),
        address: address.to_owned(),
    })
}

impl Server {
    fn path(&self) -> String {
        let (pool, address) = (encoded(&self.pool), encoded(&self.address));
        format!("/v1/pools/{pool}/servers/{address}")
    }
}

/// Runs the command.
pub fn run(args: &ServerArgs) -> ExitCode {
    match carried_out(&args.order) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead server: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn carried_out(order: &ServerCommand) -> Result<String, String> {
    match order {
        ServerCommand::List {
            pool,
            json,
            instance,
        } => list(instance, pool.as_deref(), *json),
        ServerCommand::Drain(args) => taken_out(args, "drain"),
        ServerCommand::Disable(args) => taken_out(args, "maint"),
        ServerCommand::Enable(args) => patched(args, &json!({ "admin": "ready" })),
        ServerCommand::Reset(args) => patched(args, &json!({ "reset": true })),
        ServerCommand::Weight {
            server,
            weight,
            instance,
        } => {
            let name = instance.name()?;
            let weight = match weight.strip_suffix('%') {
                None => weight
                    .parse()
                    .map_err(|_| format!("{weight:?} is no weight"))?,
                Some(share) => {
                    let share: f64 = share
                        .parse()
                        .map_err(|_| format!("{weight:?} is no share"))?;
                    let now: ServerRow = ask(&name, Method::GET, &server.path(), None)?;
                    scaled(now.weight, share)?
                }
            };
            let body = json!({ "weight": weight });
            let row: ServerRow = ask(&name, Method::PATCH, &server.path(), Some(body))?;
            Ok(said(&row))
        }
        ServerCommand::Add {
            pool,
            address,
            weight,
            backup,
            instance,
        } => {
            let body = json!({ "address": address, "weight": weight, "backup": backup });
            let path = format!("/v1/pools/{}/servers", encoded(pool));
            let name = instance.name()?;
            let changes: Vec<String> = ask(&name, Method::POST, &path, Some(body))?;
            Ok(restarted(&changes))
        }
        ServerCommand::Remove(args) => {
            let name = args.instance.name()?;
            let changes: Vec<String> = ask(&name, Method::DELETE, &args.server.path(), None)?;
            Ok(restarted(&changes))
        }
    }
}

fn scaled(weight: u16, percent: f64) -> Result<u16, String> {
    let scaled = (f64::from(weight) * percent / 100.0).round();
    if !(0.0..=1_000.0).contains(&scaled) {
        return Err(format!(
            "{percent} % of {weight} is {scaled}: 0 to 1000 are possible"
        ));
    }
    Ok(scaled as u16)
}

fn restarted(changes: &[String]) -> String {
    let lines: Vec<_> = changes
        .iter()
        .map(|line| format!("{}\n", plain_line(line)))
        .collect();
    format!("restarting in place:\n{}", lines.concat())
}

fn patched(args: &Named, body: &Value) -> Result<String, String> {
    let name = args.instance.name()?;
    let row: ServerRow = ask(
        &name,
        Method::PATCH,
        &args.server.path(),
        Some(body.clone()),
    )?;
    Ok(said(&row))
}

fn said(row: &ServerRow) -> String {
    let (pool, server) = (plain_line(&row.pool), plain_line(&row.server));
    let (admin, weight, active) = (plain_line(&row.admin), row.weight, row.active);
    format!("{pool}/{server}: {admin}, weight {weight}, {active} open\n")
}

fn taken_out(args: &OutOfService, admin: &str) -> Result<String, String> {
    let name = args.named.instance.name()?;
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let body = json!({
        "admin": admin,
        "close_idle_seconds": seconds(args.close_idle),
        "reset_after_seconds": seconds(args.reset_after),
    });
    let path = args.named.server.path();
    let mut row: ServerRow = ask(&name, Method::PATCH, &path, Some(body))?;
    if !args.wait {
        return Ok(said(&row));
    }
    let begun = Instant::now();
    let mut shown = None;
    loop {
        if row.active == 0 && shown.is_some() {
            return Ok(format!(
                "{}: no connections left\n",
                args.named.server.address
            ));
        }
        if shown != Some(row.active) {
            print(&format!("{} left\n", row.active));
            shown = Some(row.active);
        }
        if args
            .timeout
            .is_some_and(|timeout| begun.elapsed() >= timeout)
        {
            return Err(format!(
                "{} connections are left; the order stays",
                row.active
            ));
        }
        std::thread::sleep(Duration::from_millis(500));
        row = ask(&name, Method::GET, &path, None)?;
    }
}

fn list(instance: &InstanceArgs, pool: Option<&str>, json: bool) -> Result<String, String> {
    let path = match pool {
        Some(pool) => format!("/v1/pools/{}/servers", encoded(pool)),
        None => "/v1/servers".to_owned(),
    };
    let name = instance.name()?;
    if json {
        let document: Value = ask(&name, Method::GET, &path, None)?;
        return Ok(format!("{document:#}\n"));
    }
    let rows: Vec<ServerRow> = ask(&name, Method::GET, &path, None)?;
    Ok(table(&rows))
}

fn table(rows: &[ServerRow]) -> String {
    let mut lines = vec![
        [
            "server", "order", "check", "state", "weight", "open", "begun", "failed",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for row in rows {
        let check = match &row.check {
            None => "-".to_owned(),
            Some(check) if check.problem.is_empty() => check.state.clone(),
            Some(check) => format!("{} ({})", check.state, check.problem),
        };
        let state = row.unavailable.clone();
        let state = state.unwrap_or_else(|| "available".to_owned());
        let weight = match row.effective_weight == f64::from(row.weight) {
            true => row.weight.to_string(),
            false => format!("{} of {}", row.effective_weight, row.weight),
        };
        let backup = if row.backup { " (backup)" } else { "" };
        let name = format!("{}/{}{backup}", row.pool, row.server);
        let numbers = [row.active, row.total, row.failures].map(|number| number.to_string());
        let mut line = vec![name, row.admin.clone(), check, state, weight];
        line.extend(numbers);
        lines.push(line);
    }
    let sides = [Left, Left, Left, Left, Right, Right, Right, Right];
    columns(0, &sides, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_by_pool_and_address() {
        let six = server("pages/[2001:db8::1]:80").unwrap();
        assert_eq!(six.path(), "/v1/pools/pages/servers/%5B2001:db8::1%5D:80");
        assert!(server("10.2.0.1:80").is_err());
    }

    #[test]
    fn shares_of_weights_are_rounded_and_bounded() {
        assert_eq!(scaled(10, 50.0), Ok(5));
        assert_eq!(scaled(1, 40.0), Ok(0));
        assert!(scaled(900, 200.0).is_err() && scaled(1, f64::NAN).is_err());
    }

    #[test]
    fn the_table_shows_why_a_server_gets_no_connections() {
        let row = ServerRow {
            pool: "api".into(),
            server: "10.2.0.1:80".into(),
            admin: "ready".into(),
            unavailable: Some("check_failed".into()),
            weight: 4,
            effective_weight: 0.5,
            backup: true,
            ..ServerRow::default()
        };
        let text = table(&[row]);
        for part in ["api/10.2.0.1:80 (backup)", "check_failed", "0.5 of 4"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
