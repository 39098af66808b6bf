//! `fairlead status`: what a running switch says of itself, for people or as it came.

mod view;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::admin::{Status, StatusError};
use crate::config::load;
use crate::screen::{Paint, print, print_error};

pub(crate) use view::plain;
use view::render;

/// What `fairlead status` takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct StatusArgs {
    /// Write the document of /status as it comes
    #[arg(long)]
    pub json: bool,
    /// Address and port where the switch serves its pages [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", conflicts_with = "config", value_parser = at)]
    pub admin: Option<SocketAddr>,
    /// Take the address from this configuration
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The address and port that somebody wrote.
pub(crate) fn at(text: &str) -> Result<SocketAddr, String> {
    let port = DEFAULT_ADMIN.port();
    let bare = text.trim_matches(['[', ']']);
    text.parse().map_err(|_| match bare.parse::<IpAddr>() {
        Ok(ip) => format!("the port is missing: write {}", SocketAddr::new(ip, port)),
        Err(_) => {
            format!("write an address and a port, such as {DEFAULT_ADMIN}; names are not looked up")
        }
    })
}

/// One line of text from elsewhere, without what could drive the terminal.
pub(crate) fn plain_line(text: &str) -> String {
    text.chars()
        .map(|one| if one.is_control() { '\u{fffd}' } else { one })
        .collect()
}

const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9_090);
/// How long the whole answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest document that is read, bytes.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

/// Fetches and shows the status: 0 when there is one.
pub fn run(args: &StatusArgs) -> ExitCode {
    match shown(args) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&format!("fairlead status: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn shown(args: &StatusArgs) -> Result<String, StatusError> {
    let body = fetch(address(args)?)?;
    let status = read(&body)?;
    if args.json {
        return Ok(format!("{}\n", body.trim_end()));
    }
    Ok(render(&status, Paint::stdout()))
}

/// The document of `/status`. What it lacks is left at its default, for it may be another
/// version's; but a name every switch has.
pub(crate) fn read(body: &str) -> Result<Status, StatusError> {
    let no_status = |why: &dyn std::fmt::Display| {
        StatusError(format!("the answer is no status of Fairlead: {why}"))
    };
    let status: Status = serde_json::from_str(body).map_err(|error| no_status(&error))?;
    match status.instance.is_empty() {
        true => Err(no_status(&"it names no instance")),
        false => Ok(status),
    }
}

/// Whom to ask.
pub(crate) fn address(args: &StatusArgs) -> Result<SocketAddr, StatusError> {
    let Some(path) = &args.config else {
        return Ok(args.admin.unwrap_or(DEFAULT_ADMIN));
    };
    let loaded = load(path).map_err(|error| StatusError(error.to_string()))?;
    let mut admin = loaded.settings.instance.admin.ok_or_else(|| {
        StatusError(format!(
            "{} has no admin address, so its switch has no pages; write admin = \"{DEFAULT_ADMIN}\" \
             in [instance]",
            path.display()
        ))
    })?;
    if admin.ip().is_unspecified() {
        let own = match admin {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        admin.set_ip(own);
    }
    Ok(admin)
}

/// The document of `/status` as a switch at `admin` gives it.
pub fn fetch(admin: SocketAddr) -> Result<String, StatusError> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .build()
        .into();
    let unreachable = |error: ureq::Error| {
        let advice = match &error {
            ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
                "; is the switch running? --admin ADDR or --config FILE say where"
            }
            _ => "",
        };
        StatusError(format!("no answer from {admin}: {error}{advice}"))
    };
    let mut answer = agent
        .get(format!("http://{admin}/status"))
        .call()
        .map_err(unreachable)?;
    let code = answer.status();
    let body = answer
        .body_mut()
        .with_config()
        .limit(DOCUMENT_BYTES_MAX)
        .read_to_string()
        .map_err(unreachable)?;
    if code.is_success() {
        return Ok(body);
    }
    let told = plain(body.lines().next().unwrap_or_default());
    Err(StatusError(format!("{admin} answers {code}: {told}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_programs_document_is_no_status() {
        assert!(read(r#"{"instance": "edge", "new_in_2040": 1}"#).is_ok());
        for other in ["{}", r#"{"status": "UP"}"#, "[]", "ok", ""] {
            let error = read(other).unwrap_err();
            assert!(
                error.to_string().contains("no status of Fairlead"),
                "{other}"
            );
        }
    }
}
