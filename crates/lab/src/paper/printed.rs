//! What the paper prints and nothing is simulated for: the time of a miss (figure 1b) and the
//! parameters of its system (table 1), held against the constants that the cost models use.

use super::{Claim, Figure, Row, published};
use crate::cost::Constants;
use crate::cost::toe::{self, Toe};
use crate::table::percent;

fn figure(id: &str, title: &str, unit: &str, x: &str) -> Figure {
    Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        unit: unit.to_owned(),
        x: x.to_owned(),
        plan: String::new(),
        rows: Vec::new(),
        claims: Vec::new(),
        notes: Vec::new(),
    }
}

fn row(series: &str, x: impl Into<String>, ours: f64, published: Option<f64>) -> Row {
    Row {
        trace: String::new(),
        synthetic: false,
        series: series.to_owned(),
        x: x.into(),
        ours,
        spread: None,
        published,
        error: published.map(|published| ours - published),
        fitted: false,
    }
}

/// Figure 1b: what a packet takes in a TCP offload engine, with a hit and with a miss.
pub(super) fn figure_1b(constants: &Constants) -> Figure {
    let mut figure = figure(
        "figure-1b",
        "Time of a packet in a TCP offload engine",
        "ns",
        "access to the TCB",
    );
    let constants = &constants.toe;
    let mut shares = Vec::new();
    let mut add = |x: String, access_ns: f64| {
        figure
            .rows
            .push(row("protocol", x.as_str(), constants.protocol_ns, None));
        figure.rows.push(row("TCB", x.as_str(), access_ns, None));
    };
    add("hit".to_owned(), constants.hit_ns);
    for accesses in [1.0, 2.0, 3.0] {
        let constants = Toe {
            memory_accesses: accesses,
            ..*constants
        };
        let access_ns = toe::receive(&constants, 1.0).tcb_ns;
        add(format!("miss, {accesses} of memory"), access_ns);
        let whole = constants.protocol_ns + access_ns;
        shares.push((
            access_ns / whole,
            format!("{} with {accesses}", percent(access_ns / whole)),
        ));
    }
    let said: Vec<&str> = shares.iter().map(|(_, text)| text.as_str()).collect();
    figure.claims.push(Claim {
        says: "with a miss, access to the TCB takes more than half of the time (section 2.1.1)"
            .to_owned(),
        trace: if *constants == Toe::default() {
            "published constants".to_owned()
        } else {
            "constants that were asked for".to_owned()
        },
        holds: Some(shares.first().is_some_and(|(share, _)| *share > 0.5)),
        ours: format!("{} accesses to memory", said.join(", ")),
    });
    figure.notes.push(
        "Figures 1a, 6 and 8 to 11 are drawings of the design. Figures 2a and 2b are a profile of \
         a Linux kernel on a machine of 2009: there is nothing of it to run here."
            .to_owned(),
    );
    figure
}

/// Table 1, as far as a model here uses it.
pub(super) fn table_1(constants: &Constants) -> Figure {
    let mut figure = figure(
        "table-1",
        "Parameters of the simulated system",
        "value",
        "parameter",
    );
    let cpu = &constants.cpu;
    for (name, ours, published) in [
        ("clock, GHz", cpu.clock_ghz, 3.0),
        ("memory, cycles", cpu.memory_cycles, 300.0),
        ("second-level cache, cycles", cpu.l2_cycles, 10.0),
        ("TCB cache, cycles", cpu.tcb_cache_cycles, 10.0),
        (
            "TCB cache, KiB",
            published::CAPACITY_BYTES as f64 / 1024.0,
            32.0,
        ),
    ] {
        figure
            .rows
            .push(row("used here", name, ours, Some(published)));
    }
    figure.notes.push(
        "The rest of the table (first-level caches, size of the second, registers of devices, \
         receive offload) belongs to a simulator of a whole system, which is not repeated: see \
         figures 18 and 19."
            .to_owned(),
    );
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_takes_more_than_half_of_the_time_when_the_lookup_counts() {
        let figure = figure_1b(&Constants::default());
        let at = |series: &str, x: &str| {
            let found = figure
                .rows
                .iter()
                .find(|row| row.series == series && row.x == x);
            found.unwrap().ours
        };
        assert_eq!(at("TCB", "hit"), 6.4);
        assert_eq!(at("protocol", "hit"), 51.2);
        // 56.4 of 107.6 ns; without the lookup in the cache it would be 50 of 101.2.
        assert_eq!(at("TCB", "miss, 1 of memory"), 56.4);
        assert_eq!(figure.claims[0].holds, Some(true));
    }

    #[test]
    fn constants_as_printed_have_no_error() {
        let table = table_1(&Constants::default());
        assert_eq!(table.rows.len(), 5);
        assert!(table.rows.iter().all(|row| row.error == Some(0.0)));
    }
}
