//! Predicts where packets would be translated, by the steps of `serve`: the same attach modes in
//! the same order, on the same interfaces, with the same program.

use fairlead_bpf_loader::{Mode as AttachMode, Pins, is_pinned, rehearse};
use fairlead_survey::{Link, XdpFeatures, xdp_features};

use super::{Check, Facts};
use crate::config::Mode;
use crate::serve::fastpath::{attach_modes, attach_modes_on, in_full, slow_there};
use crate::serve::interfaces::interfaces;
use crate::serve::vlans::carrier;

/// Names of a running switch's programs in the kernel.
const OURS: [&str; 2] = ["fairlead_xdp", "fairlead_tc"];

/// The predicted mode of `serve`.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// Name of the mode.
    pub(super) name: &'static str,
    /// The attach mode; `None` for the engine alone.
    pub(super) attach_mode: Option<AttachMode>,
    /// The interfaces that it would be attached to.
    pub(super) interfaces: Vec<String>,
    /// Why the modes tried before it do not work.
    pub(super) why_not_better: String,
    asked: Mode,
}

/// Tries what `serve` would try.
pub(super) fn expect(facts: &Facts) -> Expected {
    let asked = facts
        .settings
        .as_ref()
        .map_or(Mode::Auto, |settings| settings.fastpath.mode);
    let found = match &facts.settings {
        Some(settings) => interfaces(settings),
        None => fairlead_bpf_loader::ethernet_interfaces().map_err(|error| error.to_string()),
    };
    let mut refusals = Vec::new();
    let on = found.as_deref().unwrap_or_default();
    for (attach_mode, reason) in attach_modes_on(asked, on) {
        let tried = reason.map_or_else(|| try_mode(attach_mode, &found, facts), Err);
        match tried {
            Ok(()) => {
                refusals.extend(slow_there(asked, attach_mode, on));
                return Expected {
                    name: attach_mode.name(),
                    attach_mode: Some(attach_mode),
                    interfaces: found.unwrap_or_default(),
                    why_not_better: refusals.join("; "),
                    asked,
                };
            }
            Err(why) => refusals.push(format!("{}: {why}", attach_mode.name())),
        }
    }
    Expected {
        name: "engine",
        attach_mode: None,
        interfaces: found.unwrap_or_default(),
        why_not_better: match asked {
            Mode::Engine => "mode = \"engine\"".to_owned(),
            _ => refusals.join("; "),
        },
        asked,
    }
}

fn try_mode(
    attach_mode: AttachMode,
    found: &Result<Vec<String>, String>,
    facts: &Facts,
) -> Result<(), String> {
    let settings = facts.settings.as_ref();
    let kind = settings.map(|settings| settings.fastpath.flow_table);
    rehearse(attach_mode, kind.unwrap_or_default()).map_err(|error| in_full(&error))?;
    let found = found.as_ref().map_err(Clone::clone)?;
    let links: &[Link] = facts.links.as_deref().unwrap_or_default();
    for name in found {
        let link = links.iter().find(|link| link.name == *name);
        let link = link.ok_or_else(|| format!("interface {name} does not exist"))?;
        let link = carrier(links, attach_mode, link);
        let instance = settings.map(|settings| settings.instance.name.as_str());
        let pins = instance.and_then(Pins::seen_from_outside);
        // As in `serve`. Without a configuration, instances are indistinguishable.
        let is_its_own = |id: u32| {
            let own = |pins: &Pins| pins.has_program(link.index, id);
            let others = || instance.is_some() && is_pinned(link.index, id);
            is_ours(id) && (pins.as_ref().is_some_and(own) || !others())
        };
        fits(
            attach_mode,
            link,
            xdp_features(link.index).ok().flatten(),
            is_its_own,
        )?;
    }
    Ok(())
}

