//! Paths of HTTP requests, compared as the client wrote them: no percent is decoded and no dot
//! segment resolved, for the server will see these same bytes. A route is therefore no access
//! control: `/%61dmin` does not start with `/admin`, though a server may serve it as such.

use regex::Regex;

/// Whether the path is one of these.
pub(super) fn equal(paths: &[String], path: &str) -> bool {
    paths.iter().any(|wanted| wanted == path)
}

/// Whether the path starts with one of these, letter by letter: `/api` is the start of `/apiary`.
pub(super) fn start(starts: &[String], path: &str) -> bool {
    starts.iter().any(|start| path.starts_with(start.as_str()))
}

/// Whether the path ends with one of these.
pub(super) fn end(ends: &[String], path: &str) -> bool {
    ends.iter().any(|end| path.ends_with(end.as_str()))
}

/// Whether one of these is found somewhere in the path.
pub(super) fn regex(expressions: &[Regex], path: &str) -> bool {
    expressions
        .iter()
        .any(|expression| expression.is_match(path))
}
