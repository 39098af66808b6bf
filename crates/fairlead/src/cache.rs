//! `fairlead cache`: what is kept, why, and away with it.

mod advice;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use crate::api::client::{ask, encoded};
use crate::api::{CacheRow, ExplainRow, PurgeOrder, Purged};
use crate::config::show_size;
use crate::instance::{InstanceArgs, ORDER_EXIT_CODES};
use crate::screen::Side::{Left, Right};
use crate::screen::{columns, plural, print, print_error};
use crate::status::plain_line;

/// Arguments of `fairlead cache`.
#[derive(Clone, Debug, Args)]
#[command(after_help = ORDER_EXIT_CODES)]
pub struct CacheArgs {
    /// What to do.
    #[command(subcommand)]
    pub order: CacheCommand,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum CacheCommand {
    /// Show the caches: memory, objects, hits, misses
    Stat {
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Show what is kept for a URL, and whether it would be sent
    Explain {
        /// As a client asks for it: http://host/path
        url: String,
        /// Print the JSON document
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Show what other sizes and policies would have given for the last hour's requests
    Advise {
        /// Print the JSON document: every simulation
        #[arg(long)]
        json: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
    /// Have responses fetched anew
    Purge {
        /// What to purge.
        #[command(flatten)]
        what: What,
        /// What is purged may be sent while it is validated
        #[arg(long)]
        soft: bool,
        /// The instance.
        #[command(flatten)]
        instance: InstanceArgs,
    },
}

/// What to purge.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct What {
    /// All variants of one URL
    #[arg(long)]
    url: Option<String>,
    /// All URLs below this one: http://host/images/
    #[arg(long, value_name = "URL")]
    prefix: Option<String>,
    /// All responses with this tag in Cache-Tag, Surrogate-Key or xkey
    #[arg(long)]
    tag: Option<String>,
    /// Everything
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub fn run(args: &CacheArgs) -> ExitCode {
    let outcome = match &args.order {
        CacheCommand::Stat { json, instance } => stat(instance, *json),
        CacheCommand::Advise { json, instance } => advice::advise(instance, *json),
        CacheCommand::Explain {
            url,
            json,
            instance,
        } => explain(instance, url, *json),
        CacheCommand::Purge {
            what,
            soft,
            instance,
        } => purge(instance, what, *soft),
    };
    match outcome {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_error(&format!("fairlead cache: {}\n", plain_line(&why)));
            ExitCode::FAILURE
        }
    }
}

fn stat(instance: &InstanceArgs, json: bool) -> Result<String, String> {
    let name = instance.name()?;
    let document: Value = ask(&name, Method::GET, "/v1/cache", None)?;
    if json {
        return Ok(format!("{document:#}\n"));
    }
    let rows: Result<Vec<CacheRow>, _> = serde_json::from_value(document);
    let rows = rows.map_err(|error| format!("unexpected answer: {error}"))?;
    Ok(table(&rows))
}

fn table(rows: &[CacheRow]) -> String {
    let head = [
        "service",
        "route",
        "used",
        "of",
        "objects",
        "requests",
        "hits",
        "in kernel",
        "misses",
        "validated",
        "passed",
        "evicted",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let share = match row.requests {
            0 => String::new(),
            requests => format!(" ({} %)", row.hits * 100 / requests),
        };
        lines.push(vec![
            plain_line(&row.service),
            plain_line(&row.route),
            show_size(row.bytes_used),
            show_size(row.bytes),
            row.objects.to_string(),
            row.requests.to_string(),
            format!("{}{share}", row.hits),
            row.kernel_hits.to_string(),
            row.misses.to_string(),
            row.validations.to_string(),
            row.passed.to_string(),
            row.evicted.to_string(),
        ]);
    }
    let mut sides = vec![Left, Left];
    sides.extend([Right; 10]);
    columns(0, &sides, &lines)
}

fn explain(instance: &InstanceArgs, url: &str, json: bool) -> Result<String, String> {
    let name = instance.name()?;
    let path = format!("/v1/cache/explain?url={}", encoded(url));
    let document: Value = ask(&name, Method::GET, &path, None)?;
    if json {
        return Ok(format!("{document:#}\n"));
    }
    let rows: Result<Vec<ExplainRow>, _> = serde_json::from_value(document);
    let rows = rows.map_err(|error| format!("unexpected answer: {error}"))?;
    Ok(rows.iter().map(explained).collect())
}

fn explained(row: &ExplainRow) -> String {
    let mut text = format!("{} {}: ", plain_line(&row.service), plain_line(&row.route));
    text += &match row.variants.len() {
        0 => "nothing is kept".to_owned(),
        count => plural(count, "response"),
    };
    if row.fetches > 0 {
        text += &format!(", {} under way", plural(row.fetches, "request"));
    }
    if row.uncacheable {
        text += ", the last response could not be shared";
    }
    text.push('\n');
    for one in &row.variants {
        let fit = match (one.purged, one.complete) {
            (true, _) => "purged",
            (_, false) => "still being received",
            _ => &one.fit,
        };
        text += &format!(
            "  {} {}, age {} s of {} s, {} bytes",
            one.status,
            plain_line(fit),
            one.age,
            one.lifetime,
            one.body_bytes
        );
        if let Some(etag) = &one.etag {
            text += &format!(", ETag {}", plain_line(etag));
        }
        if !one.vary.is_empty() {
            text += &format!(", Vary: {}", plain_line(&one.vary.join(", ")));
        }
        text.push('\n');
    }
    text
}

fn purge(instance: &InstanceArgs, what: &What, soft: bool) -> Result<String, String> {
    let name = instance.name()?;
    let order = PurgeOrder {
        url: what.url.clone(),
        prefix: what.prefix.clone(),
        tag: what.tag.clone(),
        all: what.all,
        soft,
    };
    let body = serde_json::to_value(order).map_err(|error| error.to_string())?;
    let done: Purged = ask(&name, Method::POST, "/v1/cache/purge", Some(body))?;
    Ok(format!("purged in {}\n", plural(done.caches, "cache")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::VariantRow;

    #[test]
    fn caches_and_what_they_keep_are_shown() {
        let row = CacheRow {
            service: "web".into(),
            route: "#1".into(),
            bytes: 256 << 20,
            bytes_used: 1 << 20,
            requests: 200,
            hits: 150,
            ..CacheRow::default()
        };
        let text = table(&[row]);
        assert!(
            text.contains("150 (75 %)") && text.contains("256MiB"),
            "{text}"
        );
        let mut known = ExplainRow {
            service: "web".into(),
            route: "#1".into(),
            ..ExplainRow::default()
        };
        assert_eq!(explained(&known), "web #1: nothing is kept\n");
        known.variants.push(VariantRow {
            status: 200,
            fit: "fresh".into(),
            age: 3,
            lifetime: 60,
            complete: true,
            body_bytes: 5,
            etag: Some("\"1\"".into()),
            ..VariantRow::default()
        });
        let expected = "web #1: 1 response\n  200 fresh, age 3 s of 60 s, 5 bytes, ETag \"1\"\n";
        assert_eq!(explained(&known), expected);
    }
}
