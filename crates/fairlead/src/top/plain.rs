//! The plain table, for scripts and pipes.

use super::rows::{Table, rate};
use crate::screen::{Side, columns, grouped};

/// The table, followed by an empty line.
pub(super) fn render(table: &Table) -> String {
    let mut out = format!("{}\n", table.title);
    if !table.fast_path.is_empty() {
        out += &format!("fast path: {}\n", table.fast_path);
    }
    let (names, values): (Vec<_>, Vec<_>) = table.totals.iter().cloned().unzip();
    let names = names.into_iter().map(str::to_owned).collect();
    let sides = vec![Side::Right; table.totals.len()];
    out += &columns(0, &sides, &[names, values]);
    let right = |count| {
        let mut sides = vec![Side::Left];
        sides.resize(count, Side::Right);
        sides
    };
    let heading = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let mut rows: Vec<Vec<String>> = vec![heading(&["service", "new/s", "refused/s", "accepted"])];
    rows.extend(table.services.iter().map(|row| row.to_vec()));
    out += &columns(0, &right(4), &rows);
    let mut rows: Vec<Vec<String>> = vec![heading(&[
        "pool", "server", "state", "active", "new/s", "failed/s", "total", "failed",
    ])];
    for row in &table.servers {
        let known = |value: Option<f64>| value.map_or("-".to_owned(), rate);
        rows.push(vec![
            row.pool.clone(),
            row.server.clone(),
            row.state.clone(),
            grouped(row.active),
            known(row.rates.map(|rates| rates.0)),
            known(row.rates.map(|rates| rates.1)),
            grouped(row.total),
            grouped(row.failures),
        ]);
    }
    let mut sides = right(8);
    sides[1] = Side::Left;
    sides[2] = Side::Left;
    out += &columns(0, &sides, &rows);
    if !table.drops.is_empty() {
        let mut rows: Vec<Vec<String>> = vec![heading(&["dropped or refused", "/s", "total"])];
        rows.extend(table.drops.iter().map(|row| row.to_vec()));
        out += &columns(0, &right(3), &rows);
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::rates::Meter;
    use super::super::rows::tests::recorded;
    use super::*;

    #[test]
    fn a_recorded_status_as_a_table() {
        let (before, after) = recorded();
        let start = Instant::now();
        let mut meter = Meter::default();
        let _ = meter.note(&before, start);
        let rates = meter.note(&after, start + Duration::from_secs(2));
        let text = render(&Table::of(&after, rates.as_ref()));
        let expected = "\
pages  10.2.0.1:81  up          7   40.0       0.5    480       2
pages  10.2.0.2:81  down        9    0.0       0.0    300       0
dropped or refused   /s  total
not-ours            3.5     10
no-route              -      1

";
        assert!(text.ends_with(expected), "{text}");
        assert!(
            text.starts_with("edge  fairlead 0.1.0  ok, up 12 s\nfast path: tc on eth0, eth1\n")
        );
        assert!(!text.contains('\x1b'));
    }
}
