//! Claims of the paper's text, compared with our results. Claims that do not hold are reported like
//! those that do.

use super::measure::{Measured, Ratios};
use super::{Claim, PaperSpec, published};
use crate::cost::{cpu, toe};
use crate::table::{grouped, percent, signed_percent};

fn claim(one: &Measured, says: &str, holds: impl Into<Option<bool>>, ours: String) -> Claim {
    Claim {
        says: says.to_owned(),
        trace: one.note.given.name.clone(),
        holds: holds.into(),
        ours,
    }
}

/// The mean ratio of a scheme of a plan.
fn ratio(all: &[Ratios], scheme: &str) -> f64 {
    let found = all.iter().find(|ratios| ratios.run.scheme == scheme);
    found.map_or(f64::NAN, Ratios::mean)
}

pub(super) fn on_gaps(one: &Measured) -> Claim {
    let share = one.gaps.on_within_a_second;
    claim(
        one,
        "within ON, requests are typically less than a second apart (section 2.2)",
        share > 0.5,
        format!("{} of ON gaps are no longer than a second", percent(share)),
    )
}

pub(super) fn index_functions(one: &Measured) -> Vec<Claim> {
    let all = &one.plans[0];
    let two = ratio(all, "2-universal");
    let others = all
        .iter()
        .filter(|ratios| ratios.run.scheme != "2-universal");
    let best = others.min_by(|a, b| a.mean().total_cmp(&b.mean()));
    let (best_name, best_ratio) = best.map_or((String::new(), f64::NAN), |best| {
        (best.run.scheme.clone(), best.mean())
    });
    let of = |scheme: &str| ratio(all, scheme);
    vec![
        claim(
            one,
            "2-Universal is the best of all index functions (section 3.1)",
            two <= best_ratio,
            format!(
                "2-universal {}, the best other is {best_name} {}",
                percent(two),
                percent(best_ratio)
            ),
        ),
        claim(
            one,
            "more than two banks are worse (section 3.1)",
            of("4-universal") > two && of("4-xor") > of("2-xor") && of("4-pdisp") > of("2-pdisp"),
            format!(
                "4 against 2 banks: universal {} / {}, xor {} / {}, pdisp {} / {}",
                percent(of("4-universal")),
                percent(two),
                percent(of("4-xor")),
                percent(of("2-xor")),
                percent(of("4-pdisp")),
                percent(of("2-pdisp"))
            ),
        ),
        claim(
            one,
            "PMod and PDisp are better than Mod and XOR, Universal and CRC better still \
             (section 3.1)",
            in_order_of_section_3_1(of),
            format!(
                "mod {}, xor {}, pmod {}, pdisp {}, crc {}, universal {}",
                percent(of("mod")),
                percent(of("xor")),
                percent(of("pmod")),
                percent(of("pdisp")),
                percent(of("crc")),
                percent(of("universal"))
            ),
        ),
    ]
}

/// Is each of PMod and PDisp below both Mod and XOR, and each of Universal and CRC below both of
/// those?
fn in_order_of_section_3_1(of: impl Fn(&str) -> f64) -> bool {
    let below = |these: [&str; 2], those: [&str; 2]| {
        these
            .iter()
            .all(|this| those.iter().all(|that| of(this) < of(that)))
    };
    below(["pmod", "pdisp"], ["mod", "xor"]) && below(["universal", "crc"], ["pmod", "pdisp"])
}

pub(super) fn evenness(one: &Measured) -> Claim {
    let of = |scheme: &str| {
        let found = one
            .stat
            .spread
            .iter()
            .find(|spread| spread.scheme == scheme);
        found.map_or(f64::NAN, |spread| spread.mean_deviation)
    };
    let (single, double) = (of("universal"), of("2-universal"));
    claim(
        one,
        "several functions spread sessions over sets more evenly (section 3.1)",
        double < single,
        format!(
            "mean |X − E X|: mod {:.1}, universal {single:.1}, 2-universal {double:.1}",
            of("mod")
        ),
    )
}

pub(super) fn bits(one: &Measured) -> Vec<Claim> {
    let near = |value: &f64| (value - 0.5).abs() < 0.2;
    let port = &one.stat.bits.port;
    let low = port.iter().skip(8).filter(|value| near(value)).count();
    let high = port.iter().take(8).filter(|value| near(value)).count();
    let address = one
        .stat
        .bits
        .address
        .iter()
        .filter(|value| near(value))
        .count();
    vec![
        claim(
            one,
            "of the port only the 8 low bits matter (section 3.2)",
            low >= 6 && high <= 1,
            format!("near one half: {low} of 8 low bits, {high} of 8 high bits"),
        ),
        claim(
            one,
            "bits of the address have similar importance (section 3.2)",
            address >= 24,
            format!("{address} of 32 are within 0.2 of one half"),
        ),
    ]
}

