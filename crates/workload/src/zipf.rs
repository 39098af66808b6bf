//! Independent accesses by Zipf's law: the stream on which caches of the literature are measured.

use fairlead_base::{Endpoint, Rng};
use fairlead_trace::{Accesses, EndpointTable, address_of_name};

use crate::draw::{below, uniform};
use crate::expand::WorkloadError;
use crate::ports::PortModel;

/// The most identifiers: their tables take 40 bytes each.
const IDS_MAX: u32 = 1 << 28;

/// Can [`zipf`] make them?
///
/// # Errors
/// As it says.
pub fn check_zipf(ids: u32, alpha: f64, count: usize) -> Result<(), WorkloadError> {
    let complaint = if ids == 0 || ids > IDS_MAX {
        format!("ids must be 1 to {IDS_MAX}")
    } else if !(alpha >= 0.0 && alpha.is_finite()) {
        "alpha must be 0 or more".to_owned()
    } else if count == 0 {
        "accesses must be 1 or more".to_owned()
    } else {
        return Ok(());
    };
    Err(WorkloadError::Parameter(complaint))
}

/// `count` independent accesses to `ids` sessions, the *k*-th of which is accessed in proportion to
/// *k*^−`alpha`; a microsecond apart. The same for the same seed. Drawn in constant time each, by
/// the alias method (Walker 1977).
///
/// # Errors
/// When there are no identifiers, more than 2²⁸, or no accesses, or `alpha` is negative or no
/// number.
pub fn zipf(ids: u32, alpha: f64, count: usize, seed: u64) -> Result<Accesses, WorkloadError> {
    check_zipf(ids, alpha, count)?;
    let mut rng = Rng::new(seed);
    let mut table = EndpointTable::default();
    while table.len() < ids as usize {
        let addr = address_of_name(&rng.next_u64().to_le_bytes());
        let port = PortModel::RANDOM.port(0, 0, &mut rng);
        table.number(Endpoint { addr, port }, u32::MAX - 1);
    }
    let alias = Alias::new(ids, alpha);
    Ok(Accesses {
        time_us: (0..count as u64).collect(),
        id: (0..count).map(|_| alias.draw(&mut rng)).collect(),
        keys: table.into_keys(),
        hint: Vec::new(),
    })
}

/// For each column: the chance to stay in it, and where else to go.
struct Alias(Vec<(f64, u32)>);

impl Alias {
    fn new(ids: u32, alpha: f64) -> Self {
        let weight = |id: u32| f64::from(id + 1).powf(-alpha);
        let total: f64 = (0..ids).map(weight).sum();
        let scale = f64::from(ids) / total;
        let mut columns: Vec<(f64, u32)> = (0..ids).map(|id| (weight(id) * scale, id)).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..ids).partition(|id| columns[*id as usize].0 < 1.0);
        while let (Some(from), Some(to)) = (small.pop(), large.last().copied()) {
            columns[from as usize].1 = to;
            let given = 1.0 - columns[from as usize].0;
            columns[to as usize].0 -= given;
            if columns[to as usize].0 < 1.0 {
                large.pop();
                small.push(to);
            }
        }
        // What rounding left over stays where it is.
        for id in small.into_iter().chain(large) {
            columns[id as usize] = (1.0, id);
        }
        Self(columns)
    }

    #[inline]
    fn draw(&self, rng: &mut Rng) -> u32 {
        let column = below(rng, self.0.len() as u64) as u32;
        let (stay, other) = self.0[column as usize];
        if uniform(rng) < stay { column } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_follow_the_law() {
        const IDS: u32 = 1_000;
        const COUNT: usize = 400_000;
        for alpha in [0.0, 0.8, 1.0, 1.5] {
            let accesses = zipf(IDS, alpha, COUNT, 3).unwrap();
            let mut counts = vec![0u32; IDS as usize];
            for id in &accesses.id {
                counts[*id as usize] += 1;
            }
            let total: f64 = (1..=IDS).map(|k| f64::from(k).powf(-alpha)).sum();
            for id in [0usize, 1, 9, 99] {
                let expected = (id as f64 + 1.0).powf(-alpha) / total * COUNT as f64;
                let off = (f64::from(counts[id]) - expected).abs();
                assert!(
                    off < 6.0 * expected.sqrt(),
                    "{alpha}, {id}: {} {expected}",
                    counts[id]
                );
            }
        }
    }

    #[test]
    fn identifiers_differ_and_bad_parameters_are_refused() {
        let accesses = zipf(500, 1.0, 10, 1).unwrap();
        let distinct: std::collections::BTreeSet<_> = accesses.keys.iter().collect();
        assert_eq!(distinct.len(), 500);
        assert_eq!(accesses.time_us, (0..10).collect::<Vec<_>>());
        assert!(zipf(0, 1.0, 1, 1).is_err() && zipf(1, -1.0, 1, 1).is_err());
        let said = zipf(10, 1.0, 0, 1).unwrap_err().to_string();
        assert!(said.contains("accesses"), "{said}");
        assert_eq!(zipf(1, 1.0, 3, 1).unwrap().id, [0, 0, 0]);
    }
}
