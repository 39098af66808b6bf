//! What a cache has learned: how likely a line of each age is to be asked for again, and the order
//! in which lines should go.

use super::age::{ByAge, EBBED, STATES, state};

/// Age classes of lines not seen twice, then those of reused ones.
pub(super) const CLASSES: usize = 2 * EACH;
/// The first class of reused lines.
pub(super) const REUSED_FROM: usize = EACH;
const EACH: usize = 41;

/// Where age classes begin, in fine steps (eighths of the lines): each of the first 16 steps, then
/// parts of an octave. The last number is where the last class ends.
const EDGES: [u32; EACH + 1] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80,
    96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 2560,
];

/// A rate is what it is supposed to be unless it differs by more than this factor ...
const MARGIN: f64 = 1.1;
/// ... and by more standard errors of what was counted; where it differs by more, by so much less.
const ERRORS: f64 = 1.2;
/// What was counted in the next class on either side counts so much.
const NEIGHBOUR: f64 = 0.5;
/// Hits that are added to both what was counted and what was expected.
const PRIOR_HITS: f64 = 0.5;
/// A younger line goes before an older one only where the older one is worth more than this factor
/// more.
const LIFT: f64 = 1.1;
/// What was touched within the present step is worth this factor more.
const ADMISSION: f64 = 1.1;
/// Where counters of a class are halved.
const HITS_MAX: u32 = 1 << 12;
const EXPOSURE_MAX: u32 = 1 << 20;

/// What is looked at together: a widest vector of bytes.
pub(super) type Some64 = [u8; 64];

/// The class of an age in fine steps, of lines not seen twice.
pub(super) fn class_of(age: u32) -> usize {
    EDGES[1..EACH].partition_point(|edge| *edge <= age)
}

fn width(class: usize) -> f64 {
    f64::from(EDGES[class + 1] - EDGES[class])
}

/// Counters by class, one more for lines whose age is not told, and as many as make whole vectors.
const COUNTERS: usize = 128;

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    hits: [u32; COUNTERS],
    /// Lines times fine steps.
    exposure: [u32; COUNTERS],
    by_age: Vec<(u8, u8)>,
}

impl Chart {
    pub(super) fn new() -> Self {
        Self {
            hits: [0; COUNTERS],
            exposure: [0; COUNTERS],
            by_age: by_age(),
        }
    }

    /// Someone of this class was asked for.
    #[inline]
    pub(super) fn hit(&mut self, class: u8) {
        self.hits[usize::from(class) % COUNTERS] += 1;
    }

    /// One of this class was there at the begin of a step, for all of `steps` steps.
    #[inline]
    pub(super) fn see(&mut self, class: u8, steps: u32) {
        let class = usize::from(class);
        self.exposure[class] += steps;
        // Nobody is in the first class at the begin of a step. Those in the second one were in the
        // first for half a step, on average.
        if class == 1 || class == REUSED_FROM + 1 {
            self.exposure[class - 1] += steps.div_ceil(2);
        }
    }

    /// As `see`, for many at once: `look` says the classes of some bytes, and gives these the bytes
    /// that they should have.
    #[inline(always)]
    pub(super) fn see_all(
        &mut self,
        bytes: &mut [u8],
        steps: u32,
        mut look: impl FnMut(&mut Some64) -> Some64,
    ) {
        // By turns, so that a count need not wait for the one before it.
        let mut counts = [[0u32; COUNTERS]; 4];
        for bytes in bytes.chunks_mut(size_of::<Some64>()) {
            let mut some = [EBBED; 64];
            some[..bytes.len()].copy_from_slice(bytes);
            let classes = look(&mut some);
            bytes.copy_from_slice(&some[..bytes.len()]);
            for (at, class) in classes[..bytes.len()].iter().enumerate() {
                counts[at % 4][usize::from(*class) % COUNTERS] += 1;
            }
        }
        let [a, b, c, d] = counts;
        for first in [0, REUSED_FROM] {
            let second = a[first + 1] + b[first + 1] + c[first + 1] + d[first + 1];
            self.exposure[first] += second * steps.div_ceil(2);
        }
        for class in 0..COUNTERS {
            self.exposure[class] += (a[class] + b[class] + c[class] + d[class]) * steps;
        }
    }

    /// Forgets half of what is known about classes of which much is known.
    pub(super) fn fade(&mut self) {
        for (hits, exposure) in self.hits.iter_mut().zip(&mut self.exposure) {
            if *hits >= HITS_MAX || *exposure >= EXPOSURE_MAX {
                *hits /= 2;
                *exposure /= 2;
            }
        }
    }

