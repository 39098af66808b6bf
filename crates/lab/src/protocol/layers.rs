//! Which part of a protocol stack the instructions of a packet belong to, by source file.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek};
use std::path::Path;

use addr2line::Loader;
use fairlead_cache::memory::Side;
use fairlead_trace::references::{Header, Object, Reader};
use serde::{Deserialize, Serialize};

use super::chunk::{Chunk, Cutter, KINDS, Reference};
use crate::control::Control;
use crate::error::{LabError, in_words};
use crate::table::Table;

/// Layers of the stacks that are known.
pub const KNOWN: &str = include_str!("layers.toml");
/// Instructions whose source is known and in no pattern.
const OTHER: &str = "other";
/// Instructions without a source or a symbol.
const UNKNOWN: &str = "unknown";
/// Most layers that a file of patterns may have.
const LAYERS_MAX: usize = 250;
/// Most addresses of instructions whose layer is kept.
const PLACES_MAX: usize = 1 << 21;

/// Patterns, in order: the first that matches decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patterns {
    /// Files of a standard library: what is inlined from there belongs to its caller.
    #[serde(default)]
    pub inlined: Vec<String>,
    /// The layers.
    #[serde(default, rename = "layer")]
    pub layers: Vec<Layer>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Parts of paths of source files.
    #[serde(default)]
    pub files: Vec<String>,
    /// Names of functions of these files; if empty, all of them.
    #[serde(default)]
    pub functions: Vec<String>,
    /// Beginnings of names of functions, whatever their file.
    #[serde(default)]
    pub symbols: Vec<String>,
}

impl Patterns {
    /// Those that are known.
    ///
    /// # Errors
    /// Never, as a test shows.
    pub fn known() -> Result<Self, LabError> {
        Self::parse("layers.toml", KNOWN)
    }

    /// From a TOML file.
    ///
    /// # Errors
    /// The file cannot be read, or its contents are no patterns.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|error| LabError::file(path, error))?;
        Self::parse(&path.display().to_string(), &text)
    }

    fn parse(place: &str, text: &str) -> Result<Self, LabError> {
        let plan = |problem: String| LabError::Plan {
            place: place.to_owned(),
            problem,
        };
        let patterns: Self =
            toml::from_str(text).map_err(|error| plan(in_words(error.to_string().trim_end())))?;
        if patterns.layers.len() > LAYERS_MAX {
            return Err(plan(format!("write at most {LAYERS_MAX} layers")));
        }
        let empty = |pattern: &String| pattern.is_empty();
        for layer in &patterns.layers {
            let all = layer.files.iter().chain(&layer.functions);
            if all.chain(&layer.symbols).any(empty) {
                let problem = format!("layer {}: an empty pattern matches everything", layer.name);
                return Err(plan(problem));
            }
        }
        Ok(patterns)
    }

    /// The layer of a function by its frames, the innermost first: file and name.
    fn layer_of(&self, frames: &[(String, String)]) -> usize {
        for (file, name) in frames {
            if self.inlined.iter().any(|part| file.contains(part.as_str())) {
                continue;
            }
            let found = self.layers.iter().position(|layer| {
                let in_file = |part: &String| file.contains(part.as_str());
                let in_name = |start: &String| name.starts_with(start.as_str());
                let is_meant = layer.functions.is_empty() || layer.functions.contains(name);
                is_meant && layer.files.iter().any(in_file) || layer.symbols.iter().any(in_name)
            });
            return found.map_or(self.other(), |at| self.first_of_name(at));
        }
        match frames.is_empty() {
            true => self.unknown(),
            false => self.other(),
        }
    }

    /// The layer of a function whose file is not known, by its name.
    pub fn layer_of_function(&self, name: &str) -> &str {
        let at = self.layer_of(&[(String::new(), name.to_owned())]);
        self.layers.get(at).map_or(OTHER, |layer| &layer.name)
    }

    /// Layers of the same name are one.
    fn first_of_name(&self, at: usize) -> usize {
        let same = |layer: &Layer| layer.name == self.layers[at].name;
        self.layers.iter().position(same).unwrap_or(at)
    }

    fn other(&self) -> usize {
        self.layers.len()
    }

    fn unknown(&self) -> usize {
        self.layers.len() + 1
    }

    fn name(&self, at: usize) -> &str {
        match self.layers.get(at) {
            Some(layer) => &layer.name,
            None if at == self.other() => OTHER,
            None => UNKNOWN,
        }
    }
}

/// Finds the layer of an instruction from the debug information of the objects that were loaded.
struct Finder<'a> {
    patterns: &'a Patterns,
    header: &'a Header,
    objects: Vec<(&'a Object, Option<Loader>)>,
    found: HashMap<u64, u8>,
}