pub(super) fn order_of_figure_12(one: &Measured) -> Claim {
    let means: Vec<f64> = one.plans[1].iter().map(Ratios::mean).collect();
    let shown: Vec<String> = means.iter().map(|mean| percent(*mean)).collect();
    claim(
        one,
        "Mod misses most, then 2-hash, then no-migrate, then spec (section 4.2)",
        means.windows(2).all(|two| two[0] > two[1]),
        shown.join(" > ").replace("> ", "/ "),
    )
}

/// Claims of figures 13 to 16, and of section 3.4.
pub(super) fn of_plan(id: &str, one: &Measured) -> Vec<Claim> {
    match id {
        "section-3.4" => stamps(one),
        "figure-13" => index_bits(one),
        "figure-14" => policies(one),
        "figure-15" => capacities(one),
        "figure-16" => ways(one),
        _ => Vec::new(),
    }
}

fn index_bits(one: &Measured) -> Vec<Claim> {
    let of = |bits: &str| {
        let found = one.plans[2]
            .iter()
            .find(|ratios| ratios.run.index_bits.as_deref() == Some(bits));
        found.map_or(f64::NAN, Ratios::mean)
    };
    let (eight, sixteen, all) = (of("8"), of("16"), of("all48"));
    let ours = |bits: f64| signed_percent(bits / all - 1.0);
    vec![
        claim(
            one,
            "16 index bits are as good as 48 (section 4.3)",
            sixteen / all - 1.0 < published::HASH_SPREAD,
            format!("16 bits miss {} against 48", ours(sixteen)),
        ),
        claim(
            one,
            "8 index bits are worse (section 4.3)",
            eight / all - 1.0 > published::HASH_SPREAD,
            format!("8 bits miss {} against 48", ours(eight)),
        ),
    ]
}

fn policies(one: &Measured) -> Vec<Claim> {
    let all = &one.plans[3];
    let spec = ratio(all, "spec");
    let others: Vec<&Ratios> = all.iter().filter(|one| one.run.scheme != "spec").collect();
    let shown: Vec<String> = others
        .iter()
        .map(|one| {
            format!(
                "{} {}",
                one.run.scheme,
                signed_percent(one.mean() / spec - 1.0)
            )
        })
        .collect();
    let stamps = ratio(all, "timestamp16");
    let (round_robin, access) = (ratio(all, "rr"), ratio(all, "access"));
    let similar = |other: f64| (stamps / other - 1.0).abs() < SIMILAR;
    let (begins_again, why) = begins_again(one, 16);
    vec![
        claim(
            one,
            "spec misses least of RR, 16-bit timestamp and Access (section 4.4)",
            others.iter().all(|one| one.mean() > spec),
            format!("against spec: {}", shown.join(", ")),
        ),
        claim(
            one,
            "TCB(16) misses about as often as TCB(RR) and TCB(Access) (section 4.4)",
            begins_again.then(|| similar(round_robin) && similar(access)),
            format!(
                "timestamp16 {}: {} against rr, {} against access (\"about\" is taken for within \
                 5 %){why}",
                percent(stamps),
                signed_percent(stamps / round_robin - 1.0),
                signed_percent(stamps / access - 1.0)
            ),
        ),
    ]
}

/// What "similar miss ratios" is taken for.
const SIMILAR: f64 = 0.05;

/// LRU over both banks without stamps that begin again.
pub(super) const EXACT_LRU: &str = "2-lru";

/// The paper's number of bits of a stamp that is still too few.
const STAMP_BITS: u32 = 24;

/// Explains if stamps of this width never wrap in the stream: they are then exact, and the claim is
/// undecidable.
fn begins_again(one: &Measured, bits: u32) -> (bool, String) {
    let accesses = one.note.stream.accesses;
    let again = accesses >> bits > 0;
    let why = format!(
        "; the stream has {} accesses, so that stamps of {bits} bits never begin again",
        grouped(accesses)
    );
    (again, if again { String::new() } else { why })
}

