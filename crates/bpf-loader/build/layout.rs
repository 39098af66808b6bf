//! What both sides of a map agree on, in Rust, from `bpf/include/fairlead/layout.h`: structs,
//! constants, and assertions about what the core crates have in common with it.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Structs that the loader reads or writes, and what they are called in Rust.
const STRUCTS: [(&str, &str, &str); 23] = [
    ("fl_address", "RawAddress", "Default, PartialEq, Eq, Hash"),
    ("fl_flow_key", "RawFlowKey", "PartialEq, Eq, Hash"),
    ("fl_bucket", "RawBucket", ""),
    ("fl_endpoint", "RawEndpoint", "Default, PartialEq, Eq"),
    ("fl_host", "RawHost", "PartialEq, Eq"),
    ("fl_give", "RawGive", "Default, PartialEq, Eq"),
    ("fl_life", "RawLife", "Default, PartialEq, Eq"),
    ("fl_response", "RawResponse", "PartialEq, Eq"),
    ("fl_unread", "RawUnread", "PartialEq, Eq"),
    ("fl_listen", "RawListen", "Default, PartialEq, Eq"),
    ("fl_seen", "RawSeen", "Default, PartialEq, Eq"),
    ("fl_second", "RawSecond", "PartialEq, Eq"),
    ("fl_access_prefix", "RawAccessPrefix", "PartialEq, Eq"),
    ("fl_access_rule", "RawAccessRule", "Default, PartialEq, Eq"),
    ("fl_settings", "RawSettings", "Default, PartialEq, Eq"),
    ("fl_offer", "RawOffer", "PartialEq, Eq"),
    ("fl_hit_listen", "RawHitListen", "PartialEq, Eq"),
    ("fl_hit_settings", "RawHitSettings", ""),
    ("fl_hit", "RawHit", "PartialEq, Eq"),
    ("fl_hit_event", "RawHitEvent", ""),
    ("fl_join", "RawJoin", ""),
    ("fl_lane", "RawLane", ""),
    ("fl_tcb_set", "RawTcbSet", "PartialEq, Eq"),
];

/// The same; too long for a derived `Debug` of every array, and read as a whole.
const TABLES: [(&str, &str, &str); 2] = [("fl_tcb", "RawTcb", ""), ("fl_object", "RawObject", "")];

/// Constants that the loader uses, and their type there.
const CONSTANTS: [(&str, &str); 44] = [
    ("LAYOUT_VERSION", "u32"),
    ("FL_HOST_LAYOUT", "u32"),
    ("FL_DROPS", "u32"),
    ("FL_NO_SCALE", "u8"),
    ("FL_OFFER_SACK", "u8"),
    ("FL_OFFER_TIMESTAMPS", "u8"),
    ("FL_OFFER_SCALE_PARITY", "u8"),
    ("FL_OFFER_ANSWER", "u8"),
    ("FL_OFFER_AWAIT_CLIENT", "u8"),
    ("FL_OFFER_BEGIN", "u8"),
    ("FL_OFFER_ACCESS", "u8"),
    ("FL_OFFER_HOST", "u8"),
    ("FL_ASSIGN_REQUEST", "u32"),
    ("FL_HIT_BYTES", "usize"),
    ("FL_HIT_GIVEN", "u8"),
    ("FL_HIT_CLOSES", "u8"),
    ("FL_HIT_FIN_SENT", "u8"),
    ("FL_HIT_FIN_HEARD", "u8"),
    ("FL_HIT_ENDS", "u8"),
    ("FL_HOST_PLAIN", "u32"),
    ("FL_HOST_FULL", "u32"),
    ("FL_HOST_WATCHED", "u32"),
    ("FL_LIFE_AWAKE", "u32"),
    ("FL_LIFE_ASLEEP", "u32"),
    ("FL_LIFE_OVER", "u32"),
    ("FL_UNREAD_BYTES", "usize"),
    ("FL_SHOWN_RESPONSE", "u32"),
    ("FL_SHOWN_ASLEEP", "u32"),
    ("FL_SHOWN_IN_DOUBT", "u32"),
    ("FL_SHOWN_ALONE", "u32"),
    ("FL_RESPONSE_LENGTH", "u32"),
    ("FL_RESPONSE_CHUNKED", "u32"),
    ("FL_RESPONSE_ENDLESS", "u32"),
    ("FL_SHOWN_BYTES", "usize"),
    ("FL_PAIRS", "u32"),
    ("FL_PAIR_KEPT", "usize"),
    ("FL_ROUTE_PAIR", "u16"),
    ("FL_ACCESS_LISTS", "usize"),
    ("FL_BUCKET_ENTRIES", "usize"),
    ("FL_JOIN_BYTES", "usize"),
    ("FL_LANE_TICKETS", "usize"),
    ("FL_TCB_BANKS", "usize"),
    ("FL_TCB_WAYS", "usize"),
    ("FL_TCB_PIECES", "usize"),
];

/// A field of a struct: its type, its dimensions, and where it is.
#[derive(Clone, Debug)]
struct Field {
    name: String,
    kind: String,
    dimensions: Vec<u64>,
    offset: u64,
    /// What a union has besides: other names for the same bytes.
    members: Vec<Self>,
}