impl<'a> Finder<'a> {
    fn new(header: &'a Header, patterns: &'a Patterns, notes: &mut Vec<String>) -> Self {
        let objects = header.objects.iter().map(|object| {
            let loaded = Loader::new(&object.path);
            if let Err(error) = &loaded {
                notes.push(format!("{}: not read: {error}", object.path));
            }
            (object, loaded.ok())
        });
        Self {
            patterns,
            header,
            objects: objects.collect(),
            found: HashMap::new(),
        }
    }

    fn layer(&mut self, address: u64) -> u8 {
        if let Some(layer) = self.found.get(&address) {
            return *layer;
        }
        let layer = self.patterns.layer_of(&self.frames(address)) as u8;
        if self.found.len() < PLACES_MAX {
            self.found.insert(address, layer);
        }
        layer
    }

    /// File and function of each frame, the innermost first.
    fn frames(&self, address: u64) -> Vec<(String, String)> {
        if let Some(symbol) = self.header.symbol_at(address) {
            return vec![(String::new(), symbol.name.clone())];
        }
        let has = |object: &Object| address.wrapping_sub(object.start) < object.size;
        let Some((object, Some(loader))) = self.objects.iter().find(|(one, _)| has(one)) else {
            return Vec::new();
        };
        let probe = address.wrapping_sub(object.base);
        let mut frames = Vec::new();
        if let Ok(mut found) = loader.find_frames(probe) {
            while let Ok(Some(frame)) = found.next() {
                let file = frame
                    .location
                    .and_then(|location| location.file.map(str::to_owned));
                let name = frame
                    .function
                    .and_then(|name| Some(name.demangle().ok()?.into_owned()));
                frames.push((file.unwrap_or_default(), name.unwrap_or_default()));
            }
        }
        let known = frames
            .iter()
            .any(|(file, name)| !(file.is_empty() && name.is_empty()));
        if !known {
            let symbol = loader.find_symbol(probe);
            frames = symbol
                .map(|name| (String::new(), name.to_owned()))
                .into_iter()
                .collect();
        }
        frames
    }
}

/// One layer's part in packets of one kind: means of a packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerRow {
    /// The kind of packet.
    pub kind: String,
    /// The layer.
    pub layer: String,
    /// Instructions.
    pub instructions: f64,
    /// Of all instructions of the packet.
    pub share: f64,
    /// Reads and writes.
    pub accesses: f64,
    /// Lines of 64 bytes of instructions that no other layer touched before, in the packet.
    pub instruction_lines: f64,
    /// The same for data.
    pub data_lines: f64,
}

/// All layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerReport {
    /// Those that have instructions, by kind, the largest first.
    pub rows: Vec<LayerRow>,
    /// What is missing.
    pub notes: Vec<String>,
}

/// Per layer: instructions, accesses, instruction lines, data lines.
type Sums = [u64; 4];

struct KindSums {
    packets: u64,
    layers: Vec<Sums>,
}

/// Splits the packets of a trace by layer.
///
/// # Errors
/// A damaged trace, a stop.
pub fn layers<R: Read + Seek>(
    reader: &mut Reader<R>,
    patterns: &Patterns,
    control: &dyn Control,
) -> Result<LayerReport, LabError> {
    let header = reader.header().clone();
    let mut notes = Vec::new();
    let mut split = Split {
        finder: Finder::new(&header, patterns, &mut notes),
        layer: 0,
        lines: [HashSet::new(), HashSet::new()],
        kinds: (0..KINDS).map(|_| None).collect(),
    };
    let mut cutter = Cutter::new(&header, 0);
    let (mut events, mut chunk) = (Vec::new(), Chunk::default());
    control.begin("layers", reader.progress_bytes().1);
    while reader.next_chunk(&mut events).map_err(super::unreadable)? {
        cutter.cut(&events, &mut chunk);
        split.add(&chunk);
        control.reached(reader.progress_bytes().0);
        if control.stopped() {
            return Err(LabError::Stopped);
        }
    }
    control.end();
    let mut rows = Vec::new();
    for (kind, sums) in split.kinds.iter().enumerate() {
        let Some(sums) = sums else { continue };
        let name = match header.totals.packets {
            0 => "whole run".to_owned(),
            _ => header.kind_name(kind as u8),
        };
        rows.extend(kind_rows(&name, sums, patterns));
    }
    Ok(LayerReport { rows, notes })
}

struct Split<'a> {
    finder: Finder<'a>,
    /// Of the last instruction.
    layer: usize,
    /// Of the packet: of instructions, of data.
    lines: [HashSet<u64>; 2],
    kinds: Vec<Option<KindSums>>,
}

