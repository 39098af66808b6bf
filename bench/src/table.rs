//! Medians, and tables that grow row by row.

/// The median; 0 of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The median of the ratios within each round, so that a machine that slows down slows both.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs))
}

/// Prints a row: a title and right-aligned cells.
pub(crate) fn row<S: AsRef<str>>(title: &str, cells: impl IntoIterator<Item = S>) {
    print!("{title:<30}");
    for cell in cells {
        print!(" {:>15}", cell.as_ref());
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_round() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([]), 0.0);
        // The third round ran on a slower machine, for both.
        assert_eq!(ratio(&[10.0, 12.0, 1.0], &[5.0, 6.0, 0.5]), 2.0);
    }
}
