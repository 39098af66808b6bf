//! The token with which the admin address takes orders. It stays in its file: the settings, which
//! are shown and compared, have the path alone.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::diagnostic::{Diagnostic, Problems};
use super::page::bytes_of;
use super::section::{Section, quoted, string};

/// How long a token may be, bytes.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 256;
/// The longest file.
const FILE_BYTES_MAX: u64 = 1_024;

/// The file that is named, if it has a token.
pub(super) fn token_file(section: Section<'_>, problems: &mut Problems) -> Option<PathBuf> {
    let node = section.node("admin_token_file")?;
    let path = string(
        node,
        "admin_token_file",
        "\"/etc/fairlead/token\"",
        problems,
    )?;
    let found = Path::new(path.value);
    if !found.is_absolute() {
        let message = format!("{} is not an absolute path", quoted(path.value));
        let help = "write the whole path, beginning with /";
        problems.push(Diagnostic::error(&path.span, message).help(help));
        return None;
    }
    if let Err(why) = read(found) {
        let message = format!("no token in {}: {why}", path.value);
        let help = "`openssl rand -hex 32` makes one; write it into the file, alone";
        problems.push(Diagnostic::error(&path.span, message).help(help));
        return None;
    }
    let mode = std::fs::metadata(found).map_or(0, |found| found.permissions().mode());
    if mode & 0o077 != 0 {
        let message = format!("others can read the token (mode {:o})", mode & 0o777);
        let help = format!("chmod 600 {}", path.value);
        problems.push(Diagnostic::warning(&path.span, message).help(help));
    }
    Some(found.to_owned())
}

/// The token in a file: its only word.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let text = bytes_of(path, FILE_BYTES_MAX)?;
    let text = String::from_utf8(text).map_err(|_| "it is not text".to_owned())?;
    let token = text.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it has more than one word, or other characters than ASCII".to_owned());
    }
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(format!(
            "{} characters instead of {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}",
            token.len()
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SMALL, parse};

    #[test]
    fn a_token_is_one_word_of_some_length_in_a_file_that_others_cannot_read() {
        let folder = std::env::temp_dir().join(format!("fairlead-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("token");
        let file = |admin: &str| {
            let keys = format!(
                "name = \"one\"\n{admin}admin_token_file = \"{}\"",
                path.display()
            );
            parse(&SMALL.replace("name = \"one\"", &keys), "a.toml")
        };
        let listen = "admin = \"127.0.0.1:9\"\n";
        for (text, why) in [
            ("0123456789abcde", "15 characters"),
            ("0123456789 abcdefghijk", "more than one word"),
            (&"a".repeat(257), "257 characters"),
            (&"a".repeat(2_000), "longer than 1 KiB"),
            ("0123456789abcdef\u{e4}", "other characters"),
        ] {
            std::fs::write(&path, text).expect("written");
            let said = file(listen).expect_err(text).to_string();
            assert!(said.contains(why), "{said}");
        }
        std::fs::write(&path, "0123456789abcdef\n").expect("written");
        assert_eq!(read(&path).as_deref(), Ok("0123456789abcdef"));
        for (mode, warns) in [(0o600, false), (0o640, true), (0o604, true)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("a mode");
            let warnings = file(listen).expect("settings").warnings.to_string();
            assert_eq!(warnings.contains("others can read"), warns, "{warnings}");
        }
        let warnings = file("").expect("settings").warnings.to_string();
        assert!(
            warnings.contains("does nothing without `admin`"),
            "{warnings}"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(file(listen).is_err(), "missing");
    }
}