fn stamps(one: &Measured) -> Vec<Claim> {
    let all = &one.plans[6];
    let exact = ratio(all, EXACT_LRU);
    let against = |bits: u32| {
        let scheme = format!("timestamp16,stamp_bits={bits}");
        ratio(all, &scheme) / exact - 1.0
    };
    let (begins_again, why) = begins_again(one, STAMP_BITS);
    vec![claim(
        one,
        "stamps of more than 24 bits are needed to do well (section 3.4)",
        begins_again.then(|| against(STAMP_BITS) > published::HASH_SPREAD),
        format!(
            "against exact LRU: 8 bits {}, 16 {}, 20 {}, 24 {}{why}",
            signed_percent(against(8)),
            signed_percent(ratio(all, "timestamp16") / exact - 1.0),
            signed_percent(against(20)),
            signed_percent(against(STAMP_BITS))
        ),
    )]
}

fn capacities(one: &Measured) -> Vec<Claim> {
    let of = |kib: u64| {
        let found = one.plans[4]
            .iter()
            .find(|ratios| ratios.run.capacity.0 == kib << 10);
        found.map_or(f64::NAN, Ratios::mean)
    };
    let base = of(32);
    let against = |kib: u64| signed_percent(of(kib) / base - 1.0);
    vec![claim(
        one,
        "16 and 8 KiB are much worse than 32 KiB (section 4.4)",
        of(16) > base * 1.2 && of(8) > of(16),
        format!(
            "against 32 KiB: 8 KiB {}, 16 KiB {}, 64 KiB {} (\"much\" is taken for more than \
             20 %)",
            against(8),
            against(16),
            against(64)
        ),
    )]
}

fn ways(one: &Measured) -> Vec<Claim> {
    let of = |ways: u32| {
        let found = one.plans[5].iter().find(|ratios| ratios.run.ways == ways);
        found.map_or(f64::NAN, Ratios::mean)
    };
    let best = [1, 2, 4, 8, 16]
        .into_iter()
        .map(of)
        .fold(f64::INFINITY, f64::min);
    let against = |ways: u32| signed_percent(of(ways) / best - 1.0);
    vec![claim(
        one,
        "4 and 8 ways are good (section 4.4)",
        of(4) <= best * 1.05 && of(8) <= best * 1.05,
        format!(
            "against the best: 1 way {}, 2 {}, 4 {}, 8 {}, 16 {} (\"good\" is taken for within \
             5 %)",
            against(1),
            against(2),
            against(4),
            against(8),
            against(16)
        ),
    )]
}

const TOE_SAYS: &str = "receive time in a TOE falls by more than 20 % (section 4.5)";

pub(super) fn toe(one: &Measured, asked: &PaperSpec) -> Claim {
    let (from, to) = (ratio(&one.plans[1], "mod"), ratio(&one.plans[1], "spec"));
    let (holds, ours) = toe_saved(&asked.constants.toe, from, to);
    claim(one, TOE_SAYS, holds, ours)
}

/// The same from the published miss ratios alone: what the model makes of the paper's own.
pub(super) fn toe_of_published(asked: &PaperSpec) -> Claim {
    let mut lines = Vec::new();
    let mut all = true;
    for row in published::FIGURE_12 {
        let [from, .., to] = row.miss_ratios;
        let (holds, ours) = toe_saved(&asked.constants.toe, from, to);
        all &= holds;
        lines.push(format!("{}: {ours}", row.trace));
    }
    Claim {
        says: TOE_SAYS.to_owned(),
        trace: "published miss ratios".to_owned(),
        holds: Some(all),
        ours: lines.join("; "),
    }
}

/// The model with each number of accesses to memory for a miss that is shown: one to three, and
/// what was asked for.
pub(super) fn toe_models(constants: &toe::Toe) -> Vec<toe::Toe> {
    let mut all = vec![1.0, 2.0, 3.0, constants.memory_accesses];
    all.sort_by(f64::total_cmp);
    all.dedup();
    let model = |memory_accesses| toe::Toe {
        memory_accesses,
        ..*constants
    };
    all.into_iter().map(model).collect()
}

fn toe_saved(constants: &toe::Toe, from: f64, to: f64) -> (bool, String) {
    let saved = |model: &toe::Toe| toe::saved_share(model, from, to);
    let said: Vec<String> = toe_models(constants)
        .iter()
        .map(|model| {
            let accesses = model.memory_accesses;
            let what = if accesses == 1.0 {
                " access to memory for a miss"
            } else {
                ""
            };
            format!("{} with {accesses}{what}", percent(saved(model)))
        })
        .collect();
    let judged = constants.memory_accesses;
    let text = format!("{} (judged is that with {judged})", said.join(", "));
    (saved(constants) > published::TOE_SAVED, text)
}

