//! Hellos good and bad, and the promises of the scanner.

use super::*;

#[test]
fn an_alert_is_a_record() {
    assert_eq!(alert(112), [21, 3, 3, 0, 2, 2, 112]);
}
