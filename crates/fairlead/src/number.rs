//! Numbers on the command line.

/// Parses a positive count.
pub(crate) fn one_or_more(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("must be a whole number, 1 or more".to_owned()),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_refused() {
        assert_eq!(one_or_more("1"), Ok(1));
        assert_eq!(one_or_more("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["0", "00", "-1", "", "x", "1.5", "18446744073709551616"] {
            let told = one_or_more(wrong).unwrap_err();
            assert!(told.contains("1 or more"), "{wrong}: {told}");
        }
    }
}
