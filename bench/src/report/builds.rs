//! The table of two builds.

use anyhow::{Context, Result};
use serde_json::Value;

use super::record::Record;
use super::tables::{Grid, Markdown, bold, two};

/// `builds`: an older build, the same once more, and this one.
pub(crate) fn builds(record: &Record, base: &str) -> Result<Markdown> {
    let mut grid = Grid::new(["row", "this / older", "older / itself"]);
    let mut slower = Vec::new();
    let mut all = 0;
    for part in ["/core", "/requests"] {
        let rows = record.at(part)?.as_array();
        for row in rows.with_context(|| format!("{part} is not a list"))? {
            let number = |key: &str| row[key].as_f64().with_context(|| format!("no {key}"));
            let title = row["row"].as_str().context("a row without a title")?;
            let is_slower = row["slower"] == Value::Bool(true);
            if is_slower {
                slower.push(format!("`{title}`"));
            }
            all += 1;
            grid.push([
                title.to_owned(),
                bold(two(number("ratio")?), is_slower),
                format!(
                    "{} to {}",
                    two(number("same_build_least")?),
                    two(number("same_build_most")?)
                ),
            ]);
        }
    }
    Ok(format!(
        "`{}`, commit {} ({}); rounds: {}, seconds each: {}. Slower (bold): {} of {all} rows.\n\n\
         {}",
        record.command(),
        record.commit(),
        record.link(base),
        record.number("/rounds")?,
        record.number("/seconds")?,
        slower.len(),
        grid.markdown()
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_that_are_slower_are_bold_and_counted() {
        let row = |title: &str, ratio: f64, slower: bool| {
            json!({
                "row": title,
                "ratio": ratio,
                "same_build_least": 0.9,
                "same_build_most": 1.1,
                "slower": slower,
            })
        };
        let record = Record::of(
            "builds-test",
            json!({
                "command": "fairlead-bench builds --other older --record folder",
                "commit": "abc",
                "result": {
                    "rounds": 5,
                    "seconds": 1,
                    "core": [row("splice", 1.5, false), row("lookup", 0.8, true)],
                    "requests": [row("close", 1.0, false)],
                },
            }),
        );
        let text = builds(&record, "../").unwrap();
        assert!(text.contains("Slower (bold): 1 of 3 rows."), "{text}");
        assert!(
            text.contains("| lookup | **0.80** | 0.90 to 1.10 |"),
            "{text}"
        );
        assert!(text.contains("| close | 1.00 |"), "{text}");
    }
}
