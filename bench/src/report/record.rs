//! A record of `bench/records`: what was measured, where and by which command.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The file's name without `.json`.
    pub(crate) name: String,
    json: Value,
}

impl Record {
    /// Reads `<folder>/<name>.json`.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self> {
        ensure!(
            !name.contains(['/', '\\']),
            "{name:?} is not the name of a record"
        );
        let path = folder.join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        let json = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        Ok(Self {
            name: name.to_owned(),
            json,
        })
    }

    #[cfg(test)]
    pub(crate) fn of(name: &str, json: Value) -> Self {
        Self {
            name: name.to_owned(),
            json,
        }
    }

    /// What was measured. The laboratory's records have it beside `machine`.
    pub(crate) fn result(&self) -> &Value {
        self.json.get("result").unwrap_or(&self.json)
    }

    /// The value at a JSON pointer below the result.
    pub(crate) fn at(&self, pointer: &str) -> Result<&Value> {
        let value = self.result().pointer(pointer);
        value.with_context(|| format!("{} has no {pointer}", self.name))
    }

    /// The number at a JSON pointer below the result.
    pub(crate) fn number(&self, pointer: &str) -> Result<f64> {
        let value = self.at(pointer)?.as_f64();
        value.with_context(|| format!("{}: {pointer} is not a number", self.name))
    }

    /// The text at a JSON pointer below the result.
    pub(crate) fn text(&self, pointer: &str) -> Result<&str> {
        let value = self.at(pointer)?.as_str();
        value.with_context(|| format!("{}: {pointer} is not text", self.name))
    }

    /// The rows of the result.
    pub(crate) fn cells(&self) -> Result<Vec<Self>> {
        let cells = self.at("/cells")?.as_array();
        let cells = cells.with_context(|| format!("{}: cells is not a list", self.name))?;
        let cell = |json: &Value| Self {
            name: self.name.clone(),
            json: json.clone(),
        };
        Ok(cells.iter().map(cell).collect())
    }

    fn top(&self, pointer: &str) -> &str {
        self.json
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("unknown")
    }

    /// The processor's name, without marks.
    pub(crate) fn processor(&self) -> String {
        let name = self.top("/machine/cpu").replace("(R)", "");
        name.trim_end_matches(" Processor").to_owned()
    }

    /// Cores, memory and kernel.
    pub(crate) fn machine(&self) -> String {
        let cores = self.json.pointer("/machine/cores").and_then(Value::as_u64);
        let kernel = self.top("/machine/kernel");
        let (kernel, _) = kernel.split_once('-').unwrap_or((kernel, ""));
        format!(
            "{}, {} cores, Linux {kernel}",
            self.processor(),
            cores.unwrap_or(0)
        )
    }

    pub(crate) fn commit(&self) -> &str {
        self.top("/commit")
    }

    /// The command without the folder in which the record was kept.
    pub(crate) fn command(&self) -> &str {
        let command = self.top("/command");
        let (command, _) = command.split_once(" --record").unwrap_or((command, ""));
        command
    }

    /// A link to the record from a page in `docs/`, or from one at the root.
    pub(crate) fn link(&self, base: &str) -> String {
        format!("[record]({base}bench/records/{}.json)", self.name)
    }
}
