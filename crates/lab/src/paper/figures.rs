//! Tables from runs: our value, the published value if there is one, the error.

use super::claims::{self, EXACT_LRU};
use super::measure::{HASH_DRAWS, Measured, PLANS, Ratios};
use super::{Figure, PaperSpec, Row, printed, published};
use crate::cost::{cpu, gates, toe};
use crate::stat::histogram::Histogram;
use crate::table::grouped;

/// All figures, in the paper's order.
pub(super) fn figures(measured: &[Measured], asked: &PaperSpec) -> Vec<Figure> {
    vec![
        printed::figure_1b(&asked.constants),
        figure_3(measured, "a"),
        figure_3(measured, "b"),
        figure_4(measured),
        figure_5(measured),
        figure_7(measured),
        relative(measured, 6, "Bits of a stamp", "exact", |ratios| {
            let scheme = &ratios.run.scheme;
            let bits = scheme.split_once("stamp_bits=").map(|(_, bits)| bits);
            let usual = match scheme.as_str() {
                EXACT_LRU => "exact",
                _ => "16",
            };
            bits.unwrap_or(usual).to_owned()
        }),
        figure_12(measured),
        figure_12_models(measured),
        relative(measured, 2, "Index bits", "all48", |ratios| {
            ratios.run.index_bits.clone().unwrap_or_default()
        }),
        relative(measured, 3, "Replacement policies", "spec", |ratios| {
            ratios.run.scheme.clone()
        }),
        relative(measured, 4, "Capacity", "32 KiB", |ratios| {
            ratios.run.capacity.to_string()
        }),
        relative(measured, 5, "Ways of a bank's sets", "4", |ratios| {
            ratios.run.ways.to_string()
        }),
        printed::table_1(&asked.constants),
        figure_17(measured, asked),
        figure_18_19(measured, asked),
        hash_draws(measured),
        gate_table(asked),
    ]
}

fn row(one: &Measured, series: impl Into<String>, x: impl Into<String>, ours: f64) -> Row {
    Row {
        trace: one.note.given.name.clone(),
        synthetic: one.note.given.synthetic,
        series: series.into(),
        x: x.into(),
        ours,
        spread: None,
        published: None,
        error: None,
        fitted: false,
    }
}

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

fn figure_3(measured: &[Measured], part: &str) -> Figure {
    let (id, title) = match part {
        "a" => ("figure-3a", "Time between accesses within ON"),
        _ => ("figure-3b", "OFF times"),
    };
    let mut figure = figure(id, title, "share of gaps", "seconds, upper end");
    for one in measured {
        let histogram: &Histogram = if part == "a" {
            &one.gaps.on
        } else {
            &one.gaps.off
        };
        for (bin, share) in histogram.shares().into_iter().enumerate() {
            figure
                .rows
                .push(row(one, "share", histogram.name(bin), share));
        }
        if part == "a" {
            figure.claims.push(claims::on_gaps(one));
        }
    }
    figure.notes.push(
        "Logs have whole seconds and do not say which requests belong to one page: gaps up to \
         5 s, where figure 3a ends, are taken for ON, longer ones for OFF. The figure is drawn; \
         there are no numbers to hold against."
            .to_owned(),
    );
    if part != "a" {
        figure.notes.push(pauses_cut(measured));
    }
    figure
}

/// How long pauses were looked for: longer ones than that cannot be among them.
fn pauses_cut(measured: &[Measured]) -> String {
    let within = measured.iter().map(|one| {
        let seconds = grouped(one.gaps.within_s.round() as u64);
        format!("{} {seconds} s", one.note.given.name)
    });
    let within: Vec<String> = within.collect();
    format!(
        "A pause is seen where it begins and ends within what was looked at ({}): of pauses that \
         are not much shorter than that, many are missing.",
        within.join(", ")
    )
}

fn figure_4(measured: &[Measured]) -> Figure {
    let mut figure = relative(measured, 0, "Index functions", "mod", |ratios| {
        ratios.run.scheme.clone()
    });
    for one in measured {
        figure.claims.extend(claims::index_functions(one));
    }
    figure
}

fn figure_5(measured: &[Measured]) -> Figure {
    let mut figure = figure(
        "figure-5",
        "Deviation of the number of sessions in a set from its mean",
        "share of sets",
        "|X − E X| in sessions",
    );
    for one in measured {
        for spread in &one.stat.spread {
            for (off, share) in with_zeros(&spread.pdf) {
                figure
                    .rows
                    .push(row(one, spread.scheme.clone(), off.to_string(), share));
            }
        }
        figure.claims.push(claims::evenness(one));
    }
    figure.notes.push(
        "With several functions a session counts for the set with the fewest sessions so far: \
         the paper does not say how it counts. Drawn for Saskatchewan only."
            .to_owned(),
    );
    figure
}