    /// Hits a step at each age, whether seen twice or not, as they would be if they never rose with
    /// age: neighbours that rise are pooled.
    fn pooled(&self) -> [f64; EACH] {
        let mut blocks = [(0.0, 0.0, 0usize); EACH];
        let mut count = 0;
        for class in 0..EACH {
            let of = |counts: &[u32]| f64::from(counts[class] + counts[class + REUSED_FROM]);
            let mut block = (of(&self.hits) + 1e-3, of(&self.exposure) + 1e-2, 1);
            while count > 0 {
                let last: (f64, f64, usize) = blocks[count - 1];
                if last.0 * block.1 > block.0 * last.1 {
                    break;
                }
                block = (block.0 + last.0, block.1 + last.1, block.2 + last.2);
                count -= 1;
            }
            blocks[count] = block;
            count += 1;
        }
        let mut rates = [0.0; EACH];
        let mut class = 0;
        for (hits, exposure, classes) in &blocks[..count] {
            rates[class..class + classes].fill(hits / exposure);
            class += classes;
        }
        rates
    }

    /// Hits a step in each class: the pooled rate; or in proportion to it, where lines of this
    /// reuse are asked for more or less at all ages together; or another, where the class itself
    /// has reason.
    fn rates(&self, pooled: &[f64; EACH]) -> [f64; CLASSES] {
        let mut rates = [0.0; CLASSES];
        for from in [0, REUSED_FROM] {
            let (mut hits, mut expected) = ([0.0; EACH + 2], [0.0; EACH + 2]);
            for (class, pooled) in pooled.iter().enumerate() {
                hits[class + 1] = f64::from(self.hits[from + class]);
                expected[class + 1] = f64::from(self.exposure[from + class]) * pooled;
            }
            let of_all = likely(hits.iter().sum(), expected.iter().sum(), 1.0);
            let with_neighbours = |of: &[f64; EACH + 2], class: usize| {
                of[class + 1] + NEIGHBOUR * (of[class] + of[class + 2])
            };
            for (class, pooled) in pooled.iter().enumerate() {
                let hits = with_neighbours(&hits, class);
                let expected = with_neighbours(&expected, class);
                rates[from + class] = pooled * likely(hits, expected, of_all);
            }
        }
        rates
    }

    /// What a line of each class is worth: hits a step if it is kept from now until the best moment
    /// to give it up (the index of Gittins).
    pub(super) fn worths(&self) -> [f64; CLASSES] {
        let rates = self.rates(&self.pooled());
        let survivals: [f64; CLASSES] =
            core::array::from_fn(|class| 1.0 / (1.0 + rates[class] * width(class % EACH)));
        let times: [f64; CLASSES] =
            core::array::from_fn(|class| (1.0 - survivals[class]) / rates[class]);
        let mut worths = [0.0; CLASSES];
        for from in [0, REUSED_FROM] {
            // Hits, steps until the end or a hit, and survival of stretches, the nearest on top.
            let mut stretches = [(0.0, 0.0, 0.0); EACH];
            let mut count = 0;
            for class in (from..from + EACH).rev() {
                let mut stretch = (1.0 - survivals[class], times[class], survivals[class]);
                while count > 0 {
                    let next: (f64, f64, f64) = stretches[count - 1];
                    if next.0 * stretch.1 <= stretch.0 * next.1 {
                        break;
                    }
                    stretch.0 += stretch.2 * next.0;
                    stretch.1 += stretch.2 * next.1;
                    stretch.2 *= next.2;
                    count -= 1;
                }
                worths[class] = stretch.0 / stretch.1;
                stretches[count] = stretch;
                count += 1;
            }
            for class in (from..from + EACH - 1).rev() {
                let (own, older) = (worths[class], worths[class + 1]);
                if older > own {
                    worths[class] = older.min(own * LIFT);
                }
            }
            worths[from] *= ADMISSION;
        }
        worths
    }

    /// Ranks by state: those with the least worth first, among equals the oldest. 0 is left to
    /// those whose age is not told.
    pub(super) fn rank(&self, ranks: &mut ByAge) {
        let worths = self.worths();
        sort(ranks, &self.by_age, |class| worths[class]);
    }
}

/// Hits in proportion to those expected: the number nearest to `supposed` that is not unlikely.
/// Hits are a Poisson variable, whose square root has a standard deviation of about a half whatever
/// its mean.
fn likely(hits: f64, expected: f64, supposed: f64) -> f64 {
    let (hits, expected) = (hits + PRIOR_HITS, expected + PRIOR_HITS);
    let least = (hits.sqrt() - ERRORS / 2.0).powi(2) / MARGIN;
    let most = ((hits + 0.25).sqrt() + ERRORS / 2.0).powi(2) * MARGIN;
    (supposed * expected).max(least).min(most) / expected
}

/// Ranks by age alone, before anything is known.
pub(super) fn rank_by_age(ranks: &mut ByAge) {
    sort(ranks, &by_age(), |_| 0.0);
}

/// All states with their classes, the oldest first, among equals by number.
fn by_age() -> Vec<(u8, u8)> {
    let mut states: Vec<(u32, usize, usize)> = (0..STATES)
        .map(|number| {
            let (age, class) = state(number);
            (age, number, class)
        })
        .collect();
    states.sort_unstable_by_key(|(age, number, _)| (core::cmp::Reverse(*age), *number));
    let narrow = |(_, number, class): &(u32, usize, usize)| (*number as u8, *class as u8);
    states.iter().map(narrow).collect()
}

