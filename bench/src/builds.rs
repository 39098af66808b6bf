//! Compares two builds of Fairlead in alternation. Each round measures the other build, the other
//! build once more, and this one. The difference between the two runs of the other build is the
//! noise of the machine. A row of this build counts as slower only when it lies below that noise.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::peers::{Case, Effort};
use crate::table::{median, row};
use crate::testbed::Testbed;
use crate::testbed::targets::Target;

/// The order of turns within a round.
const TURNS: [&str; 3] = ["other", "other again", "this"];

/// A folder with the programs of one build, as cargo leaves it.
#[derive(Clone, Debug)]
pub(crate) struct Build(pub(crate) PathBuf);

impl Build {
    /// The build that this program belongs to.
    pub(crate) fn own() -> Result<Self> {
        let own = std::env::current_exe()?;
        let folder = own.parent().context("this program lies in no folder")?;
        Ok(Self(folder.to_owned()))
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        ensure!(
            path.is_file(),
            "{} is missing: build it with `cargo build --release -p fairlead -p fairlead-bench`",
            path.display()
        );
        Ok(path)
    }
}

/// Figures of one row by turn and round; more is better.
#[derive(Debug)]
struct Row {
    title: String,
    by_turn: [Vec<f64>; TURNS.len()],
}

impl Row {
    fn new(title: String) -> Self {
        Self {
            title,
            by_turn: Default::default(),
        }
    }

    /// The ratios of a turn's figures to the other build's first turn, by round.
    fn ratios(&self, turn: usize) -> Vec<f64> {
        let pairs = self.by_turn[turn].iter().zip(&self.by_turn[0]);
        pairs.map(|(figure, other)| figure / other).collect()
    }

    fn verdict(&self) -> Value {
        let (again, this) = (self.ratios(1), self.ratios(2));
        let least = again.iter().copied().fold(f64::INFINITY, f64::min);
        let most = again.iter().copied().fold(0.0, f64::max);
        let middle = median(this.iter().copied());
        let slower = middle < least;
        row(
            &self.title,
            [
                format!("{middle:.3}"),
                format!("{least:.3} to {most:.3}"),
                if slower { "slower" } else { "" }.to_owned(),
            ],
        );
        json!({
            "row": self.title,
            "ratio": middle,
            "all_ratios": this,
            "same_build_least": least,
            "same_build_most": most,
            "slower": slower,
            "figures": TURNS.iter().zip(&self.by_turn).map(|(turn, all)| json!({
                "build": turn,
                "all": all,
            })).collect::<Vec<_>>(),
        })
    }
}

fn heading(what: &str) {
    row(what, ["this/other", "other/other", ""]);
}

/// The number of rows that count as slower.
pub(crate) fn slower(rows: &[Value]) -> usize {
    rows.iter().filter(|row| row["slower"] == true).count()
}

/// Measures requests/s through each build, in the testbed of the peers.
pub(crate) fn requests(
    testbed: &mut Testbed,
    other: &Build,
    effort: Effort,
    cases: &[Case],
) -> Result<Vec<Value>> {
    let (own, other) = (
        Build::own()?.program("fairlead")?,
        other.program("fairlead")?,
    );
    let programs = [&other, &other, &own];
    heading("requests/s");
    let mut verdicts = Vec::new();
    for &case in cases {
        let mut figures = Row::new(case.title());
        for _ in 0..effort.rounds {
            for (turn, program) in programs.into_iter().enumerate() {
                testbed.use_build(program)?;
                testbed.turn_of(Target::Fairlead)?;
                let sample = testbed.measure(&case.load(Target::Fairlead, effort))?;
                figures.by_turn[turn].push(sample.rate);
            }
        }
        verdicts.push(figures.verdict());
    }
    Ok(verdicts)
}

