//! Keys of the file. Each is declared once, in a table; reading it, what a reload changes, what
//! `fairlead check` shows and the tables of `docs/configuration.md` follow from that.

use core::time::Duration;
use std::fmt::Debug;

use super::diagnostic::Problems;
use super::quantity::{duration, show_duration, show_size, size};
use super::section::{Section, integer, word};

pub(crate) use super::instance::{KEYS as INSTANCE, LIMITS_KEYS as LIMITS};
pub(crate) use super::log::KEYS as LOG;
pub(crate) use super::network::{FASTPATH_KEYS as FASTPATH, NETWORK_KEYS as NETWORK};
pub(crate) use super::pool::KEYS as POOL;
pub(crate) use super::service::{KEYS as SERVICE, ROUTE_KEYS as ROUTE};

/// A key of a table of the file, from which a `T` is filled.
#[derive(Debug)]
pub(crate) struct Key<T: 'static> {
    /// As it is written.
    pub(crate) name: &'static str,
    /// One line of `docs/configuration.md`.
    pub(crate) meaning: &'static str,
    /// The default as the documentation has it; what a `T` has without the key if empty.
    pub(crate) default: &'static str,
    /// What it was called in files of earlier versions.
    pub(crate) renamed_from: Option<Renamed>,
    pub(crate) value: Value<T>,
}

impl<T> Key<T> {
    /// A key whose default follows from [`Standard`].
    pub(crate) const fn new(name: &'static str, value: Value<T>, meaning: &'static str) -> Self {
        Self {
            name,
            meaning,
            default: "",
            renamed_from: None,
            value,
        }
    }

    /// A key that the code of its table reads.
    pub(crate) const fn special(
        name: &'static str,
        default: &'static str,
        show: fn(&T) -> String,
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            meaning,
            default,
            renamed_from: None,
            value: Value::Special { show },
        }
    }

    /// The same with another default in the documentation.
    pub(crate) const fn default(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    /// The same, once called `key` in `[table]`.
    pub(crate) const fn renamed_from(mut self, table: &'static str, key: &'static str) -> Self {
        self.renamed_from = Some(Renamed {
            table,
            key,
            when: None,
        });
        self
    }

    /// The same, where the earlier name had another meaning, too.
    pub(crate) const fn when(mut self, key: &'static str, word: &'static str) -> Self {
        if let Some(renamed) = &mut self.renamed_from {
            renamed.when = Some((key, word));
        }
        self
    }
}

/// An earlier name of a key: its table and its name there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renamed {
    /// The earlier table, without brackets.
    pub(crate) table: &'static str,
    /// The earlier name.
    pub(crate) key: &'static str,
    /// Where the earlier name had two meanings: it had this one if the earlier table has this word
    /// under this key.
    pub(crate) when: Option<(&'static str, &'static str)>,
}

/// What is written under a key, and where it goes.
#[derive(Debug)]
pub(crate) enum Value<T: 'static> {
    /// A duration within bounds.
    Duration {
        from: Duration,
        to: Duration,
        get: fn(&T) -> Duration,
        set: fn(&mut T, Duration),
    },
    /// A duration within bounds, or none.
    OptionalDuration {
        from: Duration,
        to: Duration,
        get: fn(&T) -> Option<Duration>,
        set: fn(&mut T, Duration),
    },
    /// A whole number within bounds.
    Number {
        from: u64,
        to: u64,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    },
    /// A number of bytes within bounds.
    Size {
        from: u64,
        to: u64,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    },
    /// One of a few words; `set` has its place among them. What `get` has may be none of them:
    /// empty without the key.
    Word {
        words: fn() -> Vec<&'static str>,
        get: fn(&T) -> &'static str,
        set: fn(&mut T, usize),
    },
    /// Anything else: the code of the table reads it.
    Special { show: fn(&T) -> String },
}

/// What a table without keys means.
pub(crate) trait Standard: Sized {
    /// That.
    fn standard() -> Self;
}

/// What the documentation has of a key.
#[derive(Clone, Debug)]
pub struct Described {
    /// As it is written.
    pub name: &'static str,
    /// Its default, as Markdown.
    pub default: String,
    /// One line.
    pub meaning: &'static str,
    pub(crate) renamed_from: Option<Renamed>,
}

/// All keys of a table, for the documentation.
pub(crate) fn described<T: Standard>(keys: &[Key<T>]) -> Vec<Described> {
    let standard = T::standard();
    let of = |key: &Key<T>| Described {
        name: key.name,
        default: match key.default {
            "" => key.written(&standard),
            default => default.to_owned(),
        },
        meaning: key.meaning,
        renamed_from: key.renamed_from,
    };
    keys.iter().map(of).collect()
}

impl<T> Key<T> {
    /// Its value, for people; empty where there is none.
    pub(crate) fn show(&self, of: &T) -> String {
        match &self.value {
            Value::Duration { get, .. } => show_duration(get(of)),
            Value::OptionalDuration { get, .. } => get(of).map_or_else(String::new, show_duration),
            Value::Number { get, .. } => show_number(get(of)),
            Value::Size { get, .. } => show_size(get(of)),
            Value::Word { get, .. } => get(of).to_owned(),
            Value::Special { show } => show(of),
        }
    }

