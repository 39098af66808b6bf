//! `[[access]]`: lists of clients, and files of prefixes.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use fairlead_splice::access::{AccessEntry, AccessList};

use super::diagnostic::{At, Diagnostic, Problems};
use super::keys::{Key, Standard};
use super::names;
use super::page::bytes_of;
use super::prefix::Prefix;
use super::section::{Node, Section, quoted, string, strings, word};

/// A list as far as it could be read.
#[derive(Debug)]
pub(super) struct AccessDraft {
    pub(super) name: Option<At<String>>,
    pub(super) list: Arc<AccessList>,
}

/// Access lists of a file, at most.
pub(super) const ACCESS_MAX: usize = 64;

/// Lines of a file with prefixes, at most.
const LINES_MAX: usize = 1_000_000;

/// The longest file with prefixes, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Wrong lines of a file that are reported.
const WRONG_LINES_SHOWN: usize = 5;

impl Standard for AccessList {
    fn standard() -> Self {
        Self::new("", true, Vec::new())
    }
}

/// The keys of `[[access]]`.
pub(crate) const KEYS: [Key<AccessList>; 5] = [
    Key::special(
        "name",
        "required",
        |list| list.name().to_owned(),
        "its name, for services and metrics",
    ),
    Key::special(
        "allow",
        "none",
        |_| String::new(),
        "prefixes (`10.0.0.0/8`) or addresses of clients that may connect",
    ),
    Key::special(
        "deny",
        "none",
        |_| String::new(),
        "those of clients that may not; the longest prefix of a client decides",
    ),
    Key::special(
        "file",
        "none",
        |_| String::new(),
        "absolute path of a file with a prefix or address on each line, up to 1,000,000 lines \
         (empty lines and `#` comments apart); they get the opposite of `default`, which is \
         required then",
    ),
    Key::special(
        "default",
        "`deny` beside `allow`, else `allow`",
        |_| String::new(),
        "`allow` or `deny`: what holds for other clients",
    ),
];

pub(super) fn access(section: Section<'_>, problems: &mut Problems) -> AccessDraft {
    let name = section
        .require("name", "name = \"office\"", problems)
        .and_then(|node| string(node, "name", "\"office\"", problems))
        .and_then(|text| names::name(&text, problems));
    let words = [("allow", true), ("deny", false)];
    let default = section
        .node("default")
        .and_then(|node| word(node, "default", &words, problems));
    let default = default.map(|default| default.value);
    let mut entries = prefixes(section, "allow", true, problems);
    let denied = prefixes(section, "deny", false, problems);
    if let Some(both) = denied.iter().find(|one| {
        let same = |other: &At<AccessEntry>| {
            (other.value.first, other.value.bits) == (one.value.first, one.value.bits)
        };
        entries.iter().any(same)
    }) {
        problems.push(
            Diagnostic::error(&both.span, "this prefix is under `allow`, too")
                .help("leave it out in one of the two lists"),
        );
    }
    entries.extend(denied);
    let allows = section.node("allow").is_some();
    if section.node("file").is_some() && default.is_none() {
        let message = "a list with `file` needs `default`: lines of the file get its opposite";
        problems.push(Diagnostic::error(&section.key_span("file"), message).help(
            "write default = \"allow\" to deny the file's clients, or \"deny\" to allow them alone",
        ));
    }
    let default = default.unwrap_or(!allows);
    let mut entries: Vec<AccessEntry> = entries.into_iter().map(|one| one.value).collect();
    if let Some(node) = section.node("file") {
        entries.extend(file(node, !default, problems));
    } else if !allows && section.node("deny").is_none() {
        problems.push(
            Diagnostic::warning(&section.span(), "this list has no prefixes")
                .help("write `allow`, `deny` or `file`"),
        );
    }
    let own_name = name.as_ref().map_or("", |name| name.value.as_str());
    AccessDraft {
        list: Arc::new(AccessList::new(own_name, default, entries)),
        name,
    }
}

/// The prefixes under a key, with their places.
pub(super) fn prefixes(
    section: Section<'_>,
    key: &str,
    allow: bool,
    problems: &mut Problems,
) -> Vec<At<AccessEntry>> {
    let node = section.node(key);
    node.map_or_else(Vec::new, |node| prefixes_of(node, key, allow, problems))
}

/// The same of its value.
pub(super) fn prefixes_of(
    node: Node<'_>,
    key: &str,
    allow: bool,
    problems: &mut Problems,
) -> Vec<At<AccessEntry>> {
    let mut entries = Vec::new();
    for text in strings(node, key, "\"10.0.0.0/8\"", problems) {
        match entry(text.value, allow) {
            Ok(entry) => entries.push(At::new(entry, text.span)),
            Err(why) => problems.push(
                Diagnostic::error(&text.span, why)
                    .help("write a prefix like \"10.0.0.0/8\" or \"2001:db8::/32\""),
            ),
        }
    }
    entries
}

