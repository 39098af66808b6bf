//! Draws from distributions.

use fairlead_base::Rng;

/// Evenly from 0 up to, not including, 1.
#[inline]
pub(crate) fn uniform(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Evenly below `bound`; 0 when that is 0.
#[inline]
pub(crate) fn below(rng: &mut Rng, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// Exponential, by inversion.
#[inline]
pub(crate) fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - uniform(rng)).ln()
}

/// Log-normal, by the polar method of Box and Muller.
pub(crate) fn log_normal(rng: &mut Rng, median: f64, sigma: f64) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(rng)).ln()).sqrt();
    let angle = core::f64::consts::TAU * uniform(rng);
    median * (sigma * radius * angle.cos()).exp()
}

/// A stretch of time in microseconds; what does not fit ends at about 584,000 years.
#[inline]
pub(crate) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 100_000;

    fn mean(mut draw: impl FnMut(&mut Rng) -> f64) -> f64 {
        let mut rng = Rng::new(5);
        (0..DRAWS).map(|_| draw(&mut rng)).sum::<f64>() / DRAWS as f64
    }

    #[test]
    fn means_are_those_of_the_distributions() {
        assert!((mean(uniform) - 0.5).abs() < 0.005);
        assert!((mean(|rng| exponential(rng, 0.3)) - 0.3).abs() < 0.005);
        assert!((mean(|rng| below(rng, 11) as f64) - 5.0).abs() < 0.05);
        // e^(σ²/2) times the median.
        let expected = 10.0 * 0.5f64.exp();
        assert!((mean(|rng| log_normal(rng, 10.0, 1.0)) - expected).abs() < 0.4);
        assert_eq!(below(&mut Rng::new(1), 0), 0);
        assert_eq!(micros(1.5), 1_500_000);
        assert_eq!(micros(f64::INFINITY), u64::MAX);
    }

    #[test]
    fn half_of_a_log_normal_lies_below_its_median() {
        let below = mean(|rng| f64::from(u8::from(log_normal(rng, 10.0, 1.0) < 10.0)));
        assert!((below - 0.5).abs() < 0.01);
    }
}
