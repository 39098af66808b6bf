//! `fairlead sleepers`: lists idle connections that have outlived their socket, and ends some.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde_json::Value;

use crate::api::client::{ask, encoded};
use crate::api::{Ended, SleeperList, SleeperRow};
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES};
use crate::screen::Side::{Left, Right};
use crate::screen::{columns, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead sleepers`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ORDER_EXIT_CODES)]
pub struct SleepersArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: SleepersCommand,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum SleepersCommand {
    /// List connections without a socket, those that have slept longest first (at most 1,000)
    List {
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// End a connection without a socket; its client gets a FIN
    End {
        /// The client's address and port, as `list` shows them
        #[arg(value_name = "ADDRESS:PORT", required_unless_present = "all")]
        client: Option<String>,
        /// All of them
        #[arg(long, conflicts_with = "client")]
        all: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
}

/// Runs the command.
pub fn run(args: &SleepersArgs) -> ExitCode {
    let outcome = match &args.order {
        SleepersCommand::List { json, instance } => list(instance, *json),
        SleepersCommand::End {
            client, instance, ..
        } => end(instance, client.as_deref()),
    };
    match outcome {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead sleepers: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn list(instance: &InstanceArgs, json: bool) -> Result<String, String> {
    let name = instance.name()?;
    let document: Value = ask(&name, Method::GET, "/v1/sleepers", None)?;
    if json {
        return Ok(format!("{document:#}\n"));
    }
    let list = serde_json::from_value(document);
    let list = list.map_err(|error| format!("unexpected answer: {error}"))?;
    Ok(table(&list))
}

fn table(list: &SleeperList) -> String {
    if list.asleep == 0 {
        return "no connection sleeps\n".to_owned();
    }
    let head = ["client", "listen", "listener", "seconds", "of"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(list.sleepers.iter().map(words));
    let mut text = columns(0, &[Left, Left, Left, Right, Right], &lines);
    let more = list.asleep.saturating_sub(list.sleepers.len());
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}

fn words(row: &SleeperRow) -> Vec<String> {
    vec![
        plain_line(&row.client),
        plain_line(&row.listen),
        plain_line(&row.listener),
        row.seconds.to_string(),
        row.sleep_max_seconds.to_string(),
    ]
}

fn end(instance: &InstanceArgs, client: Option<&str>) -> Result<String, String> {
    let name = instance.name()?;
    let path = match client {
        Some(client) => format!("/v1/sleepers/{}", encoded(client)),
        None => "/v1/sleepers?all=true".to_owned(),
    };
    let ended: Ended = ask(&name, Method::DELETE, &path, None)?;
    Ok(format!("{} ended\n", ended.ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_are_listed_with_what_is_left_out() {
        let row = SleeperRow {
            client: "[2001:db8::7]:40000".to_owned(),
            listen: "[2001:db8::10]:80".to_owned(),
            listener: "[::1]:8080".to_owned(),
            seconds: 61,
            sleep_max_seconds: 3_600,
        };
        let mut list = SleeperList {
            asleep: 3,
            sleepers: vec![row],
        };
        let text = table(&list);
        assert!(
            text.contains("[2001:db8::7]:40000  [2001:db8::10]:80  [::1]:8080       61  3600"),
            "{text}"
        );
        assert!(text.ends_with("and 2 more\n"), "{text}");
        list.asleep = 0;
        assert_eq!(table(&list), "no connection sleeps\n");
    }
}
