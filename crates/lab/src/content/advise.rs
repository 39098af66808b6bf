//! Which size and policy fit a log, and why.

use fairlead_content::{BlockSize, Policy};
use serde::Serialize;

use super::bounds::Upper;
use super::responses::Responses;
use super::simulate::simulate;
use super::spec::{Cell, Row, Split, Unit};
use crate::control::Control;
use crate::error::LabError;
use crate::size::Size;
use crate::table::percent;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdviseSpec {
    /// The smallest and the largest cache to consider; sizes in between double.
    pub sizes: [Size; 2],
    /// Caches.
    pub caches: u32,
    /// What is cached.
    pub unit: Unit,
    /// The size of a block, bytes.
    pub block: u32,
    /// The share of what an unlimited cache saves that is good enough.
    pub target: f64,
    /// A policy other than LRU must save this much more of the content.
    pub margin: f64,
}

impl Default for AdviseSpec {
    fn default() -> Self {
        Self {
            sizes: [Size(256 << 10), Size(1 << 30)],
            caches: 1,
            unit: Unit::Block,
            block: BlockSize::PAGE.bytes(),
            target: 0.9,
            margin: 0.01,
        }
    }
}

/// The advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What was asked.
    pub asked: AdviseSpec,
    /// The recommended size; none if no cache is worth it.
    pub size: Option<Size>,
    /// The recommended policy.
    pub policy: &'static str,
    /// The share of content that this removes.
    pub removed_ratio: f64,
    /// The share that an unlimited cache removes.
    pub unlimited_ratio: f64,
    /// No policy removes more at this size.
    pub upper_bound: f64,
    /// Why, one fact each.
    pub reasons: Vec<String>,
    /// All simulations.
    pub rows: Vec<Row>,
}

/// Below this share of content a cache is not recommended.
const WORTH: f64 = 0.05;

/// Recommends a size and a policy.
///
/// # Errors
/// A specification that cannot be followed; a stop.
pub fn advise(
    responses: &Responses,
    asked: &AdviseSpec,
    threads: usize,
    control: &dyn Control,
) -> Result<Advice, LabError> {
    let block = BlockSize::new(u64::from(asked.block)).ok_or_else(|| {
        let problem = "write a power of two from 512 to 1M";
        LabError::option("--block", asked.block.to_string(), problem)
    })?;
    let sizes = sizes(asked)?;
    let cell = Cell {
        caches: asked.caches,
        split: Split::Alternate,
        unit: asked.unit,
        block,
        ..Cell::default()
    };
    let at = |size: Size, policy: Policy| Cell {
        size,
        policy,
        ..cell
    };
    let cells: Vec<Cell> = sizes
        .iter()
        .flat_map(|size| Policy::ALL.map(|policy| at(*size, policy)))
        .collect();
    let results = simulate(responses, &cells, threads, control)?;
    let rows: Vec<Row> = results
        .iter()
        .map(|result| Row::new(responses, result))
        .collect();
    // An unlimited cache: every file fits.
    let whole = responses.blocks(block, u64::MAX).next_power_of_two();
    let upper = Upper::new(responses, &cell);
    let unlimited = upper.bytes(whole.saturating_mul(u64::from(asked.block)));
    let unlimited_ratio = unlimited as f64 / responses.response_bytes().max(1) as f64;
    let chosen = sizes.iter().find_map(|size| {
        let row = choose(&rows, *size, asked.margin)?;
        (row.removed_ratio >= asked.target * unlimited_ratio).then_some(row)
    });
    let last = || choose(&rows, *sizes.last()?, asked.margin);
    let Some(row) = chosen.or_else(last) else {
        return Err(LabError::option("--size", "", "give at least one size"));
    };
    let bound = upper.bytes(row.size.0) as f64 / responses.response_bytes().max(1) as f64;
    let reasons = reasons(responses, asked, row, &rows, [unlimited_ratio, bound]);
    Ok(Advice {
        asked: asked.clone(),
        size: (row.removed_ratio >= WORTH).then_some(row.size),
        policy: row.policy,
        removed_ratio: row.removed_ratio,
        unlimited_ratio,
        upper_bound: bound,
        reasons,
        rows: rows.clone(),
    })
}

fn sizes(asked: &AdviseSpec) -> Result<Vec<Size>, LabError> {
    let [first, last] = asked.sizes;
    if first.0 == 0 || first > last {
        let problem = "write a size of at least one block, and at most --size-max";
        return Err(LabError::option("--size-min", first.to_string(), problem));
    }
    let doubled = |size: &Size| size.0.checked_mul(2).map(Size);
    Ok(std::iter::successors(Some(first), doubled)
        .take_while(|size| *size <= last)
        .collect())
}

