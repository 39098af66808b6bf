//! Paths of HTTP requests, compared as the client wrote them: no percent is decoded and no dot
//! segment resolved, for the server will see these same bytes. A route is therefore no access
//! control: `/%61dmin` does not start with `/admin`, though a server may serve it as such.

use regex::Regex;

/// Whether the path is one of these.
pub(super) fn equal(paths: &[String], path: &[u8]) -> bool {
    paths.iter().any(|wanted| wanted.as_bytes() == path)
}

/// Whether the path starts with one of these, letter by letter: `/api` is the start of `/apiary`.
pub(super) fn start(starts: &[String], path: &[u8]) -> bool {
    starts
        .iter()
        .any(|start| path.starts_with(start.as_bytes()))
}

/// Whether the path ends with one of these.
pub(super) fn end(ends: &[String], path: &[u8]) -> bool {
    ends.iter().any(|end| path.ends_with(end.as_bytes()))
}

/// Whether one of these is found somewhere in the path. A path that is not UTF-8 matches none.
pub(super) fn regex(expressions: &[Regex], path: &[u8]) -> bool {
    let Ok(path) = core::str::from_utf8(path) else {
        return false;
    };
    expressions
        .iter()
        .any(|expression| expression.is_match(path))
}
