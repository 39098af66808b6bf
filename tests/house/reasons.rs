//! `docs/reasons.md`: every drop reason, as the code has it.

use std::fmt::Write;

use fairlead_base::DropReason;

use crate::{tree, update};

const PATH: &str = "docs/reasons.md";

const OPENING: &str = "# Drop reasons

Every dropped packet and every refused client is counted under one of these reasons. The names are
the same in `/metrics`, `/status` and the logs; the numbers are stable, for other programs that use
them. Numbers below 20 are about a single packet, those below 40 about the switch's own state, those
below 60 about a connection, the others about the machine.

Generated from `crates/base/src/reason.rs`; after a change there:
`UPDATE=1 cargo test -p fairlead-house reasons`.

| number | name | meaning |
|---:|---|---|
";

fn text() -> String {
    let mut text = OPENING.to_owned();
    for reason in DropReason::ALL {
        let meaning = reason.describe().replace('|', "\\|");
        writeln!(
            text,
            "| {} | `{}` | {meaning} |",
            *reason as u8,
            reason.name()
        )
        .expect("to memory");
    }
    text
}

#[test]
fn reasons_are_documented() {
    let expected = text();
    let path = tree::root().join(PATH);
    if std::fs::read_to_string(&path).is_ok_and(|found| found == expected) {
        return;
    }
    if update() {
        std::fs::write(&path, expected).expect("written");
        return;
    }
    panic!("{PATH} is not up to date: UPDATE=1 cargo test -p fairlead-house reasons");
}
