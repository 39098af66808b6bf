//! `fairlead access`: lists the access lists of a running instance, and changes them.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use crate::api::{AccessDetail, AccessRow, EntryRow, client::ask, client::encoded};
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES};
use crate::screen::Side::{Left, Right};
use crate::screen::{columns, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead access`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ORDER_EXIT_CODES)]
pub struct AccessArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: AccessCommand,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum AccessCommand {
    /// List the access lists that services use, or the prefixes of one (at most 1,000)
    List {
        /// The list
        list: Option<String>,
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Add a prefix to a list; it holds for new connections at once
    ///
    /// Without --allow or --deny it gets the opposite of the list's default.
    Add {
        /// The list, and the prefix.
        #[command(flatten)]
        entry: Entry,
        /// Allow its clients
        #[arg(long, conflicts_with = "deny")]
        allow: bool,
        /// Deny its clients
        #[arg(long)]
        deny: bool,
    },
    /// Remove a prefix from a list
    Remove(Entry),
}

/// A prefix of a list.
#[derive(Clone, Debug, clap::Args)]
pub struct Entry {
    /// The list
    pub list: String,
    /// A prefix (10.0.0.0/8) or an address
    #[arg(value_name = "CIDR")]
    pub prefix: String,
    /// The instance.
    #[command(flatten)]
    pub instance: InstanceArgs,
}

/// Runs the command.
pub fn run(args: &AccessArgs) -> ExitCode {
    match carried_out(&args.order) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead access: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn carried_out(order: &AccessCommand) -> Result<String, String> {
    match order {
        AccessCommand::List {
            list: None,
            json,
            instance,
        } => {
            let name = instance.name()?;
            let document: Value = ask(&name, Method::GET, "/v1/access", None)?;
            if *json {
                return Ok(format!("{document:#}\n"));
            }
            let rows: Vec<AccessRow> = read(document)?;
            Ok(table(&rows))
        }
        AccessCommand::List {
            list: Some(list),
            json,
            instance,
        } => {
            let name = instance.name()?;
            let path = format!("/v1/access/{}", encoded(list));
            let document: Value = ask(&name, Method::GET, &path, None)?;
            if *json {
                return Ok(format!("{document:#}\n"));
            }
            Ok(detail(&read(document)?))
        }
        AccessCommand::Add { entry, allow, deny } => {
            let verdict = match (allow, deny) {
                (true, _) => Some("allow"),
                (_, true) => Some("deny"),
                _ => None,
            };
            let path = format!("/v1/access/{}/entries", encoded(&entry.list));
            let body = json!({ "prefix": entry.prefix, "verdict": verdict });
            ordered(entry, Method::POST, &path, Some(body))
        }
        AccessCommand::Remove(entry) => {
            let (list, prefix) = (encoded(&entry.list), encoded(&entry.prefix));
            let path = format!("/v1/access/{list}/entries/{prefix}");
            ordered(entry, Method::DELETE, &path, None)
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(document: Value) -> Result<T, String> {
    serde_json::from_value(document).map_err(|error| format!("unexpected answer: {error}"))
}

fn ordered(
    entry: &Entry,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<String, String> {
    let name = entry.instance.name()?;
    let row: EntryRow = ask(&name, method, path, body)?;
    let (prefix, verdict) = (plain_line(&row.prefix), plain_line(&row.verdict));
    Ok(format!("{} {prefix}: {verdict}\n", plain_line(&entry.list)))
}

fn table(rows: &[AccessRow]) -> String {
    if rows.is_empty() {
        return "no service uses an access list\n".to_owned();
    }
    let head = ["list", "others", "prefixes", "ordered", "services"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        lines.push(vec![
            plain_line(&row.name),
            row.default.clone(),
            row.prefixes.to_string(),
            row.orders.len().to_string(),
            plain_line(&row.services.join(", ")),
        ]);
    }
    columns(0, &[Left, Left, Right, Right, Left], &lines)
}

fn detail(list: &AccessDetail) -> String {
    let mut lines = Vec::new();
    let was_ordered = |prefix: &str| list.row.orders.iter().any(|one| one.prefix == prefix);
    for entry in &list.entries {
        let ordered = if was_ordered(&entry.prefix) {
            "ordered"
        } else {
            ""
        };
        let words = [&entry.prefix, &entry.verdict, ordered];
        lines.push(words.map(plain_line).to_vec());
    }
    let removed = list.row.orders.iter();
    for entry in removed.filter(|one| one.verdict == "removed") {
        let words = [&entry.prefix, "removed", "ordered"];
        lines.push(words.map(plain_line).to_vec());
    }
    let mut text = columns(0, &[Left, Left, Left], &lines);
    let more = list.row.prefixes.saturating_sub(list.entries.len());
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text + &format!("all others: {}\n", plain_line(&list.row.default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_shown_with_what_was_ordered_and_what_is_left_out() {
        let entry = |prefix: &str, verdict: &str| EntryRow {
            prefix: prefix.to_owned(),
            verdict: verdict.to_owned(),
        };
        let list = AccessDetail {
            row: AccessRow {
                name: "office".to_owned(),
                default: "deny".to_owned(),
                services: vec!["web".to_owned()],
                prefixes: 3,
                orders: vec![
                    entry("10.1.2.3/32", "deny"),
                    entry("192.0.2.0/24", "removed"),
                ],
            },
            entries: vec![entry("10.0.0.0/8", "allow"), entry("10.1.2.3/32", "deny")],
        };
        let text = detail(&list);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "10.0.0.0/8    allow",
                "10.1.2.3/32   deny     ordered",
                "192.0.2.0/24  removed  ordered",
                "and 1 more",
                "all others: deny",
            ]
        );
        let text = table(&[list.row]);
        assert!(
            text.contains("office  deny           3        2  web"),
            "{text}"
        );
        assert!(table(&[]).contains("no service"));
    }
}