/// A struct or union.
#[derive(Clone, Debug)]
struct Shape {
    fields: Vec<Field>,
    size: u64,
    align: u64,
}

/// What the header says.
#[derive(Debug, Default)]
struct Header {
    constants: BTreeMap<String, u64>,
    shapes: BTreeMap<String, Shape>,
}

/// Writes the Rust side of the header.
pub(crate) fn in_rust(text: &str) -> String {
    let plain = without_comments(text);
    let mut header = Header::default();
    header.read_constants(&plain);
    let mut words = Words::of(&plain);
    while let Some(word) = words.next() {
        let is_shape = word == "struct" || word == "union";
        if is_shape && words.peek(1) == Some("{") {
            let name = words.next().expect("a name");
            words.expect("{");
            let shape = header.read_shape(&mut words, word == "union");
            header.shapes.insert(name, shape);
        }
    }
    let mut out = String::new();
    for (name, kind) in CONSTANTS {
        let value = header.constant(name);
        let name = name.strip_prefix("FL_").unwrap_or(name);
        // `fairlead --version` says it, too.
        let (about, scope) = match name {
            "LAYOUT_VERSION" => ("/// The number of the layout of pinned maps.\n", "pub"),
            _ => ("", "pub(crate)"),
        };
        writeln!(out, "{about}{scope} const {name}: {kind} = {value};").expect("memory");
    }
    for (name, rust, derives) in STRUCTS.into_iter().chain(TABLES) {
        out += &header.struct_in_rust(name, rust, derives);
    }
    out += &header.record_asserts();
    out += &header.reason_asserts(&plain);
    out
}