/// Values that occur, with a share of 0 on both sides of each that stands alone: whoever joins the
/// points is not to draw anything where there is nothing.
fn with_zeros(pdf: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let occurring = pdf.iter().flat_map(|&(off, share)| {
        let before = off.checked_sub(1).map(|before| (before, 0.0));
        before.into_iter().chain([(off, share), (off + 1, 0.0)])
    });
    let mut shares = std::collections::BTreeMap::new();
    for (off, share) in occurring {
        // Of two neighbours neither has a place that is empty there.
        *shares.entry(off).or_insert(0.0) += share;
    }
    shares.into_iter().collect()
}

fn figure_7(measured: &[Measured]) -> Figure {
    let mut figure = figure(
        "figure-7",
        "Average value of each bit of session identifiers",
        "average",
        "bit, the first is the most significant",
    );
    for one in measured {
        let bits = &one.stat.bits;
        for (series, values) in [("address", &bits.address), ("port", &bits.port)] {
            for (bit, value) in values.iter().enumerate() {
                figure.rows.push(row(one, series, bit.to_string(), *value));
            }
        }
        figure.claims.extend(claims::bits(one));
    }
    figure.notes.push(
        "Logs have no ports: those here are the expansion's model. Clients that a log names have \
         hashes for addresses, whose bits are even by construction."
            .to_owned(),
    );
    figure
}

fn figure_12(measured: &[Measured]) -> Figure {
    let mut figure = figure(
        "figure-12",
        "Miss ratio per packet at 32 KiB",
        "miss ratio",
        "scheme",
    );
    figure.plan = PLANS[1].text.to_owned();
    for one in measured {
        let given = &one.note.given;
        let published = published_row(one);
        for (column, ratios) in one.plans[1].iter().enumerate() {
            let ours = ratios.mean();
            let theirs = published.map(|row| row.miss_ratios[column]);
            figure.rows.push(Row {
                spread: ratios.spread(),
                published: theirs,
                error: theirs.map(|theirs| ours - theirs),
                fitted: column == 0 && given.fitted_to.is_some(),
                ..row(one, "miss ratio", ratios.run.scheme.clone(), ours)
            });
        }
        for (name, by_seed) in &one.beside {
            let mean = by_seed.iter().sum::<f64>() / by_seed.len().max(1) as f64;
            figure.rows.push(row(one, "beside", name.clone(), mean));
        }
        figure.claims.push(claims::order_of_figure_12(one));
    }
    figure.notes.push(
        "Only the number of open sessions was fitted, to TCB(Mod) and under the first seed; the \
         other columns are predictions. A synthetic row has nothing of a trace but that one \
         number, to whose row it is held."
            .to_owned(),
    );
    figure
}

/// Figure 12 under each variant of what the paper leaves open.
fn figure_12_models(measured: &[Measured]) -> Figure {
    let mut figure = figure(
        "figure-12-models",
        "Figure 12 under other models of packets and ports, each fitted to TCB(Mod) by itself",
        "miss ratio",
        "scheme",
    );
    for one in measured {
        let published = published_row(one);
        for variant in &one.variants {
            for (column, (scheme, ours)) in variant.ratios.iter().enumerate() {
                let theirs = published.and_then(|row| row.miss_ratios.get(column).copied());
                figure.rows.push(Row {
                    published: theirs,
                    error: theirs.map(|theirs| ours - theirs),
                    fitted: column == 0,
                    ..row(one, variant.name.clone(), scheme.clone(), *ours)
                });
            }
        }
    }
    figure.notes.push(
        "The paper says that ports start at 1024 and stay within a range of 256, not how they are \
         spread, and counts packets without saying which. How far TCB(Mod) is from the others \
         hangs on the first, what a load looks like on the second."
            .to_owned(),
    );
    figure
}

/// The row of figure 12 that a trace is held against.
fn published_row(one: &Measured) -> Option<&'static published::Figure12> {
    let given = &one.note.given;
    published::FIGURE_12.iter().find(|row| {
        given.paper_trace == Some(row.trace)
            || given.synthetic && given.fitted_to == Some(row.miss_ratios[0])
    })
}

/// A figure of miss ratios against one of them.
fn relative(
    measured: &[Measured],
    plan: usize,
    title: &str,
    against: &str,
    x: impl Fn(&Ratios) -> String,
) -> Figure {
    let id = PLANS[plan].id;
    let mut figure = figure(id, title, &format!("miss ratio / that of {against}"), "");
    figure.x = title.to_lowercase();
    figure.plan = PLANS[plan].text.to_owned();
    for one in measured {
        let all = &one.plans[plan];
        let Some(base) = all
            .iter()
            .find(|ratios| x(ratios) == against)
            .map(Ratios::mean)
        else {
            continue;
        };
        for ratios in all {
            let of = |value: f64| if base > 0.0 { value / base } else { 0.0 };
            figure.rows.push(Row {
                spread: ratios.spread().map(of),
                ..row(one, "relative", x(ratios), of(ratios.mean()))
            });
            figure
                .rows
                .push(row(one, "miss ratio", x(ratios), ratios.mean()));
        }
        figure.claims.extend(claims::of_plan(id, one));
    }
    figure
        .notes
        .push("The figure is drawn; there are no numbers to hold against.".to_owned());
    figure
}

