//! Whether connections can become sockets of this machine, where a route asks for it.

use fairlead_splice::config::Route;

use super::{Check, Facts};
use crate::serve::host::OwnTcp;

const ABOUT: &str = "machine";
const NAME: &str = "sockets";

/// The check, where the configuration has a route with treatment `host` or `per-request`, or a
/// cache.
pub(super) fn look(facts: &Facts, mode: &str, checks: &mut Vec<Check>) {
    let watches = facts
        .settings
        .iter()
        .any(|one| !one.switch.watched.is_empty());
    let services = facts.settings.iter().flat_map(|one| &one.switch.services);
    let mut routes = services.flat_map(|one| &one.routes);
    if !watches && !routes.any(Route::is_to_socket) {
        return;
    }
    let kernel = fairlead_bpf_loader::has_host_function();
    checks.push(judge(mode, kernel, &OwnTcp::read()));
}

fn judge(mode: &str, kernel: Option<bool>, own: &OwnTcp) -> Check {
    let without = "clients of `host` take `fallback_pool` or are reset, those of `per-request` and \
                   `cache` reach the front by way of the engine, which costs more";
    if mode != "tc" && mode != "xdp" {
        let what =
            format!("routes to sockets of this machine do not work in mode {mode}: {without}");
        return Check::warning(ABOUT, NAME, what).advise("use mode = \"tc\"");
    }
    if kernel == Some(false) {
        let what = format!("routes to sockets of this machine need Linux 6.9: {without}");
        return Check::warning(ABOUT, NAME, what)
            .advise("use a newer kernel, or lead these routes to pools");
    }
    if let Some(why) = own.refusal() {
        let what = format!("routes to sockets of this machine do not work: {without}");
        return Check::warning(ABOUT, NAME, what).advise(why);
    }
    match kernel {
        None => Check::unseen(ABOUT, NAME, "the kernel's functions cannot be read"),
        Some(_) => Check::ok(
            ABOUT,
            NAME,
            "connections can become sockets of this machine",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn each_condition_is_named_with_what_to_do() {
        let good = OwnTcp::usual();
        assert_eq!(judge("tc", Some(true), &good).state, State::Ok);
        assert_eq!(judge("xdp", Some(true), &good).state, State::Ok);
        assert_eq!(judge("tc", None, &good).state, State::Unseen);
        for (check, words) in [
            (judge("engine", Some(true), &good), "mode engine"),
            (judge("xdp-generic", Some(true), &good), "mode xdp-generic"),
            (judge("tc", Some(false), &good), "Linux 6.9"),
            (
                judge("tc", Some(true), &good.without_cookies()),
                "do not work",
            ),
        ] {
            assert_eq!(check.state, State::Warning, "{check:?}");
            assert!(
                check.what.contains(words) && check.advice.is_some(),
                "{check:?}"
            );
        }
    }
}