    /// Its value as the file has it, in Markdown.
    fn written(&self, of: &T) -> String {
        let shown = self.show(of);
        match &self.value {
            _ if shown.is_empty() => "none".to_owned(),
            Value::Number { .. } => format!("`{shown}`"),
            _ => format!("`\"{shown}\"`"),
        }
    }

    fn read(&self, section: Section<'_>, into: &mut T, problems: &mut Problems) {
        let Some(node) = section.node(self.name) else {
            return;
        };
        let name = self.name;
        match &self.value {
            Value::Duration { from, to, set, .. }
            | Value::OptionalDuration { from, to, set, .. } => {
                if let Some(value) = duration(node, name, (*from, *to), problems) {
                    set(into, value);
                }
            }
            Value::Number { from, to, set, .. } => {
                if let Some(value) = integer(node, name, *from..=*to, problems) {
                    set(into, value);
                }
            }
            Value::Size { from, to, set, .. } => {
                if let Some(value) = size(node, name, (*from, *to), problems) {
                    set(into, value.value);
                }
            }
            Value::Word { words, set, .. } => {
                let words: Vec<_> = words().into_iter().zip(0..).collect();
                if let Some(value) = word(node, name, &words, problems) {
                    set(into, value.value);
                }
            }
            Value::Special { .. } => {}
        }
    }
}

/// Reads all keys that need no code of their own.
pub(super) fn read<T>(
    keys: &[Key<T>],
    section: Section<'_>,
    into: &mut T,
    problems: &mut Problems,
) {
    for key in keys {
        key.read(section, into, problems);
    }
}

/// The keys that have a value, and their values, on one line.
pub(crate) fn shown<'k, T: 'static>(keys: impl IntoIterator<Item = &'k Key<T>>, of: &T) -> String {
    let keys = keys.into_iter();
    let shown = keys.map(|key| (key.name, key.show(of)));
    let shown = shown.filter(|(_, value)| !value.is_empty());
    let shown: Vec<_> = shown
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    shown.join(", ")
}

/// What is longer says nothing any more on a line about what is different.
const SHOWN_CHARS_MAX: usize = 200;

/// A line for each key that is different; `of` goes before its name. What is different without
/// being a key's is not passed over in silence.
pub(crate) fn differences<T: Debug>(
    keys: &[Key<T>],
    of: &str,
    (old, new): (&T, &T),
    lines: &mut Vec<String>,
) {
    let before = lines.len();
    for key in keys {
        let (was, is) = (key.show(old), key.show(new));
        if was == is {
            continue;
        }
        let name = key.name;
        let long = |text: &str| text.chars().count() > SHOWN_CHARS_MAX;
        let value = |text: String| {
            if text.is_empty() {
                "not set".to_owned()
            } else {
                text
            }
        };
        lines.push(match long(&was) || long(&is) {
            true => format!("{of}{name} is changed"),
            false => format!("{of}{name} is {}, was {}", value(is), value(was)),
        });
    }
    // Regular expressions have no equality but are written as they were read.
    if lines.len() == before && format!("{old:?}") != format!("{new:?}") {
        lines.push(format!("{}: changed", of.trim_end_matches([':', '.', ' '])));
    }
}

/// A number as it may be written in the file, in groups where it is long.
fn show_number(number: u64) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('_');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Door {
        width: u64,
        closes_after: Duration,
        colour: &'static str,
        hinges: u8,
    }

    impl Standard for Door {
        fn standard() -> Self {
            Self {
                width: 12_345,
                closes_after: Duration::from_secs(60),
                colour: "",
                hinges: 2,
            }
        }
    }

    const KEYS: [Key<Door>; 3] = [
        Key::new(
            "width",
            Value::Number {
                from: 1,
                to: 99_999,
                get: |door| door.width,
                set: |door, width| door.width = width,
            },
            "how wide it is",
        ),
        Key::new(
            "closes_after",
            Value::Duration {
                from: Duration::ZERO,
                to: Duration::from_secs(600),
                get: |door| door.closes_after,
                set: |door, after| door.closes_after = after,
            },
            "when it closes",
        ),
        Key::new(
            "colour",
            Value::Word {
                words: || vec!["red", "green"],
                get: |door| door.colour,
                set: |door, at| door.colour = ["red", "green"][at],
            },
            "its colour",
        ),
    ];

    #[test]
    fn keys_are_shown_and_documented_as_they_are_written() {
        let door = Door::standard();
        assert_eq!(shown(&KEYS, &door), "width 12_345, closes_after 1m");
        let defaults: Vec<_> = described(&KEYS)
            .into_iter()
            .map(|one| one.default)
            .collect();
        assert_eq!(defaults, ["`12_345`", "`\"1m\"`", "none"]);
    }

    #[test]
    fn differences_name_the_key_and_miss_nothing() {
        let told = |change: fn(&mut Door)| {
            let mut new = Door::standard();
            change(&mut new);
            let mut lines = Vec::new();
            differences(&KEYS, "door one: ", (&Door::standard(), &new), &mut lines);
            lines
        };
        assert_eq!(told(|_| ()), [""; 0]);
        let colour = told(|door| door.colour = "red");
        assert_eq!(colour, ["door one: colour is red, was not set"]);
        assert_eq!(
            told(|door| door.width = 9),
            ["door one: width is 9, was 12_345"]
        );
        // A field without a key.
        assert_eq!(told(|door| door.hinges = 3), ["door one: changed"]);
    }
}