/// The policy that removes most at a size; LRU, unless another is better by the margin.
fn choose(rows: &[Row], size: Size, margin: f64) -> Option<&Row> {
    let here = || rows.iter().filter(|row| row.size == size);
    let best = here().max_by(|left, right| left.removed_ratio.total_cmp(&right.removed_ratio))?;
    let lru = here().find(|row| row.policy == Policy::Lru.name())?;
    let is_better = best.removed_ratio > lru.removed_ratio + margin;
    Some(if is_better { best } else { lru })
}

fn reasons(
    responses: &Responses,
    asked: &AdviseSpec,
    row: &Row,
    rows: &[Row],
    [unlimited, bound]: [f64; 2],
) -> Vec<String> {
    let mut reasons = vec![format!(
        "an unlimited cache removes {} of the content: the rest is sent for the first time, or is \
         the part of a file that was not sent before",
        percent(unlimited)
    )];
    let reached = row.removed_ratio / unlimited.max(f64::MIN_POSITIVE);
    let reached = if unlimited > 0.0 { reached } else { 0.0 };
    let goal = percent(asked.target);
    reasons.push(if reached >= asked.target {
        format!(
            "{} is the smallest size that reaches {goal} of that: {}",
            row.size,
            { percent(reached) }
        )
    } else {
        format!(
            "no size up to {} reaches {goal} of that; it has {}",
            row.size,
            percent(reached)
        )
    });
    let removed = |policy: Policy| {
        let here = rows
            .iter()
            .find(|other| other.size == row.size && other.policy == policy.name());
        here.map_or(0.0, |row| row.removed_ratio)
    };
    let each = Policy::ALL.map(|policy| format!("{policy} {}", percent(removed(policy))));
    let margin = percent(asked.margin);
    reasons.push(match row.policy == Policy::Lru.name() {
        true => format!(
            "no policy is better than lru by more than {margin} of the content: {}",
            each.join(", ")
        ),
        false => format!("{} removes most: {}", row.policy, each.join(", ")),
    });
    reasons.push(format!(
        "no policy can remove more than {} at this size, so a better one is worth at most {}",
        percent(bound),
        percent((bound - row.removed_ratio).max(0.0))
    ));
    let large: u64 = responses
        .file
        .iter()
        .zip(&responses.bytes)
        .filter(|(file, _)| responses.file_bytes[**file as usize] > row.size.0)
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
    if large > 0 {
        reasons.push(format!(
            "files larger than the cache are not cached; they are {} of the content",
            percent(large as f64 / responses.response_bytes().max(1) as f64)
        ));
    }
    if row.removed_ratio < WORTH {
        reasons.push(format!(
            "a cache is not worth it: it removes less than {} of the content",
            percent(WORTH)
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Silent;

    fn advice(responses: &Responses, asked: &AdviseSpec) -> Advice {
        advise(responses, asked, 1, &Silent).unwrap()
    }

    #[test]
    fn the_smallest_size_that_is_good_enough_is_recommended() {
        // 300 files of 4 KiB in turn need 1,200 KiB; under LRU less is worth nothing.
        let responses = Responses::from_pairs((0..6_000).map(|at| (at % 300, 4_096)));
        let found = advice(&responses, &AdviseSpec::default());
        assert_eq!(found.size, Some(Size(2 << 20)));
        assert_eq!(found.policy, "lru");
        assert!((found.removed_ratio - 0.95).abs() < 1e-9);
        assert!((found.unlimited_ratio - 0.95).abs() < 1e-9);
        assert!(
            found
                .reasons
                .iter()
                .any(|reason| reason.contains("smallest size"))
        );
    }

    #[test]
    fn another_policy_must_be_better_by_the_margin() {
        let responses = Responses::from_pairs((0..6_000).map(|at| (at % 300, 4_096)));
        let asked = AdviseSpec {
            sizes: [Size(1 << 20), Size(1 << 20)],
            ..AdviseSpec::default()
        };
        // A loop larger than the cache: LRU has no hit, others have some.
        let found = advice(&responses, &asked);
        assert_ne!(found.policy, "lru");
        assert!(found.removed_ratio > 0.1 && found.removed_ratio <= found.upper_bound);
    }

    #[test]
    fn content_that_never_comes_again_needs_no_cache() {
        let responses = Responses::from_pairs((0..500).map(|at| (at, 10_000)));
        let found = advice(&responses, &AdviseSpec::default());
        assert_eq!((found.size, found.unlimited_ratio), (None, 0.0));
        let said = found.reasons.join("\n");
        assert!(said.contains("not worth it"), "{said}");
    }
}
