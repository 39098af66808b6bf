//! `[tcb_cache]`.

use core::time::Duration;

use fairlead_datapath::tcb_cache::{
    Geometry, GeometryError, LINE_BYTES, Lifetime, Mask, Scheme, SchemeError, Settings, TICK,
};

use super::diagnostic::{Diagnostic, Problems, Span};
use super::keys::Key;
use super::quantity::{capacity, duration, show_duration, show_size};
use super::section::{Node, Section, boolean, integer, nearest, quoted, string};

/// Scheme where none is written.
const SCHEME: &str = "spec";
/// Capacity where none is written.
const CAPACITY_BYTES: u64 = 32 << 10;
/// Lines of a set in one bank where nothing is written (paper, Table 1).
const WAYS: u32 = 4;
/// A million lines: what is published of them several times a second is counted line by line.
const CAPACITY_BYTES_MAX: u64 = 64 << 20;
const WAYS_MAX: u64 = fairlead_datapath::tcb_cache::WAYS_MAX as u64;
const ON_TIME_MAX: Duration = Duration::from_secs(1_024);

/// A key of `[tcb_cache]`.
const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key<()> {
    Key::special(name, default, |()| String::new(), meaning)
}

/// The keys of `[tcb_cache]`.
pub(crate) const KEYS: [Key<()>; 6] = [
    key("enabled", "`false`", "whether lookups go through the cache"),
    key(
        "scheme",
        "`\"spec\"`",
        "index functions, banks and policy by name (`fairlead lab schemes` lists them), with \
         changes behind it as in the lab: `\"spec,index=crc\"`",
    ),
    key(
        "capacity",
        "`\"32KiB\"`",
        "bytes of all lines, 64 each; a power of two, from one set in every bank to `\"64MiB\"`; \
         `\"32K\"` and `\"4M\"` may be written, too",
    ),
    key(
        "ways",
        "`4`",
        "lines of a set in one bank: 1, 2, 4, 8 or 16",
    ),
    key(
        "on_time",
        "`\"1s\"`",
        "how long a line counts as ON after its last packet; a multiple of `\"250ms\"`, `\"0s\"` \
         to `\"1024s\"`",
    ),
    key(
        "index_bits",
        "`\"all48\"`",
        "the bits of address and port that are indexed: all, the lowest 1 to 40 of address and low \
         byte of the port, or hexadecimal masks such as `\"000000ff:00ff\"`",
    ),
];

/// Reads `[tcb_cache]`; `None` where the cache is not enabled.
pub(super) fn tcb_cache(section: Option<Section<'_>>, problems: &mut Problems) -> Option<Settings> {
    let section = section?;
    let enabled = section.node("enabled");
    let is_enabled = enabled
        .and_then(|node| boolean(node, "enabled", problems))
        .unwrap_or(false);
    let scheme = scheme(section, problems);
    let bytes = match section.node("capacity") {
        Some(node) => {
            let bounds = (u64::from(LINE_BYTES), CAPACITY_BYTES_MAX);
            capacity(node, "capacity", bounds, problems).map(|bytes| bytes.value)
        }
        None => Some(CAPACITY_BYTES),
    };
    let ways = match section.node("ways") {
        Some(node) => integer(node, "ways", 1..=WAYS_MAX, problems).map(|ways| ways as u32),
        None => Some(WAYS),
    };
    let (scheme, bytes, ways) = (scheme?, bytes?, ways?);
    let geometry = match Geometry::new(bytes, LINE_BYTES, scheme.banks, ways) {
        Ok(geometry) => geometry,
        Err(error) => {
            problems.push(impossible(section, &error));
            return None;
        }
    };
    if enabled.is_none() {
        let message = "the TCB cache is described, but not enabled";
        problems.push(
            Diagnostic::warning(&section.span(), message)
                .help("write enabled = true, or enabled = false if that is intended"),
        );
    }
    is_enabled.then_some(Settings { scheme, geometry })
}

/// The scheme, with what the other keys say of it.
fn scheme(section: Section<'_>, problems: &mut Problems) -> Option<Scheme> {
    let mut scheme = match section.node("scheme") {
        Some(node) => named(node, problems)?,
        None => Scheme::parse(SCHEME).ok()?,
    };
    if let Some(node) = section.node("on_time") {
        scheme.parameters.lifetime = on_time(node, problems)?;
    }
    if let Some(node) = section.node("index_bits") {
        scheme.mask = index_bits(node, problems)?;
    }
    Some(scheme)
}