/// A prefix or an address alone; why not otherwise.
pub(crate) fn entry(text: &str, allow: bool) -> Result<AccessEntry, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| format!("{} is not an address or prefix", quoted(text)))?;
    let full = if address.is_ipv4() { 32 } else { 128 };
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if mapped {
        return Err(format!(
            "{} is an IPv4 address in IPv6 form: write it as an IPv4 address",
            quoted(text)
        ));
    }
    let bits = bits.map_or(Ok(full), |bits| {
        let wrong = || format!("{} is not a prefix length", quoted(bits));
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        if !digits {
            return Err(wrong());
        }
        bits.parse::<u8>().map_err(|_| wrong())
    })?;
    let Some(prefix) = Prefix::of(address, bits) else {
        return Err(format!(
            "/{bits} is longer than an address: at most /{full}"
        ));
    };
    if prefix.address() != address {
        return Err(format!(
            "{address} is not the first address of a /{bits}: write {prefix}"
        ));
    }
    Ok(AccessEntry {
        first: address.into(),
        bits,
        allow,
    })
}

/// The prefixes of a file. Wrong lines are reported, and the list is not used then.
fn file(node: Node<'_>, allow: bool, problems: &mut Problems) -> Vec<AccessEntry> {
    let Some(path) = string(node, "file", "\"/etc/fairlead/office.list\"", problems) else {
        return Vec::new();
    };
    let mut refuse = |message: String, help: &str| {
        problems.push(Diagnostic::error(&path.span, message).help(help));
    };
    if !Path::new(path.value).is_absolute() {
        let message = format!("{} is not an absolute path", quoted(path.value));
        refuse(message, "write the whole path, beginning with /");
        return Vec::new();
    }
    let text = match text_of(Path::new(path.value)) {
        Ok(text) => text,
        Err(why) => {
            let message = format!("cannot read {}: {why}", path.value);
            refuse(message, "write the path of a readable text file");
            return Vec::new();
        }
    };
    let (entries, wrong) = lines(&text, allow);
    for (line, why) in wrong.iter().take(WRONG_LINES_SHOWN) {
        let message = format!("{} line {line}: {why}", path.value);
        refuse(message, "write one prefix or address on each line");
    }
    if wrong.len() > WRONG_LINES_SHOWN {
        let more = wrong.len() - WRONG_LINES_SHOWN;
        let message = format!("{} has {more} more wrong lines", path.value);
        refuse(message, "correct all of them: a list is used as a whole");
    }
    entries
}

/// The text of a file, within limits.
fn text_of(path: &Path) -> Result<String, String> {
    String::from_utf8(bytes_of(path, FILE_BYTES_MAX)?).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not UTF-8")
    })
}

/// The prefixes of a text, and its wrong lines by number.
fn lines(text: &str, allow: bool) -> (Vec<AccessEntry>, Vec<(usize, String)>) {
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        if entries.len() == LINES_MAX {
            wrong.push((number, format!("more than {LINES_MAX} prefixes")));
            break;
        }
        match entry(line, allow) {
            Ok(entry) => entries.push(entry),
            Err(why) => wrong.push((number, why)),
        }
    }
    (entries, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prefixes_addresses_or_comments() {
        let text = "# ours\n10.0.0.0/8\n\n 192.0.2.7 # one\r\n2001:db8::/32\n";
        let (entries, wrong) = lines(text, true);
        assert_eq!(wrong, []);
        let read: Vec<_> = entries
            .iter()
            .map(|one| format!("{}/{}", one.first, one.bits))
            .collect();
        assert_eq!(read, ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]);
    }

    #[test]
    fn wrong_lines_have_a_number_and_a_reason() {
        for (line, reason) in [
            ("office", "is not an address or prefix"),
            ("10.0.0.1/8", "write 10.0.0.0/8"),
            ("10.0.0.0/33", "at most /32"),
            ("10.0.0.0/+8", "is not a prefix length"),
            ("10.0.0.0/", "is not a prefix length"),
            ("::ffff:10.0.0.1", "as an IPv4 address"),
            ("2001:db8::/129", "at most /128"),
            ("10.0.0.0/8 10.1.0.0/16", "is not a prefix length"),
        ] {
            let (entries, wrong) = lines(&format!("10.1.0.0/16\n{line}\n"), true);
            assert_eq!(entries.len(), 1, "{line}");
            let [(2, why)] = &wrong[..] else {
                panic!("{line}: {wrong:?}");
            };
            assert!(why.contains(reason), "{line}: {why}");
        }
    }

    #[test]
    fn more_lines_than_allowed_are_refused() {
        let text = "10.0.0.0/8\n".repeat(LINES_MAX + 5);
        let (entries, wrong) = lines(&text, true);
        assert_eq!(entries.len(), LINES_MAX);
        assert_eq!(wrong.len(), 1);
        assert_eq!(wrong[0].0, LINES_MAX + 1);
    }

    #[test]
    fn what_has_no_end_is_not_read() {
        for path in ["/dev/zero", "/proc", "/nowhere/a.list"] {
            assert!(text_of(Path::new(path)).is_err(), "{path}");
        }
    }
}
