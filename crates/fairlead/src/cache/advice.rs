//! `fairlead cache advise`: the last hour's requests, simulated by the laboratory with other sizes
//! and policies.

use std::fmt::Write;

use fairlead_http_cache::{BlockSize, Policy};
use fairlead_lab::content::{Cell, Responses, Row, Unit, simulate};
use fairlead_lab::table::{Table, percent};
use fairlead_lab::{Silent, Size};
use hyper::Method;
use serde::Serialize;

use crate::api::SampleRow;
use crate::api::client::ask;
use crate::instance::InstanceArgs;
use crate::status::plain_line;

/// Sizes beside the present one: halved and doubled so often.
const STEPS: u32 = 4;

/// The smallest cache that is simulated, blocks.
const BLOCKS_MIN: u64 = 8;

/// What other sizes and policies would have given.
#[derive(Debug, Serialize)]
struct Advice {
    service: String,
    route: String,
    /// The present ones.
    size: u64,
    policy: String,
    /// Requests in the sample, which has one URL in `one_in`, and their seconds.
    requests: usize,
    one_in: u64,
    span_s: u32,
    rows: Vec<Outcome>,
}

/// A simulation.
#[derive(Debug, Serialize)]
struct Outcome {
    size: u64,
    policy: &'static str,
    /// Share of the requests that were answered without a server, and of the bytes of bodies.
    request_hit_ratio: f64,
    byte_hit_ratio: f64,
}

pub(super) fn advise(instance: &InstanceArgs, json: bool) -> Result<String, String> {
    let name = instance.name()?;
    let samples: Vec<SampleRow> = ask(&name, Method::GET, "/v1/cache/sample", None)?;
    let all: Result<Vec<Advice>, String> = samples.iter().map(advice).collect();
    let all = all?;
    if json {
        let document = serde_json::to_value(&all).map_err(|error| error.to_string())?;
        return Ok(format!("{document:#}\n"));
    }
    Ok(all.iter().map(text).collect::<Vec<_>>().join("\n"))
}

fn advice(sample: &SampleRow) -> Result<Advice, String> {
    // A body without bytes has a head that takes memory.
    let pairs = sample
        .requests
        .iter()
        .map(|(url, bytes)| (*url, (*bytes).max(1)));
    let responses = Responses::from_pairs(pairs);
    let block = BlockSize::PAGE;
    let least = BLOCKS_MIN * u64::from(block.bytes());
    let halved = (0..=STEPS).rev().map(|step| sample.bytes >> step);
    let doubled = (1..=STEPS).map(|step| sample.bytes.saturating_mul(1 << step));
    let sizes: Vec<u64> = halved.chain(doubled).collect();
    // A sample of URLs is to a part of the cache what all of them are to the whole.
    let part = |size: u64| {
        let part = size / sample.one_in.max(1);
        Size(part - part % u64::from(block.bytes()))
    };
    let cells: Vec<Cell> = sizes
        .iter()
        .filter(|size| part(**size).0 >= least)
        .flat_map(|size| {
            Policy::ALL.map(|policy| Cell {
                size: part(*size),
                unit: Unit::File,
                block,
                policy,
                ..Cell::default()
            })
        })
        .collect();
    let results = match responses.is_empty() {
        true => Vec::new(),
        false => simulate(&responses, &cells, 1, &Silent).map_err(|error| error.to_string())?,
    };
    let shown = sizes.iter().filter(|size| part(**size).0 >= least);
    let shown = shown.flat_map(|size| [*size; Policy::ALL.len()]);
    let rows = results.iter().zip(shown).map(|(result, size)| {
        let row = Row::new(&responses, result);
        Outcome {
            size,
            policy: row.policy,
            request_hit_ratio: row.request_hit_ratio,
            byte_hit_ratio: row.removed_ratio,
        }
    });
    Ok(Advice {
        service: sample.service.clone(),
        route: sample.route.clone(),
        size: sample.bytes,
        policy: sample.policy.clone(),
        requests: sample.requests.len(),
        one_in: sample.one_in,
        span_s: sample.span_s,
        rows: rows.collect(),
    })
}

fn text(advice: &Advice) -> String {
    let mut out = format!(
        "{} {}: {} under {}; {} requests in {} min, one URL in {}\n",
        plain_line(&advice.service),
        plain_line(&advice.route),
        Size(advice.size),
        plain_line(&advice.policy),
        advice.requests,
        advice.span_s.div_ceil(60),
        advice.one_in,
    );
    if advice.rows.is_empty() {
        out += "  no requests, or too few to say anything\n";
        return out;
    }
    let names = Policy::ALL.map(Policy::name);
    let mut table = Table::new(std::iter::once("size").chain(names));
    for rows in advice.rows.chunks(Policy::ALL.len()) {
        let mark = if rows[0].size == advice.size {
            "* "
        } else {
            ""
        };
        let size = format!("{mark}{}", Size(rows[0].size));
        let shares = rows.iter().map(|row| percent(row.request_hit_ratio));
        table.row(std::iter::once(size).chain(shares));
    }
    let _ = write!(out, "Requests answered without a server\n{}", table.text(2));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(urls: u32, one_in: u64) -> SampleRow {
        let round = (0..urls).map(|url| (url, 4_000));
        SampleRow {
            bytes: 16 << 20,
            policy: "s3-fifo".to_owned(),
            one_in,
            requests: round.clone().chain(round.clone()).chain(round).collect(),
            ..SampleRow::default()
        }
    }

    #[test]
    fn a_larger_cache_is_shown_to_be_worth_it() {
        // 8,192 blocks again and again, and room for half of them.
        let advice = advice(&sample(8_192, 1)).expect("it can be simulated");
        let ratio = |size: u64, policy| {
            let mut rows = advice.rows.iter();
            let row = rows.find(|row| row.size == size && row.policy == policy);
            row.expect("a row").request_hit_ratio
        };
        assert_eq!(ratio(16 << 20, "lru"), 0.0);
        assert!((ratio(32 << 20, "lru") - 2.0 / 3.0).abs() < 1e-3);
        assert_eq!(advice.rows.len(), 9 * Policy::ALL.len());
        let text = text(&advice);
        assert!(text.contains("* 16 MiB"), "{text}");
    }

    #[test]
    fn a_sample_stands_for_all_urls() {
        let advice = advice(&sample(512, 16)).expect("it can be simulated");
        let mut rows = advice.rows.iter();
        let found = rows.find(|row| row.size == 32 << 20 && row.policy == "lru");
        assert!((found.expect("a row").request_hit_ratio - 2.0 / 3.0).abs() < 1e-3);
    }

    #[test]
    fn nothing_is_said_of_no_requests() {
        let advice = advice(&SampleRow::default()).expect("there is nothing to simulate");
        assert!(text(&advice).contains("no requests"));
    }
}