pub(super) fn cpu(one: &Measured, asked: &PaperSpec) -> Vec<Claim> {
    let constants = &asked.constants.cpu;
    let miss_ratio = ratio(&one.plans[1], "spec");
    let time = cpu::request(constants, miss_ratio);
    [
        (
            "request processing falls by up to 23 % (section 4.5)",
            published::CPU_SAVED,
            time.receive_saved_share,
        ),
        (
            "response time falls by up to 5 % (section 4.5)",
            published::RESPONSE_SAVED,
            time.response_saved_share,
        ),
    ]
    .into_iter()
    .filter_map(|(says, share, ours)| {
        let whole = cpu::whole_for_saving(constants, miss_ratio, share)?;
        let (holds, text) = match ours {
            Some(ours) => (
                Some(ours <= share),
                format!("{} with the constants given", percent(ours)),
            ),
            // A whole that is computed from the claim cannot speak for it.
            None => (
                None,
                format!(
                    "{:.0} cycles saved; the whole is not published: that would be {} of \
                     {whole:.0} cycles, less of more",
                    time.saved_cycles,
                    percent(share)
                ),
            ),
        };
        Some(claim(one, says, holds, text))
    })
    .collect()
}

pub(super) fn hash_draws(one: &Measured) -> Claim {
    let (holds, ours) = apart(&one.draws);
    claim(
        one,
        "universal functions drawn at random are within 2.5 % of each other (section 4.1)",
        holds,
        ours,
    )
}

/// How far miss ratios under several functions are from each other; nothing can be said of fewer
/// than two.
fn apart(draws: &[f64]) -> (Option<bool>, String) {
    if draws.len() < 2 {
        let ours = format!("{} drawn: there is nothing to compare", draws.len());
        return (None, ours);
    }
    let largest = draws.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let smallest = draws.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = draws.iter().sum::<f64>() / draws.len() as f64;
    let range = if mean > 0.0 {
        (largest - smallest) / mean
    } else {
        0.0
    };
    let ours = format!(
        "{} draws: {} to {}, a range of {} of the mean",
        draws.len(),
        percent(smallest),
        percent(largest),
        percent(range)
    );
    (Some(range <= published::HASH_SPREAD), ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_fewer_than_two_draws_nothing_is_said() {
        for draws in [&[][..], &[0.25]] {
            let (holds, ours) = apart(draws);
            assert_eq!(holds, None);
            assert!(!ours.contains("inf") && ours.contains("drawn"), "{ours}");
        }
        assert_eq!(apart(&[0.25, 0.251]).0, Some(true));
        assert_eq!(apart(&[0.25, 0.3]).0, Some(false));
    }

    #[test]
    fn functions_are_in_order_when_each_is() {
        let names = ["mod", "xor", "pmod", "pdisp", "universal", "crc"];
        let holds = |ratios: [f64; 6]| {
            in_order_of_section_3_1(|name: &str| {
                let at = names.iter().position(|known| *known == name);
                at.map_or(f64::NAN, |at| ratios[at])
            })
        };
        assert!(holds([0.5, 0.49, 0.4, 0.41, 0.3, 0.31]));
        // One of two is not both.
        assert!(!holds([0.5, 0.49, 0.4, 0.495, 0.3, 0.31]));
        assert!(!holds([0.5, 0.49, 0.4, 0.41, 0.3, 0.405]));
    }

    #[test]
    fn the_saving_that_is_judged_is_among_those_that_are_said() {
        let (_, usual) = toe_saved(&toe::Toe::default(), 0.5, 0.26);
        assert!(
            usual.contains("with 1 access to memory for a miss, "),
            "{usual}"
        );
        assert!(usual.ends_with("with 3 (judged is that with 1)"), "{usual}");
        let many = toe::Toe {
            memory_accesses: 4.5,
            ..toe::Toe::default()
        };
        let (holds, said) = toe_saved(&many, 0.5, 0.26);
        assert!(
            holds && said.ends_with("with 4.5 (judged is that with 4.5)"),
            "{said}"
        );
        assert!(toe::saved_share(&many, 0.5, 0.26) > published::TOE_SAVED);
    }
}
