//! `fairlead status`: shows the status of a running switch, as text or JSON.

mod view;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::admin::{Status, StatusError};
use crate::config::{load, path_if_there};
use crate::screen::{Paint, print, print_error};

pub(crate) use view::plain;
use view::render;

/// Arguments of `fairlead status`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct StatusArgs {
    /// Print the JSON document of /status unchanged
    #[arg(long)]
    pub json: bool,
    /// Address and port of the admin pages [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR", conflicts_with = "config", value_parser = at)]
    pub admin: Option<SocketAddr>,
    /// Read the address from this configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Parses an address with a port from the command line.
pub(crate) fn at(text: &str) -> Result<SocketAddr, String> {
    let port = DEFAULT_ADMIN.port();
    let bare = text.trim_matches(['[', ']']);
    text.parse().map_err(|_| match bare.parse::<IpAddr>() {
        Ok(ip) => format!("missing port: write {}", SocketAddr::new(ip, port)),
        Err(_) => {
            format!(
                "write an IP address and a port, such as {DEFAULT_ADMIN}; host names are not \
                     resolved"
            )
        }
    })
}

/// A line of untrusted text, without terminal control characters.
pub(crate) fn plain_line(text: &str) -> String {
    text.chars()
        .map(|one| if one.is_control() { '\u{fffd}' } else { one })
        .collect()
}

const DEFAULT_ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9_090);
/// Time limit for the whole answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of the document, bytes.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

/// Fetches and prints the status. Exit code 0 on success.
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

/// Parses the document of `/status`. Missing fields get defaults, because the switch may have
/// another version; the instance name is required.
pub(crate) fn read(body: &str) -> Result<Status, StatusError> {
    let no_status = |why: &dyn std::fmt::Display| {
        StatusError(format!("the answer is not a Fairlead status: {why}"))
    };
    let status: Status = serde_json::from_str(body).map_err(|error| no_status(&error))?;
    match status.instance.is_empty() {
        true => Err(no_status(&"it has no instance name")),
        false => Ok(status),
    }
}

/// The address of the admin pages.
pub(crate) fn address(args: &StatusArgs) -> Result<SocketAddr, StatusError> {
    if let Some(admin) = args.admin {
        return Ok(admin);
    }
    let Some(path) = path_if_there(args.config.as_deref()) else {
        return Ok(DEFAULT_ADMIN);
    };
    let loaded = load(&path).map_err(|error| StatusError(error.to_string()))?;
    let mut admin = loaded.settings.instance.admin.ok_or_else(|| {
        StatusError(format!(
            "{} sets no admin address, so the switch has no admin pages; write admin = \
             \"{DEFAULT_ADMIN}\" in [instance]",
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

/// Fetches the document of `/status` from a switch at `admin`.
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
                "; is the switch running? --admin ADDR or --config FILE selects the address"
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
    Err(StatusError(format!("{admin} answered {code}: {told}")))
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
                error.to_string().contains("not a Fairlead status"),
                "{other}"
            );
        }
    }
}
