//! Files that the configuration names and whose contents belong to it: pages for clients that are
//! turned away.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use fairlead_splice::config::{PAGE_BYTES_MAX, Page, Protocol};

use super::diagnostic::{Diagnostic, Problems};
use super::section::{Section, quoted, string};
use super::service::protocol_name;

/// The page under a key, if there is one.
pub(super) fn page(
    section: Section<'_>,
    key: &str,
    protocol: Option<Protocol>,
    problems: &mut Problems,
) -> Option<Arc<Page>> {
    let node = section.node(key)?;
    let path = string(node, key, "\"/etc/fairlead/sorry.html\"", problems)?;
    if let Some(protocol) = protocol.filter(|protocol| *protocol != Protocol::Http) {
        let word = protocol_name(protocol);
        let message = format!("a {word} service answers no requests: `{key}` is for HTTP");
        problems.push(Diagnostic::error(&section.key_span(key), message).help("leave it out"));
        return None;
    }
    let mut refuse = |message: String, help: &str| {
        problems.push(Diagnostic::error(&path.span, message).help(help));
        None
    };
    if !Path::new(path.value).is_absolute() {
        let message = format!("{} is not an absolute path", quoted(path.value));
        return refuse(message, "write the whole path, beginning with /");
    }
    match bytes_of(Path::new(path.value), PAGE_BYTES_MAX as u64) {
        Ok(body) => Some(Arc::new(Page {
            path: path.value.to_owned(),
            content_type: content_type(path.value),
            body,
        })),
        Err(why) => {
            let message = format!("cannot read {}: {why}", path.value);
            refuse(
                message,
                "write the path of a readable file of at most 16 KiB",
            )
        }
    }
}

/// The path of a page and its length, to be shown.
pub(super) fn show(page: Option<&Arc<Page>>) -> String {
    page.map_or_else(String::new, |page| {
        format!("{} ({} bytes)", page.path, page.body.len())
    })
}

/// By the end of the file's name: HTML unless it says otherwise.
fn content_type(path: &str) -> &'static str {
    let extension = Path::new(path).extension().and_then(|end| end.to_str());
    match extension.map(str::to_ascii_lowercase).as_deref() {
        Some("txt") => "text/plain; charset=utf-8",
        Some("json") => "application/json",
        _ => "text/html; charset=utf-8",
    }
}

/// The contents of a file, unless it is longer. A device or a pipe would have no end.
pub(super) fn bytes_of(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > bytes_max {
        let (size, unit) = match bytes_max >> 20 {
            0 => (bytes_max >> 10, "KiB"),
            size => (size, "MiB"),
        };
        return Err(format!("it is longer than {size} {unit}"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_follows_from_the_name() {
        for (path, kind) in [
            ("/a/sorry.html", "text/html; charset=utf-8"),
            ("/a/sorry", "text/html; charset=utf-8"),
            ("/a.txt/sorry", "text/html; charset=utf-8"),
            ("/a/sorry.TXT", "text/plain; charset=utf-8"),
            ("/a/sorry.json", "application/json"),
        ] {
            assert_eq!(content_type(path), kind, "{path}");
        }
    }

    #[test]
    fn a_file_is_read_up_to_its_limit_and_no_further() {
        let folder = std::env::temp_dir().join(format!("fairlead-page-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("page");
        for (len, fits) in [(0, true), (1_024, true), (1_025, false)] {
            std::fs::write(&path, vec![7; len]).expect("written");
            match bytes_of(&path, 1_024) {
                Ok(bytes) => assert!(fits && bytes.len() == len, "{len}"),
                Err(why) => assert!(!fits && why.contains("longer than 1 KiB"), "{len}: {why}"),
            }
        }
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(bytes_of(&path, 1_024).is_err(), "missing");
    }
}
