//! `fairlead announce`: whether a running instance announces its listening addresses.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde_json::json;

use crate::api::{Announcement, client::ask};
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES};
use crate::screen::Side::Left;
use crate::screen::{columns, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead announce`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ORDER_EXIT_CODES)]
pub struct AnnounceArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: AnnounceCommand,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum AnnounceCommand {
    /// Announce listening addresses, after looking whether another machine has them
    On(InstanceArgs),
    /// Announce nothing, so that another machine can take the addresses over
    Off(InstanceArgs),
    /// Show what is announced
    Status {
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
}

/// Runs the command.
pub fn run(args: &AnnounceArgs) -> ExitCode {
    match carried_out(&args.order) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead announce: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

const PATH: &str = "/v1/announce";

fn carried_out(order: &AnnounceCommand) -> Result<String, String> {
    let (instance, on) = match order {
        AnnounceCommand::On(instance) => (instance, true),
        AnnounceCommand::Off(instance) => (instance, false),
        AnnounceCommand::Status { json, instance } => {
            let name = instance.name()?;
            let answer: Announcement = ask(&name, Method::GET, PATH, None)?;
            if *json {
                let document = serde_json::to_string_pretty(&answer);
                return Ok(document.map_err(|error| error.to_string())? + "\n");
            }
            return Ok(shown(&answer));
        }
    };
    let body = json!({ "on": on });
    let answer: Announcement = ask(&instance.name()?, Method::PUT, PATH, Some(body))?;
    Ok(shown(&answer))
}

fn shown(answer: &Announcement) -> String {
    let word = if answer.on { "on" } else { "off" };
    let by = match answer.ordered {
        true => "by order",
        false => "as configured",
    };
    let lines = answer.addresses.iter().map(|one| {
        let words = [&one.address, &one.interface, &one.state];
        words.map(|word| plain_line(word)).to_vec()
    });
    let lines: Vec<_> = lines.collect();
    format!(
        "announcements are {word}, {by}\n{}",
        columns(2, &[Left; 3], &lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::AnnouncedStatus;

    #[test]
    fn the_state_of_each_address_is_shown() {
        let answer = Announcement {
            on: true,
            ordered: false,
            addresses: vec![AnnouncedStatus {
                address: "10.1.0.3".to_owned(),
                interface: "eth0".to_owned(),
                state: "announced".to_owned(),
            }],
        };
        let text = shown(&answer);
        assert!(
            text.starts_with("announcements are on, as configured\n"),
            "{text}"
        );
        assert!(text.contains("10.1.0.3  eth0  announced"), "{text}");
        let off = Announcement {
            ordered: true,
            ..Announcement::default()
        };
        assert_eq!(shown(&off).trim_end(), "announcements are off, by order");
    }
}