impl Header {
    fn read_constants(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            if words.next() != Some("#define") {
                continue;
            }
            let (Some(name), value) = (words.next(), words.collect::<String>()) else {
                continue;
            };
            if let Some(value) = self.evaluate(&value) {
                self.constants.insert(name.to_owned(), value);
            }
        }
    }

    /// A number, a constant, or constants that are joined by `|`.
    fn evaluate(&self, text: &str) -> Option<u64> {
        let text = text.trim().trim_start_matches('(').trim_end_matches(')');
        if text.contains('|') {
            let parts = text.split('|').map(|part| self.evaluate(part));
            return parts.sum();
        }
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text
                .parse()
                .ok()
                .or_else(|| self.constants.get(text).copied()),
        }
    }

    fn constant(&self, name: &str) -> u64 {
        let value = self.evaluate(name);
        value.unwrap_or_else(|| panic!("layout.h: no constant {name}"))
    }

    /// Size and alignment of a type.
    fn measure(&self, kind: &str) -> (u64, u64) {
        match kind {
            "__u8" | "__s8" => (1, 1),
            "__u16" | "__be16" => (2, 2),
            "__u32" | "fl_flow" => (4, 4),
            "__u64" => (8, 8),
            other => {
                let shape = self.shapes.get(other);
                let shape = shape.unwrap_or_else(|| panic!("layout.h: what is {other}?"));
                (shape.size, shape.align)
            }
        }
    }

    /// Reads members up to the closing brace.
    fn read_shape(&self, words: &mut Words, is_union: bool) -> Shape {
        let (mut fields, mut end, mut align) = (Vec::new(), 0_u64, 1);
        while words.peek(0) != Some("}") {
            let mut field = self.read_field(words);
            let (size, its_align) = match field.members.first() {
                Some(_) => {
                    let of = |one: &Field| one.offset + self.bytes_of(one);
                    let size = field.members.iter().map(of).max().unwrap_or(0);
                    let aligns = field.members.iter().map(|one| self.measure(&one.kind).1);
                    let align = aligns.max().unwrap_or(1);
                    (size.next_multiple_of(align), align)
                }
                None => (self.bytes_of(&field), self.measure(&field.kind).1),
            };
            field.offset = match is_union {
                true => 0,
                false => end.next_multiple_of(its_align),
            };
            end = end.max(field.offset + size);
            align = align.max(its_align);
            for member in &mut field.members {
                member.offset += field.offset;
            }
            fields.push(field);
        }
        words.expect("}");
        Shape {
            size: end.next_multiple_of(align),
            fields,
            align,
        }
    }

    fn bytes_of(&self, field: &Field) -> u64 {
        self.measure(&field.kind).0 * field.dimensions.iter().product::<u64>()
    }

    /// One member: a field, or an anonymous struct or union with its own.
    fn read_field(&self, words: &mut Words) -> Field {
        let mut kind = words.next().expect("a type");
        let mut members = Vec::new();
        if kind == "struct" || kind == "union" {
            if words.peek(0) == Some("{") {
                words.expect("{");
                let inner = self.read_shape(words, kind == "union");
                let flat = |one: Field| match one.members.is_empty() {
                    true => vec![one],
                    false => one.members,
                };
                members = inner.fields.into_iter().flat_map(flat).collect();
            } else {
                kind = words.next().expect("a name");
            }
        }
        let mut name = String::new();
        if words.peek(0) != Some(";") {
            name = words.next().expect("a name");
        }
        let mut dimensions = Vec::new();
        while words.peek(0) == Some("[") {
            words.expect("[");
            dimensions.push(self.constant(&words.next().expect("a number")));
            words.expect("]");
        }
        words.expect(";");
        Field {
            name,
            kind,
            dimensions,
            offset: 0,
            members,
        }
    }

    fn shape(&self, name: &str) -> &Shape {
        let shape = self.shapes.get(name);
        shape.unwrap_or_else(|| panic!("layout.h: no struct {name}"))
    }

    fn struct_in_rust(&self, name: &str, rust: &str, derives: &str) -> String {
        let shape = self.shape(name);
        // A bucket is a cache line, wherever it lies.
        let aligned = if name == "fl_bucket" {
            ", align(64)"
        } else {
            ""
        };
        let mut out = format!(
            "\n/// `struct {name}`.\n#[derive(Clone, Copy, Debug, {derives})]\n\
             #[repr(C{aligned})]\npub(crate) struct {rust} {{\n"
        );
        let mut asserts = format!(
            "const _: () = assert!(size_of::<{rust}>() == {});\n",
            shape.size
        );
        for field in &shape.fields {
            let kind = field
                .dimensions
                .iter()
                .rev()
                .fold(rust_type(&field.kind), |inner, dimension| {
                    format!("[{inner}; {dimension}]")
                });
            let field_name = &field.name;
            writeln!(out, "    pub(crate) {field_name}: {kind},").expect("memory");
            asserts += &format!(
                "const _: () = assert!(core::mem::offset_of!({rust}, {field_name}) == {});\n",
                field.offset
            );
        }
        out += "}\n";
        out += &asserts;
        out += &format!(
            "// SAFETY: plain old bytes without padding, for which every bit pattern is a value.\n\
             unsafe impl aya::Pod for {rust} {{}}\n"
        );
        out
    }

    /// The record is the core's own type: it must have the header's fields where the header has
    /// them.
    fn record_asserts(&self) -> String {
        let mut out = String::new();
        let record = "fairlead_tcp::Record";
        let shape = self.shape("fl_record");
        let mut assert = |field: &Field, base: u64| {
            out += &format!(
                "const _: () = assert!(core::mem::offset_of!({record}, {}) == {});\n",
                field.name,
                base + field.offset
            );
        };
        for field in &shape.fields {
            if field.kind == "fl_phase" {
                // The word beside these is for compare and swap.
                let phase = self.shape("fl_phase").fields.iter();
                let parts = phase.flat_map(|one| &one.members);
                parts.for_each(|part| assert(part, field.offset));
            } else if field.members.is_empty() {
                assert(field, 0);
            } else {
                assert(&field.members[0], 0);
            }
        }
        out + &format!(
            "const _: () = assert!(size_of::<{record}>() == {});\n",
            shape.size
        )
    }

    /// Reasons to drop have one numbering.
    fn reason_asserts(&self, text: &str) -> String {
        let mut out = String::new();
        let lines = text.lines().map(str::trim);
        for line in lines.filter_map(|line| line.strip_prefix("FL_REASON_")) {
            let (name, number) = line.split_once('=').expect("a number");
            let camel: String = name.trim().split('_').map(capitalized).collect();
            let number = number.trim().trim_end_matches(',');
            out += &format!(
                "const _: () = assert!(fairlead_base::DropReason::{camel} as u8 == {number});\n"
            );
        }
        out
    }
}

fn capitalized(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_owned() + &rest.to_lowercase()
}

fn rust_type(kind: &str) -> String {
    let known = STRUCTS.iter().find(|(name, ..)| *name == kind);
    match (kind, known) {
        (_, Some((_, rust, _))) => (*rust).to_owned(),
        ("__be16", _) => "[u8; 2]".to_owned(),
        ("__s8", _) => "i8".to_owned(),
        ("__u8" | "__u16" | "__u32" | "__u64", _) => kind.trim_start_matches('_').to_owned(),
        _ => panic!("layout.h: no type for {kind} in Rust"),
    }
}

fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        out += part.split_once("*/").map_or("", |(_, after)| after);
    }
    out
}

/// The words and signs of a C text.
#[derive(Debug)]
struct Words {
    words: Vec<String>,
    at: usize,
}

impl Words {
    fn of(text: &str) -> Self {
        let mut words = Vec::new();
        let mut word = String::new();
        for letter in text.chars() {
            if letter.is_alphanumeric() || letter == '_' {
                word.push(letter);
                continue;
            }
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            if !letter.is_whitespace() {
                words.push(letter.to_string());
            }
        }
        Self { words, at: 0 }
    }

    fn next(&mut self) -> Option<String> {
        self.at += 1;
        self.words.get(self.at - 1).cloned()
    }

    fn peek(&self, ahead: usize) -> Option<&str> {
        self.words.get(self.at + ahead).map(String::as_str)
    }

    fn expect(&mut self, wanted: &str) {
        let found = self.next();
        assert_eq!(found.as_deref(), Some(wanted), "layout.h, word {}", self.at);
    }
}