/// Ranks states by the worth of their classes, among those of equal worth the oldest first.
fn sort(ranks: &mut ByAge, by_age: &[(u8, u8)], worth: impl Fn(usize) -> f64) {
    // Positive numbers are ordered as their bits are.
    // So a worth above its class in one number is sorted without a branch.
    let mut keys: [u64; CLASSES] =
        core::array::from_fn(|class| worth(class).to_bits() >> 20 << 8 | class as u64);
    keys.sort_unstable();
    // Classes of equal worth are one group.
    let mut group_of = [0u8; CLASSES + 1];
    let mut groups = 0;
    for (at, key) in keys.iter().enumerate() {
        groups += u8::from(at > 0 && keys[at - 1] >> 8 != key >> 8);
        group_of[*key as usize & 0xFF] = groups;
    }
    let mut next = [0u32; CLASSES + 1];
    for (_, class) in by_age {
        next[usize::from(group_of[usize::from(*class)]) + 1] += 1;
    }
    for group in 1..=CLASSES {
        next[group] += next[group - 1];
    }
    for (number, class) in by_age {
        let next = &mut next[usize::from(group_of[usize::from(*class)])];
        *next += 1;
        ranks.set(usize::from(*number), *next as u8);
    }
}

/// Classes by state.
pub(super) fn classes() -> ByAge {
    let mut classes = ByAge::new(CLASSES as u8);
    for number in 0..STATES {
        classes.set(number, state(number).1 as u8);
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_known_is_recency() {
        let mut known = ByAge::new(0);
        let mut unknown = known.clone();
        rank_by_age(&mut known);
        let mut chart = Chart::new();
        // Rates that fall with age.
        for class in 0..CLASSES {
            let rate = 4000 / (class % EACH + 1) as u32;
            chart.hits[class] = rate;
            chart.exposure[class] = 8000;
        }
        chart.rank(&mut unknown);
        let ages = super::super::age::Hours::new();
        known.turn(&ages, true);
        unknown.turn(&ages, true);
        for older in 0..=255u8 {
            for younger in 0..=255u8 {
                let (a, b) = (known.of(older), known.of(younger));
                // Both tables order any two lines of different age and equal reuse alike.
                if older >> 7 == younger >> 7 && a < b {
                    assert!(unknown.of(older) <= unknown.of(younger));
                }
            }
        }
    }

    #[test]
    fn a_line_before_its_hour_is_worth_what_that_hour_is() {
        let mut chart = Chart::new();
        // A stream that comes back after 24 to 28 steps and at no other time.
        for class in 0..EACH {
            chart.exposure[class] = 10_000;
        }
        let hour = class_of(24);
        chart.hits[hour] = 4000;
        let worths = chart.worths();
        assert!(worths[hour - 1] < worths[hour] && worths[0] < worths[hour - 1]);
        assert!(worths[hour + 1] < worths[0]);
    }

    #[test]
    fn a_number_is_the_one_supposed_unless_chance_is_not_enough() {
        for (seen, expected) in [(0, 0), (0, 1), (4, 2), (20, 26), (1000, 1080), (1000, 930)] {
            let number = likely(seen.into(), expected.into(), 1.0);
            assert!((number - 1.0).abs() < 1e-9, "{seen} for {expected}");
        }
        // Of what is beyond doubt most is kept.
        assert!(likely(0.0, 1000.0, 1.0) < 0.01);
        assert!((1.7..1.8).contains(&likely(2000.0, 1000.0, 1.0)));
        assert!((0.5..0.6).contains(&likely(500.0, 1000.0, 1.0)));
    }

    #[test]
    fn what_is_true_of_all_ages_is_believed_of_ages_that_hardly_occur() {
        let mut chart = Chart::new();
        for class in 0..CLASSES {
            chart.exposure[class] = if class % EACH < 10 { 100_000 } else { 100 };
            chart.hits[class] = match class {
                0..10 => 250,
                REUSED_FROM.. if class < REUSED_FROM + 10 => 1_750,
                _ => 1,
            };
        }
        let rates = chart.rates(&[0.01; EACH]);
        assert!((0.0025..0.004).contains(&rates[20]), "{}", rates[20]);
        assert!((0.013..0.018).contains(&rates[REUSED_FROM + 20]));
        // A class that has reason itself is another matter, and a neighbour's hits are half of it.
        chart.hits[20] = 30;
        let rates = chart.rates(&[0.01; EACH]);
        assert!(rates[20] > 0.05 && rates[21] > 0.02 && rates[22] < 0.004);
    }

    #[test]
    fn counters_stay_below_their_limits() {
        let mut chart = Chart::new();
        for _ in 0..20_000 {
            chart.hit(3);
            chart.see(1, 1 << 12);
            chart.fade();
        }
        assert!(chart.hits[3] <= HITS_MAX && chart.exposure[1] <= EXPOSURE_MAX);
        assert!(chart.exposure[0] <= EXPOSURE_MAX && chart.exposure[0] > 0);
    }
}
