//! Default schemes of the commands.

use fairlead_cache::Scheme;

/// What `advise` tries, the simplest first.
pub const ADVISED: &[&str] = &[
    "mod",
    "universal",
    "2-universal",
    "2-lru",
    "no-migrate",
    "spec",
];

/// Names of the project's own policy; those that are registered are tried as well.
const OWN: &[&str] = &["tide"];

/// The project's own scheme, where the cache knows it.
pub fn own() -> Option<&'static str> {
    OWN.iter().copied().find(|name| Scheme::parse(name).is_ok())
}
