//! `lab handoff paper`, whole: only with `FAIRLEAD_LONG=1`, because it takes minutes and two
//! processors.

use fairlead_netns::trial::skip;
use fairlead_netns::{allowed, program};

use super::{json, refused};

#[test]
fn the_handoff_papers_figures_are_measured() {
    let name = "handoff::the_handoff_papers_figures_are_measured";
    if std::env::var_os("FAIRLEAD_LONG").is_none_or(|value| value == "0") {
        return skip(name, "FAIRLEAD_LONG is not set");
    }
    let needed = ["perf", "ip", "ethtool", "nsenter", "taskset", "nginx"];
    let missing = needed.into_iter().find(|one| program(one).is_none());
    if let Some(missing) = missing {
        return skip(name, &format!("{missing} is not installed"));
    }
    if let Err(why) = allowed() {
        return skip(name, &why.to_string());
    }
    let report = json(&[
        "handoff",
        "paper",
        "--seconds",
        "1",
        "--rounds",
        "1",
        "--json",
    ]);
    let rows = report["rows"].as_array().unwrap();
    let on_cards: Vec<u64> = rows
        .iter()
        .map(|row| row["offloaded"]["on_cards"].as_u64().unwrap())
        .collect();
    let (messages, web) = on_cards.split_at(10);
    assert_eq!(messages, [1, 1, 256, 256, 256, 256, 512, 512, 256, 256]);
    // Clients of one request, and those that pause after their last one, have no connection there.
    assert_eq!(web.len(), 3);
    assert!((10..=64).contains(&web[0]), "{web:?}");
    assert!(
        web[1..].iter().all(|count| (200..=1_024).contains(count)),
        "{web:?}"
    );
    for row in rows {
        for side in ["host", "offloaded"] {
            assert!(
                row[side]["packets_per_second"].as_f64().unwrap() > 100.0,
                "{row}"
            );
            assert!(row[side]["stack_ns"].as_f64().unwrap() > 0.0, "{row}");
        }
        let is_web = row["load"].as_str().unwrap().contains("web");
        let handoffs = row["offloaded"]["messages"]["ch_nic_handoff"].as_f64();
        assert_eq!(handoffs.unwrap() > 0.0, is_web, "{row}");
        let sends = &row["offloaded"]["messages"]["ch_nic_send"];
        assert!(sends.as_f64().unwrap() > 0.0, "{row}");
        assert!(
            row["host"]["host_ns"]["tcp"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    refused(&["handoff", "paper", "--seconds", "0"], 2, &["--seconds"]);
    refused(&["handoff", "paper", "--rounds", "101"], 2, &["--rounds"]);
    refused(&["handoff", "paper", "--only", "files"], 2, &["messages"]);
}
