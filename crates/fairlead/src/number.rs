//! Numbers as they are written on the command line.

/// How many of something: none of it would be nothing to do.
pub(crate) fn one_or_more(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("write a whole number, 1 or more".to_owned()),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_no_number_to_ask_for() {
        assert_eq!(one_or_more("1"), Ok(1));
        assert_eq!(one_or_more("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["0", "00", "-1", "", "x", "1.5", "18446744073709551616"] {
            let told = one_or_more(wrong).unwrap_err();
            assert!(told.contains("1 or more"), "{wrong}: {told}");
        }
    }
}
