//! The datapath with and without a TCB cache, in turn, over the same connections.

use std::time::Duration;

use anyhow::Result;
use fairlead_datapath::tcb_cache::{LINE_BYTES, Scheme, Settings};
use serde_json::{Value, json};

use crate::core_bench::{BATCH, Source, Traffic, median, round};
use crate::world::World;

/// A million packets a second: what time passes for lines to go OFF.
const STEP: Duration = Duration::from_micros(BATCH as u64);

/// Scheme and capacity in bytes; the first has no cache and is what the others are measured by.
const DESIGNS: [Option<(&str, u64)>; 5] = [
    None,
    Some(("spec", 32 << 10)),
    Some(("2-universal", 32 << 10)),
    Some(("spec", 4 << 20)),
    Some(("crc", 4 << 20)),
];

fn settings((scheme, capacity_bytes): (&str, u64)) -> Result<Settings> {
    let scheme = Scheme::parse(scheme)?;
    let geometry = scheme.geometry(capacity_bytes, LINE_BYTES, 4)?;
    Ok(Settings { scheme, geometry })
}

/// One case for each design and traffic: medians over `rounds` alternations, and the median of the
/// ratios to the round without a cache that was run in the same alternation.
pub(crate) fn run(world: &mut World, packets: u64, rounds: usize) -> Result<Vec<Value>> {
    let mut cases = Vec::new();
    for traffic in [Traffic::Random, Traffic::Bursts] {
        let mut source = Source::new(world, traffic, &[], true);
        let mut rates = DESIGNS.map(|_| Vec::new());
        let mut hit_ratios = DESIGNS.map(|_| None);
        for _ in 0..rounds {
            for (at, design) in DESIGNS.into_iter().enumerate() {
                let settings = design.map(settings).transpose()?;
                world.datapath.set_tcb_cache(settings.as_ref(), 3)?;
                // A cache begins empty: the first part is not counted.
                round(world, &mut source, packets / 4, STEP)?;
                let round = round(world, &mut source, packets, STEP)?;
                rates[at].push(round.packets_per_second);
                let report = world.datapath.tcb_cache_report();
                hit_ratios[at] = report.map(|cache| cache.hit_ratio);
            }
        }
        world.datapath.set_tcb_cache(None, 0)?;
        for (at, design) in DESIGNS.into_iter().enumerate() {
            let pairs = rates[at].iter().zip(&rates[0]);
            let ratios = pairs.map(|(with, without)| with / without).collect();
            cases.push(json!({
                "connections": world.flows.len(),
                "traffic": format!("{traffic:?}").to_lowercase(),
                "scheme": design.map(|(scheme, _)| scheme),
                "capacity_bytes": design.map(|(_, bytes)| bytes),
                "packets_per_second": median(rates[at].clone()).round(),
                "to_none": (median(ratios) * 1e3).round() / 1e3,
                "hit_ratio": hit_ratios[at].map(|ratio| (ratio * 1e4).round() / 1e4),
                "rounds": rounds,
            }));
        }
    }
    Ok(cases)
}