fn figure_17(measured: &[Measured], asked: &PaperSpec) -> Figure {
    let mut figure = figure(
        "figure-17",
        "Receive time in a TCP offload engine",
        "time / that with TCB(Mod)",
        "scheme",
    );
    for constants in claims::toe_models(&asked.constants.toe) {
        let accesses = constants.memory_accesses;
        for one in measured {
            let all = &one.plans[1];
            let base = all.first().map_or(0.0, Ratios::mean);
            for ratios in all {
                let left = 1.0 - toe::saved_share(&constants, base, ratios.mean());
                let series = format!("{accesses} accesses to memory for a miss");
                figure
                    .rows
                    .push(row(one, series, ratios.run.scheme.clone(), left));
            }
        }
    }
    for one in measured {
        figure.claims.push(claims::toe(one, asked));
    }
    figure.claims.push(claims::toe_of_published(asked));
    let toe::Toe {
        protocol_ns,
        hit_ns,
        memory_ns,
        ..
    } = asked.constants.toe;
    figure.notes.push(format!(
        "Protocol {protocol_ns} ns, hit {hit_ns} ns, memory {memory_ns} ns. The paper draws one \
         access for a miss (figure 1b) and says that there are more."
    ));
    figure
}

fn figure_18_19(measured: &[Measured], asked: &PaperSpec) -> Figure {
    let mut figure = figure(
        "figure-18-19",
        "Processor time for a request with a TCB cache",
        "cycles",
        "scheme",
    );
    for one in measured {
        for ratios in &one.plans[1] {
            let time = cpu::request(&asked.constants.cpu, ratios.mean());
            let scheme = &ratios.run.scheme;
            figure
                .rows
                .push(row(one, "saved", scheme.clone(), time.saved_cycles));
            figure.rows.push(row(
                one,
                "for the TCB",
                scheme.clone(),
                time.tcb_cache_cycles,
            ));
        }
        figure.claims.extend(claims::cpu(one, asked));
    }
    figure.notes.push(
        "The paper simulated a whole system; the cycles beside the TCB are only drawn, and how \
         many lines and steps the original takes is not said. So this gives cycles saved from the \
         printed constants and the assumptions of the constants file, and how long a request or a \
         response may take for the published share to hold."
            .to_owned(),
    );
    figure
}

fn hash_draws(measured: &[Measured]) -> Figure {
    let mut figure = figure(
        "section-4.1",
        "Universal functions drawn at random, TCB(spec)",
        "miss ratio",
        "rank of the draw",
    );
    figure.plan = HASH_DRAWS.to_owned();
    for one in measured {
        let mut draws = one.draws.clone();
        draws.sort_by(f64::total_cmp);
        for (rank, ratio) in draws.iter().enumerate() {
            figure.rows.push(row(one, "draw", rank.to_string(), *ratio));
        }
        figure.claims.push(claims::hash_draws(one));
    }
    figure
}

fn gate_table(asked: &PaperSpec) -> Figure {
    let mut figure = figure(
        "section-4.3",
        "Gates and gate delays of a universal hash",
        "count",
        "input bits",
    );
    for (bits, delays, count) in published::GATES {
        let cost = gates::universal(&asked.constants.gates, bits, 1, 1);
        let values = [
            (
                "gate delays",
                f64::from(cost.gate_delays),
                f64::from(delays),
            ),
            (
                "gates for an output bit",
                cost.gates_per_output_bit as f64,
                count as f64,
            ),
        ];
        for (series, ours, published) in values {
            figure.rows.push(Row {
                trace: String::new(),
                synthetic: false,
                series: series.to_owned(),
                x: bits.to_string(),
                ours,
                spread: None,
                published: Some(published),
                error: Some(ours - published),
                fitted: false,
            });
        }
    }
    figure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_values_that_do_not_occur_a_curve_is_at_zero() {
        let drawn = with_zeros(&[(0, 0.2), (1, 0.3), (7, 0.4), (9, 0.1)]);
        let expected = [
            (0, 0.2),
            (1, 0.3),
            (2, 0.0),
            (6, 0.0),
            (7, 0.4),
            (8, 0.0),
            (9, 0.1),
            (10, 0.0),
        ];
        assert_eq!(drawn, expected);
    }
}
