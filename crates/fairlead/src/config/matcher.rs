//! The conditions of a route.

use fairlead_splice::access::{AccessEntry, AccessList};
use fairlead_splice::config::{Matcher, NamePattern, ValuePattern};
use toml::de::DeValue;

use super::access::prefixes_of;
use super::diagnostic::{At, Diagnostic, Problems, REGEXES_MAX, Span};
use super::names;
use super::quantity::endpoints;
use super::schema::PATTERN;
use super::section::{
    LIST_MAX, Node, Section, boolean, nearest, quoted, string, strings, type_name,
};

/// What a matcher reads, and so which services can have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The endpoints of the connection: any service.
    Ends,
    /// A request head: HTTP services.
    Http,
    /// A ClientHello: TLS services.
    Tls,
}

impl Reads {
    /// The services, for the documentation.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ends => "all",
            Self::Http => "http",
            Self::Tls => "tls",
        }
    }
}

/// A condition with the places of its values, where each has one.
type Condition = (Matcher, Vec<Span>);

/// The key of a condition.
#[derive(Debug)]
pub(super) struct MatcherKey {
    pub(super) key: &'static str,
    pub(super) reads: Reads,
    /// One line of `docs/configuration.md`.
    pub(super) meaning: &'static str,
    read: fn(Node<'_>, &str, &mut Problems) -> Vec<Condition>,
}

/// The keys of all conditions.
pub(super) const MATCHERS: [MatcherKey; 15] = [
    MatcherKey {
        key: "listen",
        reads: Reads::Ends,
        meaning: "the address and port that the client connected to; one of the service's",
        read: |node, key, problems| {
            let ends = endpoints(node, key, problems).into_iter();
            let (spans, ends): (_, Vec<_>) = ends.map(|at| (at.span, at.value)).unzip();
            match ends.is_empty() {
                true => Vec::new(),
                false => vec![(Matcher::Listen(ends), spans)],
            }
        },
    },
    MatcherKey {
        key: "clients",
        reads: Reads::Ends,
        meaning: "the address of the client: in one of these prefixes; such a service begins no \
                  connections in the kernel",
        read: |node, key, problems| {
            let read = prefixes_of(node, key, true, problems);
            // A list that lost a member to an error is not the list that was meant.
            if read.is_empty() || read.len() < values(node) {
                return Vec::new();
            }
            let spans = read.iter().map(|one| one.span.clone()).collect();
            let entries = read.into_iter().map(|one| one.value).collect();
            let list = AccessList::new("", false, entries);
            vec![(Matcher::Clients(list), spans)]
        },
    },
    MatcherKey {
        key: "host",
        reads: Reads::Http,
        meaning: "the host of the request without its port: exact, or `*.example.com` for every \
                  name below `example.com` (not `example.com` itself); case-insensitive",
        read: |node, key, problems| {
            let read: Reader<_> = |text, key, problems| names::host(text, key, true, problems);
            all(
                node,
                key,
                "\"api.example.com\"",
                read,
                Matcher::Host,
                problems,
            )
        },
    },
    MatcherKey {
        key: "path",
        reads: Reads::Http,
        meaning: "the whole path without the query, as it is sent (percent-encoded)",
        read: |node, key, problems| {
            all(node, key, "\"/login\"", whole_path, Matcher::Path, problems)
        },
    },
    MatcherKey {
        key: "path_prefix",
        reads: Reads::Http,
        meaning: "the beginning of the path, character by character: `/api` also matches `/apis`",
        read: |node, key, problems| {
            all(
                node,
                key,
                "\"/api/\"",
                whole_path,
                Matcher::PathPrefix,
                problems,
            )
        },
    },
    MatcherKey {
        key: "path_suffix",
        reads: Reads::Http,
        meaning: "the end of the path",
        read: |node, key, problems| {
            all(
                node,
                key,
                "\".jpg\"",
                path_end,
                Matcher::PathSuffix,
                problems,
            )
        },
    },
    MatcherKey {
        key: "path_regex",
        reads: Reads::Http,
        meaning: "the path, by [regular expression](https://docs.rs/regex/latest/regex/#syntax), \
                  not anchored; in TOML `'…'` takes backslashes as they are",
        read: |node, key, problems| {
            all(
                node,
                key,
                "\"^/user/[0-9]+$\"",
                regex,
                Matcher::PathRegex,
                problems,
            )
        },
    },
    MatcherKey {
        key: "method",
        reads: Reads::Http,
        meaning: "the method; case-sensitive",
        read: |node, key, problems| all(node, key, "\"GET\"", method, Matcher::Method, problems),
    },
    MatcherKey {
        key: "header",
        reads: Reads::Http,
        meaning: "header fields by name (case-insensitive) and value",
        read: |node, key, problems| by_name(key, node, Matcher::Header, problems),
    },
    MatcherKey {
        key: "query",
        reads: Reads::Http,
        meaning: "query parameters by name and value, percent-decoded",
        read: |node, key, problems| by_name(key, node, Matcher::Query, problems),
    },
    MatcherKey {
        key: "cookie",
        reads: Reads::Http,
        meaning: "cookies by name and value",
        read: |node, key, problems| by_name(key, node, Matcher::Cookie, problems),
    },
    MatcherKey {
        key: "sni",
        reads: Reads::Tls,
        meaning: "the server name of the ClientHello; like `host`",
        read: |node, key, problems| {
            let read: Reader<_> = |text, key, problems| names::host(text, key, false, problems);
            all(
                node,
                key,
                "\"api.example.com\"",
                read,
                Matcher::Sni,
                problems,
            )
        },
    },
    MatcherKey {
        key: "alpn",
        reads: Reads::Tls,
        meaning: "an application protocol that the client offers",
        read: |node, key, problems| all(node, key, "\"h2\"", alpn, Matcher::Alpn, problems),
    },
    MatcherKey {
        key: "first_bytes",
        reads: Reads::Tls,
        meaning: "the first bytes of a client that does not speak TLS",
        read: |node, key, problems| {
            let example = "\"SSH-\"";
            all(
                node,
                key,
                example,
                first_bytes,
                Matcher::FirstBytes,
                problems,
            )
        },
    },
    MatcherKey {
        key: "not_tls",
        reads: Reads::Tls,
        meaning: "`true`: the client does not speak TLS, or waits for the server to speak \
                  (`first_bytes_timeout`)",
        read: |node, key, problems| match boolean(node, key, problems) {
            Some(true) => vec![(Matcher::NotTls, Vec::new())],
            Some(false) => {
                let message = "only `not_tls = true` is a condition";
                problems.push(
                    Diagnostic::error(&node.span(), message)
                        .help("leave it out: routes with `sni` or `alpn` match TLS clients alone"),
                );
                Vec::new()
            }
            None => Vec::new(),
        },
    },
];

/// A condition and the place of its key.
#[derive(Debug)]
pub(super) struct MatcherDraft {
    pub(super) key: &'static str,
    pub(super) span: Span,
    pub(super) reads: Reads,
    pub(super) matcher: Matcher,
    /// The place of each value, where it has one.
    pub(super) values: Vec<Span>,
}

/// The largest compiled regular expression, bytes, its lazy automaton apart.
const REGEX_BYTES_MAX: usize = 1 << 20;
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Reads every condition of a route.
pub(super) fn matchers(section: Section<'_>, problems: &mut Problems) -> Vec<MatcherDraft> {
    let mut out = Vec::new();
    for one in &MATCHERS {
        let Some(node) = section.node(one.key) else {
            continue;
        };
        for (matcher, values) in (one.read)(node, one.key, problems) {
            out.push(MatcherDraft {
                key: one.key,
                span: section.key_span(one.key),
                reads: one.reads,
                matcher,
                values,
            });
        }
    }
    out
}

type Reader<T> = fn(&At<&str>, &str, &mut Problems) -> Option<T>;

/// How many values a scalar or list has.
pub(super) fn values(node: Node<'_>) -> usize {
    node.get_ref().as_array().map_or(1, |array| array.len())
}

/// Several values, of which one must be met.
fn all<T>(
    node: Node<'_>,
    key: &str,
    example: &str,
    read: Reader<T>,
    make: fn(Vec<T>) -> Matcher,
    problems: &mut Problems,
) -> Vec<Condition> {
    let texts = strings(node, key, example, problems);
    let values: Vec<T> = texts
        .iter()
        .filter_map(|text| read(text, key, problems))
        .collect();
    // A list that lost a member to an error is not the list that was meant.
    if values.is_empty() || values.len() < texts.len() {
        return Vec::new();
    }
    let spans = texts.iter().map(|text| text.span.clone());
    vec![(make(values), spans.collect())]
}

/// `header = { name = pattern, … }`: one matcher a name.
fn by_name(
    key: &str,
    node: Node<'_>,
    make: fn(String, ValuePattern) -> Matcher,
    problems: &mut Problems,
) -> Vec<Condition> {
    let example = format!("write {key} = {{ name = \"value\" }}");
    let DeValue::Table(table) = node.get_ref() else {
        let message = format!(
            "`{key}` must be a table of names and values, not {}",
            type_name(node.get_ref())
        );
        problems.push(Diagnostic::error(&node.span(), message).help(example));
        return Vec::new();
    };
    if table.is_empty() {
        let message = format!("`{key}` names nothing");
        problems.push(
            Diagnostic::error(&node.span(), message)
                .help(format!("{example}, or leave `{key}` out")),
        );
    }
    if table.len() > LIST_MAX {
        let message = format!("{} names in `{key}`, more than {LIST_MAX}", table.len());
        problems.push(Diagnostic::error(&node.span(), message));
    }
    let mut out = Vec::new();
    for (name, node) in Section::entries(table).take(LIST_MAX) {
        let fits = match key {
            "query" => !name.value.is_empty(),
            _ => names::is_token(name.value),
        };
        if !fits {
            let message = format!("{} cannot be the name of a {key}", quoted(name.value));
            problems.push(Diagnostic::error(&name.span, message).help(example.clone()));
            continue;
        }
        // Field names are compared in any case (RFC 9110, section 5.1); the others as they are.
        let kept = match key {
            "header" => name.value.to_ascii_lowercase(),
            _ => name.value.to_owned(),
        };
        if let Some(pattern) = value_pattern(node, name.value, problems) {
            out.push((make(kept, pattern), Vec::new()));
        }
    }
    out
}

fn value_pattern(node: Node<'_>, name: &str, problems: &mut Problems) -> Option<ValuePattern> {
    let DeValue::Table(table) = node.get_ref() else {
        let values = strings(node, name, "\"value\"", problems);
        if values.is_empty() {
            return None;
        }
        return Some(ValuePattern::Exact(
            values.iter().map(|value| value.value.to_owned()).collect(),
        ));
    };
    let section = Section::of(table, &node.span(), &PATTERN, &[], problems);
    match (section.node("regex"), section.node("present")) {
        (Some(node), None) => {
            let text = string(node, "regex", "\"^[0-9]+$\"", problems)?;
            regex(&text, "regex", problems).map(ValuePattern::Regex)
        }
        (None, Some(node)) => {
            if boolean(node, "present", problems)? {
                return Some(ValuePattern::Present);
            }
            problems.push(
                Diagnostic::error(&node.span(), "absence cannot be matched").help(
                    "write present = true here and put this route after the one for the rest",
                ),
            );
            None
        }
        (Some(_), Some(_)) => {
            problems.push(
                Diagnostic::error(
                    &node.span(),
                    "`regex` already asks for the value's presence",
                )
                .help("leave out `present`"),
            );
            None
        }
        (None, None) => {
            if table.is_empty() {
                problems.push(
                    Diagnostic::error(&node.span(), "an empty value pattern")
                        .help("write { present = true } or { regex = \"…\" }"),
                );
            }
            None
        }
    }
}

/// A path is compared as it comes on the wire, so it must look as it does there.
fn path_part(text: &At<&str>, key: &str, problems: &mut Problems) -> Option<String> {
    let value = text.value;
    let (message, help) = if value.is_empty() {
        (
            format!("an empty `{key}`"),
            format!("leave `{key}` out: a route without it takes all"),
        )
    } else if let Some(at) = value.find(['?', '#']) {
        let kept = &value[..at];
        let help = if kept.is_empty() {
            "parameters are matched by `query`".to_owned()
        } else {
            format!(
                "write {key} = {}; parameters are matched by `query`",
                quoted(kept)
            )
        };
        (format!("a path ends before \"{}\"", &value[at..=at]), help)
    } else if value.bytes().any(|byte| !byte.is_ascii_graphic()) {
        let mut encoded = String::new();
        for &byte in value.as_bytes() {
            if byte.is_ascii_graphic() {
                encoded.push(char::from(byte));
            } else {
                encoded.push_str(&format!("%{byte:02X}"));
            }
        }
        let message = format!("{} comes percent-encoded on the wire", quoted(value));
        (message, format!("write {key} = {}", quoted(&encoded)))
    } else {
        return Some(value.to_owned());
    };
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

/// Warns of a `*` that looks like a wildcard of other programs: here it is a character like others.
fn wildcard(text: &At<&str>, key: &str, problems: &mut Problems) {
    let value = text.value;
    // Alone it is the target of OPTIONS requests for the server itself (RFC 9112, section 3.2.4).
    if !value.contains('*') || (value == "*" && key == "path") {
        return;
    }
    let (start, end) = (value.trim_end_matches('*'), value.trim_start_matches('*'));
    let help = if key == "path_suffix" && !end.is_empty() && !end.contains('*') {
        format!("write path_suffix = {}", quoted(end))
    } else if key != "path_suffix" && start.starts_with('/') && !start.contains('*') {
        format!("write path_prefix = {}", quoted(start))
    } else {
        "a pattern is written as an expression under `path_regex`".to_owned()
    };
    let message = format!(
        "`*` is no wildcard in `{key}`: {} matches nothing but a literal *",
        quoted(value)
    );
    problems.push(Diagnostic::warning(&text.span, message).help(help));
}

fn path_end(text: &At<&str>, key: &str, problems: &mut Problems) -> Option<String> {
    let value = path_part(text, key, problems)?;
    wildcard(text, key, problems);
    Some(value)
}

fn whole_path(text: &At<&str>, key: &str, problems: &mut Problems) -> Option<String> {
    let value = path_part(text, key, problems)?;
    // `*` is the target of OPTIONS requests for the server itself (RFC 9112, section 3.2.4).
    if value.starts_with('/') || (value == "*" && key == "path") {
        wildcard(text, key, problems);
        return Some(value);
    }
    let message = format!("{} does not begin with \"/\"", quoted(&value));
    let mut help = format!("write {key} = {}", quoted(&format!("/{value}")));
    if value.starts_with("http://") || value.starts_with("https://") {
        help = format!("write the host under `host` and only the path under `{key}`");
    } else if value.starts_with('*') || value.starts_with('.') {
        let end = value.trim_start_matches('*');
        help = format!(
            "write path_suffix = {} to match the end of paths",
            quoted(end)
        );
    }
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

fn regex(text: &At<&str>, key: &str, problems: &mut Problems) -> Option<regex::Regex> {
    if !problems.admit_regex() {
        problems.push(
            Diagnostic::error(
                &text.span,
                format!("more than {REGEXES_MAX} regular expressions in one file"),
            )
            .help("prefixes, suffixes and lists of exact values cost less; use them"),
        );
        return None;
    }
    let built = regex::RegexBuilder::new(text.value)
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .nest_limit(64)
        .build();
    let (message, help) = match built {
        Ok(regex) => return Some(regex),
        Err(regex::Error::CompiledTooBig(_)) => (
            format!(
                "this expression needs more than {} KiB when compiled",
                REGEX_BYTES_MAX >> 10
            ),
            "repeat less ({n,m} multiplies), or write several shorter ones as a list".to_owned(),
        ),
        Err(error) => {
            let whole = error.to_string();
            let cause = whole.rsplit("error: ").next().unwrap_or(&whole).trim();
            (
                format!("`{key}` is not a regular expression: {cause}"),
                "in TOML, '…' takes backslashes as they are and \"…\" wants them doubled"
                    .to_owned(),
            )
        }
    };
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

fn method(text: &At<&str>, _key: &str, problems: &mut Problems) -> Option<String> {
    let value = text.value;
    let meant = METHODS
        .iter()
        .find(|known| known.eq_ignore_ascii_case(value));
    let (message, help) = match meant {
        Some(&known) if known == value => return Some(value.to_owned()),
        Some(known) => (
            format!(
                "methods are compared letter by letter, and no client sends {}",
                quoted(value)
            ),
            format!("write method = \"{known}\""),
        ),
        None if names::is_token(value) => {
            if let Some(near) = nearest(value, METHODS.into_iter()) {
                problems.push(
                    Diagnostic::warning(&text.span, format!("{} is a rare method", quoted(value)))
                        .help(format!("did you mean \"{near}\"?")),
                );
            }
            return Some(value.to_owned());
        }
        None => (
            format!("{} cannot be a method", quoted(value)),
            "write method = \"GET\"".to_owned(),
        ),
    };
    problems.push(Diagnostic::error(&text.span, message).help(help));
    None
}

/// RFC 7301, section 3.1: a protocol's name has 1 to 255 bytes.
fn alpn(text: &At<&str>, _key: &str, problems: &mut Problems) -> Option<String> {
    if (1..=255).contains(&text.value.len()) {
        return Some(text.value.to_owned());
    }
    problems.push(
        Diagnostic::error(&text.span, "an ALPN name has 1 to 255 bytes")
            .help("write alpn = \"h2\" or alpn = \"http/1.1\""),
    );
    None
}

/// The longest beginning that can be compared, bytes.
const FIRST_BYTES_MAX: usize = 64;

fn first_bytes(text: &At<&str>, _key: &str, problems: &mut Problems) -> Option<Vec<u8>> {
    let bytes = text.value.as_bytes();
    let message = match bytes {
        [] => "no bytes at all are the beginning of everything".to_owned(),
        [22, 3, ..] => "these bytes are the beginning of TLS".to_owned(),
        _ if bytes.len() > FIRST_BYTES_MAX => format!("more than {FIRST_BYTES_MAX} bytes"),
        _ => return Some(bytes.to_owned()),
    };
    problems.push(
        Diagnostic::error(&text.span, message).help("write first_bytes = \"SSH-\", for example"),
    );
    None
}

/// A condition on one line, as `fairlead check` shows it.
pub(crate) fn show_matcher(matcher: &Matcher) -> String {
    let any = |key: &str, values: Vec<String>| {
        let more = values.len().saturating_sub(4);
        let mut shown = values.into_iter().take(4).collect::<Vec<_>>().join(" | ");
        if more > 0 {
            shown += &format!(" | {more} more");
        }
        format!("{key} {shown}")
    };
    let names = |names: &[NamePattern]| {
        let show = |name: &NamePattern| match name {
            NamePattern::Exact(name) if name.contains(':') => format!("[{name}]"),
            NamePattern::Exact(name) => name.clone(),
            NamePattern::Suffix(name) => format!("*{name}"),
        };
        names.iter().map(show).collect()
    };
    let regexes = |all: &[regex::Regex]| all.iter().map(|one| format!("/{one}/")).collect();
    let named = |key: &str, name: &str, pattern: &ValuePattern| match pattern {
        ValuePattern::Present => format!("{key} {name} present"),
        ValuePattern::Exact(values) => any(&format!("{key} {name} ="), values.clone()),
        ValuePattern::Regex(regex) => format!("{key} {name} ~ /{regex}/"),
    };
    match matcher {
        Matcher::Listen(endpoints) => any(
            "listen",
            endpoints.iter().map(ToString::to_string).collect(),
        ),
        Matcher::Clients(list) => {
            let prefixes = list.entries().iter();
            let show = |one: &AccessEntry| format!("{}/{}", one.first, one.bits);
            any("clients", prefixes.map(show).collect())
        }
        Matcher::Host(hosts) => any("host", names(hosts)),
        Matcher::Sni(hosts) => any("sni", names(hosts)),
        Matcher::Path(paths) => any("path", paths.clone()),
        Matcher::PathPrefix(paths) => any("path_prefix", paths.clone()),
        Matcher::PathSuffix(paths) => any("path_suffix", paths.clone()),
        Matcher::PathRegex(all) => any("path_regex", regexes(all)),
        Matcher::Method(methods) => any("method", methods.clone()),
        Matcher::Alpn(protocols) => any("alpn", protocols.clone()),
        Matcher::NotTls => "not_tls".to_owned(),
        Matcher::FirstBytes(starts) => {
            let show = |start: &Vec<u8>| start.escape_ascii().to_string();
            any("first_bytes", starts.iter().map(show).collect())
        }
        Matcher::Header(name, pattern) => named("header", name, pattern),
        Matcher::Query(name, pattern) => named("query", name, pattern),
        Matcher::Cookie(name, pattern) => named("cookie", name, pattern),
    }
}