fn named(node: Node<'_>, problems: &mut Problems) -> Option<Scheme> {
    let text = string(node, "scheme", "\"spec\"", problems)?;
    let error = match Scheme::parse(text.value) {
        Ok(scheme) => return Some(scheme),
        Err(error) => error,
    };
    let diagnostic = match &error {
        SchemeError::Unknown { name } => {
            let names: Vec<_> = Scheme::all().map(|(name, _)| name).collect();
            let message = format!("there is no scheme {}", quoted(name));
            let all = format!("there are {}", names.join(", "));
            Diagnostic::error(&text.span, message).help(match nearest(name, names.into_iter()) {
                Some(near) => format!("did you mean \"{near}\"? {all}"),
                None => all,
            })
        }
        other => advised(&text.span, &other.to_string()),
    };
    problems.push(diagnostic);
    None
}

fn on_time(node: Node<'_>, problems: &mut Problems) -> Option<Lifetime> {
    let time = duration(node, "on_time", (Duration::ZERO, ON_TIME_MAX), problems)?;
    let (ticks, rest) = (
        time.as_nanos() / TICK.as_nanos(),
        time.as_nanos() % TICK.as_nanos(),
    );
    let ticks = ticks as u32;
    if rest > 0 {
        let message = format!(
            "`on_time` is counted in ticks of {}; {} is between two",
            show_duration(TICK),
            show_duration(time)
        );
        problems.push(Diagnostic::error(&node.span(), message).help(format!(
            "write on_time = \"{}\" or \"{}\"",
            show_duration(TICK * ticks),
            show_duration(TICK * (ticks + 1))
        )));
        return None;
    }
    Lifetime::new(ticks).ok()
}

/// A number, or the text that a mask is written as.
fn index_bits(node: Node<'_>, problems: &mut Problems) -> Option<Mask> {
    if node.get_ref().as_integer().is_some() {
        let bits = integer(node, "index_bits", 1..=40, problems)?;
        return Some(Mask::low(bits as u32));
    }
    let text = string(node, "index_bits", "16 or \"all48\"", problems)?;
    match text.value.parse() {
        Ok(mask) => Some(mask),
        Err(_) => {
            let message = format!("{} says no index bits", quoted(text.value));
            problems.push(Diagnostic::error(&text.span, message).help(
                "write index_bits = \"all48\", a number from 1 to 40, or hexadecimal masks of \
                 address and port, such as \"000000ff:00ff\"",
            ));
            None
        }
    }
}

/// Points at what makes the shape impossible.
fn impossible(section: Section<'_>, error: &GeometryError) -> Diagnostic {
    match error {
        GeometryError::NotPowerOfTwo {
            what,
            value,
            below,
            above,
        } if what.contains("capacity") => Diagnostic::error(
            &section.key_span("capacity"),
            format!("`capacity` must be a power of two, not {value} bytes"),
        )
        .help(format!(
            "write capacity = \"{}\" or \"{}\"",
            show_size(*below),
            show_size(*above)
        )),
        GeometryError::NotPowerOfTwo {
            what,
            value,
            below,
            above,
        } if what.contains("ways") => Diagnostic::error(
            &section.key_span("ways"),
            format!("`ways` must be a power of two, not {value}"),
        )
        .help(format!("write ways = {below} or {above}")),
        GeometryError::LessThanOneSet {
            capacity_bytes,
            line_bytes,
            banks,
            ways,
            needed_bytes,
        } => Diagnostic::error(
            &section.key_span("capacity"),
            format!(
                "`capacity` = {} has no room for one set in each of {banks} banks, {ways} lines of \
                 {line_bytes} bytes",
                show_size(*capacity_bytes)
            ),
        )
        .help(format!(
            "write capacity = \"{}\" or more, or fewer `ways`",
            show_size(*needed_bytes)
        )),
        // Banks come from the scheme, which may say `banks=3`.
        other => advised(&section.key_span("scheme"), &other.to_string()),
    }
}

/// The cache's own errors say what is wrong, and behind that what to write.
fn advised(span: &Span, error: &str) -> Diagnostic {
    let write = error.split_once(": write ");
    match write.or_else(|| error.split_once("; write ")) {
        Some((what, advice)) => Diagnostic::error(span, what).help(format!("write {advice}")),
        None => match error.split_once("; ") {
            Some((what, advice)) => Diagnostic::error(span, what).help(advice),
            None => Diagnostic::error(span, error).help("`fairlead lab schemes` lists schemes"),
        },
    }
}
