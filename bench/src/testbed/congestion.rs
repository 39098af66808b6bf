//! Which congestion control the hosts use. It decides more than anything else how dear a transfer
//! is, for peers most of all: BBR paces what a connection sends by timers, CUBIC does not.

use anyhow::{Context, Result};
use fairlead_netns::Host;

/// Linux's own default, whatever a machine's is: figures of two machines can be compared.
pub(crate) const USUAL: &str = "cubic";

const SYSCTL: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED: &str = "net.ipv4.tcp_allowed_congestion_control";

/// Has the hosts use what was asked for, or else [`USUAL`] if this machine allows it. Gives what
/// they use.
pub(crate) fn settle(hosts: [&Host; 3], asked: Option<&str>) -> Result<String> {
    for host in hosts {
        let Err(error) = host.sysctl(SYSCTL, asked.unwrap_or(USUAL)) else {
            continue;
        };
        let Some(asked) = asked else {
            break; // one that it does not know, or does not allow in a namespace: its own, then
        };
        return Err(error).with_context(|| {
            format!("{asked} cannot be had in a namespace; {ALLOWED} lists what can")
        });
    }
    let used = in_use(hosts[0])?;
    for host in hosts {
        host.sysctl(SYSCTL, &used)?;
    }
    match asked {
        None if used != USUAL => println!(
            "congestion control: {used}, this machine's own; {ALLOWED} does not list {USUAL}"
        ),
        _ => println!("congestion control: {used}"),
    }
    Ok(used)
}

fn in_use(host: &Host) -> Result<String> {
    let path = format!("/proc/sys/{}", SYSCTL.replace('.', "/"));
    let text = host.enter(|| std::fs::read_to_string(&path))?;
    Ok(text.with_context(|| path.clone())?.trim().to_owned())
}