/// Measures the core in memory, by each build's own `fairlead-bench`.
pub(crate) fn core(other: &Build, rounds: usize, options: &[String]) -> Result<Vec<Value>> {
    let (own, other) = (
        Build::own()?.program("fairlead-bench")?,
        other.program("fairlead-bench")?,
    );
    let programs = [&other, &other, &own];
    let mut rows: Vec<Row> = Vec::new();
    for _ in 0..rounds {
        for (turn, program) in programs.into_iter().enumerate() {
            for (at, (title, figure)) in figures(&core_once(program, options)?).enumerate() {
                if rows.len() == at {
                    rows.push(Row::new(title.clone()));
                }
                ensure!(rows[at].title == title, "the builds measure other rows");
                rows[at].by_turn[turn].push(figure);
            }
        }
    }
    heading("core");
    Ok(rows.iter().map(Row::verdict).collect())
}

/// Runs `core` once and returns its result.
fn core_once(program: &Path, options: &[String]) -> Result<Value> {
    let folder = std::env::temp_dir().join(format!("fairlead-builds-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let output = Command::new(program)
        .arg("core")
        .args(options)
        .args(["--rounds", "1", "--record"])
        .arg(&folder)
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    let record = std::fs::read_dir(&folder)?.next().transpose()?;
    let text = record.map(|entry| std::fs::read_to_string(entry.path()));
    std::fs::remove_dir_all(&folder)?;
    ensure!(
        output.status.success(),
        "{} core: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = text.context("`core` kept no record")??;
    let record: Value = serde_json::from_str(&text)?;
    Ok(record["result"].clone())
}

/// The rates in a result of `core`, with a title each.
fn figures(result: &Value) -> impl Iterator<Item = (String, f64)> {
    let mut found = Vec::new();
    for kind in ["splice", "tcb_cache"] {
        for case in result[kind].as_array().into_iter().flatten() {
            collect(kind, case, &mut found);
        }
    }
    collect("handshakes", &result["handshakes"], &mut found);
    found.into_iter()
}

/// Fields of a case that say what was measured.
const SETTINGS: [&str; 6] = [
    "connections",
    "payload_bytes",
    "timestamps",
    "traffic",
    "scheme",
    "capacity_bytes",
];

/// Adds each field of a case that is a rate, with a title made of its settings.
fn collect(kind: &str, case: &Value, found: &mut Vec<(String, f64)>) {
    let settings = SETTINGS.iter().filter_map(|&key| {
        let value = case.get(key).filter(|value| !value.is_null())?;
        Some(format!(" {key}={}", value.to_string().trim_matches('"')))
    });
    let settings: String = settings.collect();
    for (key, value) in case.as_object().into_iter().flatten() {
        if let (Some(what), Some(rate)) = (key.strip_suffix("_per_second"), value.as_f64()) {
            found.push((format!("{kind} {what}/s{settings}"), rate));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_slower_only_below_the_spread_of_one_build_against_itself() {
        let mut figures = Row::new("row".into());
        figures.by_turn = [
            vec![100.0, 100.0, 100.0],
            vec![97.0, 101.0, 104.0],
            vec![98.0, 98.0, 98.0],
        ];
        assert_eq!(figures.verdict()["slower"], false);
        figures.by_turn[2] = vec![96.0, 96.0, 110.0];
        let verdict = figures.verdict();
        assert_eq!(verdict["slower"], true);
        assert_eq!(verdict["ratio"], 0.96);
        assert_eq!(verdict["same_build_least"], 0.97);
    }

    #[test]
    fn rates_of_the_core_are_titled_by_their_settings() {
        let result = json!({
            "splice": [{
                "connections": 1_000,
                "timestamps": true,
                "packets_per_second": 5.0,
                "rounds": 1,
            }],
            "tcb_cache": [{"scheme": null, "traffic": "random", "packets_per_second": 4.0}],
            "handshakes": {"syns": 7, "syn_acks_per_second": 3.0},
        });
        let rows: Vec<(String, f64)> = figures(&result).collect();
        assert_eq!(
            rows,
            [
                (
                    "splice packets/s connections=1000 timestamps=true".into(),
                    5.0
                ),
                ("tcb_cache packets/s traffic=random".into(), 4.0),
                ("handshakes syn_acks/s".into(), 3.0),
            ]
        );
    }
}