/// Why `attach_mode` is not available on an interface, as far as this can be known without trying.
fn fits(
    attach_mode: AttachMode,
    link: &Link,
    features: Option<XdpFeatures>,
    is_its_own: impl Fn(u32) -> bool,
) -> Result<(), String> {
    if attach_mode == AttachMode::Tc {
        return Ok(());
    }
    let name = &link.name;
    if let Some(program) = link.xdp.iter().find(|program| !is_its_own(program.id)) {
        let whose = fairlead_survey::program_name(program.id).unwrap_or_default();
        return Err(format!(
            "{name} has another XDP program (id {}, {whose}), which is not replaced",
            program.id
        ));
    }
    match (attach_mode, features) {
        (AttachMode::XdpNative, Some(features)) if !features.basic() => {
            Err(format!("the driver of {name} does not support native XDP"))
        }
        (AttachMode::XdpNative, Some(features)) if !features.redirect() => Err(format!(
            "the driver of {name} does not support XDP redirect"
        )),
        _ => Ok(()),
    }
}

/// True for a program that a running switch has attached.
fn is_ours(id: u32) -> bool {
    fairlead_survey::program_name(id).is_ok_and(|name| is_our_name(&name))
}

/// True for the name of one of our programs, even truncated.
pub(crate) fn is_our_name(name: &str) -> bool {
    name.len() >= 8 && OURS.iter().any(|ours| ours.starts_with(name))
}

impl Expected {
    /// The attach mode that interfaces are checked for: the one that works, or else the only one
    /// configured.
    pub(super) fn wanted_mode(&self) -> Option<AttachMode> {
        let only = match attach_modes(self.asked) {
            [only] => Some(*only),
            _ => None,
        };
        self.attach_mode.or(only)
    }

    /// As a finding.
    pub(super) fn check(&self) -> Check {
        const ABOUT: &str = "mode";
        let on = match self.interfaces.is_empty() {
            true => String::new(),
            false => format!(" on {}", self.interfaces.join(", ")),
        };
        let asked = self.asked.name();
        if self.attach_mode.is_some() {
            let what = format!("mode = \"{asked}\": {}{on}", self.name);
            if self.why_not_better.is_empty() {
                return Check::ok(ABOUT, "mode", what);
            }
            let what = format!("{what} ({})", self.why_not_better);
            return match self.asked {
                Mode::Auto => Check::ok(ABOUT, "mode", what),
                // A drawback of the configured mode.
                _ => Check::warning(ABOUT, "mode", what)
                    .advise("mode = \"auto\" selects the best available mode"),
            };
        }
        let why = &self.why_not_better;
        match self.asked {
            Mode::Engine => {
                let what = "mode = \"engine\": the engine handles every packet";
                Check::ok(ABOUT, "mode", what)
            }
            Mode::Auto => Check::warning(ABOUT, "mode", format!("mode = \"auto\": engine ({why})"))
                .advise(
                    "`serve` runs, but uses more CPU time per packet; see above for the reasons",
                ),
            _ => Check::problem(
                ABOUT,
                "mode",
                format!("mode = \"{asked}\" is not available: {why}"),
            )
            .advise("mode = \"auto\" selects the best available mode"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn expected(asked: Mode, attach_mode: Option<AttachMode>) -> Check {
        let expected = Expected {
            name: attach_mode.map_or("engine", AttachMode::name),
            attach_mode,
            interfaces: vec!["eth0".into()],
            why_not_better: String::new(),
            asked,
        };
        expected.check()
    }

    #[test]
    fn an_unavailable_mode_is_a_problem_only_if_configured() {
        assert_eq!(expected(Mode::Xdp, None).state, State::Problem);
        assert_eq!(expected(Mode::Auto, None).state, State::Warning);
        assert_eq!(expected(Mode::Engine, None).state, State::Ok);
        let tc = expected(Mode::Auto, Some(AttachMode::Tc));
        assert_eq!(tc.state, State::Ok);
        assert_eq!(tc.what, "mode = \"auto\": tc on eth0");
        let slow = Expected {
            name: "xdp",
            attach_mode: Some(AttachMode::XdpNative),
            interfaces: vec!["eth0".into()],
            why_not_better: "eth0 carries super-packets".into(),
            asked: Mode::Xdp,
        };
        assert_eq!(slow.check().state, State::Warning);
    }

    #[test]
    fn our_programs_are_recognized_even_with_truncated_names() {
        assert!(is_our_name("fairlead_tc") && is_our_name("fairlead_xdp"));
        assert!(!is_our_name("xdp_dispatcher") && !is_our_name("") && !is_our_name("fair"));
    }
}