impl Split<'_> {
    fn add(&mut self, chunk: &Chunk) {
        let number = self.finder.patterns.unknown() + 1;
        for piece in &chunk.pieces {
            let at = usize::from(piece.kind);
            let mut sums = self.kinds[at].take().unwrap_or_else(|| KindSums {
                packets: 0,
                layers: vec![Sums::default(); number],
            });
            if piece.begins {
                sums.packets += 1;
                self.lines.iter_mut().for_each(HashSet::clear);
            }
            for reference in &chunk.all[piece.all.clone()] {
                self.reference(reference, &mut sums.layers);
            }
            self.kinds[at] = Some(sums);
        }
    }

    fn reference(&mut self, reference: &Reference, sums: &mut [Sums]) {
        let data = usize::from(reference.side != Side::Instruction);
        if data == 0 {
            self.layer = usize::from(self.finder.layer(reference.address));
        }
        sums[self.layer][data] += 1;
        let last = reference
            .address
            .saturating_add(u64::from(reference.size.max(1)) - 1)
            >> 6;
        for line in reference.address >> 6..=last {
            let lines = &mut self.lines[data];
            if lines.len() < super::tally::LINES_MAX && lines.insert(line) {
                sums[self.layer][2 + data] += 1;
            }
        }
    }
}

fn kind_rows(kind: &str, sums: &KindSums, patterns: &Patterns) -> Vec<LayerRow> {
    let packets = sums.packets.max(1) as f64;
    let all: u64 = sums.layers.iter().map(|layer| layer[0]).sum();
    let mut rows: Vec<LayerRow> = Vec::new();
    for (at, layer) in sums.layers.iter().enumerate() {
        if *layer == Sums::default() {
            continue;
        }
        let [instructions, accesses, instruction_lines, data_lines] =
            layer.map(|sum| sum as f64 / packets);
        let share = layer[0] as f64 / all.max(1) as f64;
        rows.push(LayerRow {
            kind: kind.to_owned(),
            layer: patterns.name(at).to_owned(),
            instructions,
            share,
            accesses,
            instruction_lines,
            data_lines,
        });
    }
    rows.sort_by(|a, b| b.instructions.total_cmp(&a.instructions));
    rows
}

impl LayerReport {
    /// As a table.
    pub fn table(&self) -> Table {
        let mut table = Table::new([
            "kind",
            "layer",
            "instructions",
            "share",
            "accesses",
            "instruction_lines",
            "data_lines",
        ]);
        for row in &self.rows {
            table.row([
                row.kind.clone(),
                row.layer.clone(),
                format!("{:.1}", row.instructions),
                format!("{:.4}", row.share),
                format!("{:.1}", row.accesses),
                format!("{:.1}", row.instruction_lines),
                format!("{:.1}", row.data_lines),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str, name: &str) -> (String, String) {
        (file.to_owned(), name.to_owned())
    }

    #[test]
    fn the_innermost_frame_outside_the_standard_library_decides() {
        let patterns = Patterns::known().unwrap();
        let name = |frames: &[_]| patterns.name(patterns.layer_of(frames)).to_owned();
        let frames = [
            frame(
                "/rustc/0123/library/core/src/slice/mod.rs",
                "copy_from_slice",
            ),
            frame("/build/crates/wire/src/ipv4.rs", "parse"),
            frame("/build/crates/datapath/src/lib.rs", "handle_batch"),
        ];
        assert_eq!(name(&frames), "wire");
        assert_eq!(name(&frames[..1]), OTHER);
        assert_eq!(name(&frames[2..]), "datapath");
        assert_eq!(name(&[frame("", "memcpy_sse2")]), "copies");
        assert_eq!(
            name(&[frame("/x/smoltcp-0.14.0/src/socket/tcp.rs", "process")]),
            "tcp"
        );
        let sum = frame("/x/smoltcp-0.14.0/src/wire/ip.rs", "data");
        assert_eq!(name(&[sum]), "checksums");
        assert_eq!(
            name(&[frame("/x/smoltcp-0.14.0/src/wire/ip.rs", "parse")]),
            "ip"
        );
        assert_eq!(name(&[]), UNKNOWN);
    }

    #[test]
    fn patterns_that_match_everything_are_refused() {
        let said = |text: &str| Patterns::parse("x.toml", text).unwrap_err().to_string();
        assert!(said("[[layer]]\nname = \"a\"\nfiles = [\"\"]").contains("layer a"));
        assert!(said("[[layer]]\nname = \"a\"\nfile = [\"\"]").contains("x.toml"));
        let many = "[[layer]]\nname = \"a\"\n".repeat(LAYERS_MAX + 1);
        assert!(said(&many).contains("at most 250"));
    }
}
