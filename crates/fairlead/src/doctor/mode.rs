//! Where packets would be translated, found by the steps of `serve`: the same ways in the same
//! order, on the same interfaces, with the same program.

use fairlead_bpf_loader::{Mode as Way, Pins, is_pinned, rehearse};
use fairlead_survey::{Link, XdpFeatures, xdp_features};

use super::{Check, Facts};
use crate::config::Mode;
use crate::serve::fastpath::{in_full, slow_there, ways, ways_on};
use crate::serve::interfaces::interfaces;
use crate::serve::vlans::carrier;

/// Names that programs of a running switch have in the kernel.
const OURS: [&str; 2] = ["fairlead_xdp", "fairlead_tc"];

/// What is to be expected of `serve`.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// The word for it.
    pub(super) name: &'static str,
    /// The kernel's way; none for the engine alone.
    pub(super) way: Option<Way>,
    /// The interfaces that it would be attached to.
    pub(super) interfaces: Vec<String>,
    /// Why the ways that were tried before it do not work.
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
    for (way, reason) in ways_on(asked, on) {
        let tried = reason.map_or_else(|| try_way(way, &found, facts), Err);
        match tried {
            Ok(()) => {
                refusals.extend(slow_there(asked, way, on));
                return Expected {
                    name: way.name(),
                    way: Some(way),
                    interfaces: found.unwrap_or_default(),
                    why_not_better: refusals.join("; "),
                    asked,
                };
            }
            Err(why) => refusals.push(format!("{}: {why}", way.name())),
        }
    }
    Expected {
        name: "engine",
        way: None,
        interfaces: found.unwrap_or_default(),
        why_not_better: match asked {
            Mode::Engine => "mode = \"engine\"".to_owned(),
            _ => refusals.join("; "),
        },
        asked,
    }
}

fn try_way(way: Way, found: &Result<Vec<String>, String>, facts: &Facts) -> Result<(), String> {
    let settings = facts.settings.as_ref();
    let kind = settings.map(|settings| settings.fastpath.flow_table);
    rehearse(way, kind.unwrap_or_default()).map_err(|error| in_full(&error))?;
    let found = found.as_ref().map_err(Clone::clone)?;
    let links: &[Link] = facts.links.as_deref().unwrap_or_default();
    for name in found {
        let link = links.iter().find(|link| link.name == *name);
        let link = link.ok_or_else(|| format!("there is no interface {name}"))?;
        let link = carrier(links, way, link);
        let instance = settings.map(|settings| settings.instance.name.as_str());
        let pins = instance.and_then(Pins::seen_from_outside);
        // As `serve` sees it; without a configuration there is no instance to be told from others.
        let is_its_own = |id: u32| {
            let own = |pins: &Pins| pins.has_program(link.index, id);
            let others = || instance.is_some() && is_pinned(link.index, id);
            is_ours(id) && (pins.as_ref().is_some_and(own) || !others())
        };
        fits(
            way,
            link,
            xdp_features(link.index).ok().flatten(),
            is_its_own,
        )?;
    }
    Ok(())
}

/// Why `way` cannot be had on an interface, as far as that can be told without trying.
fn fits(
    way: Way,
    link: &Link,
    features: Option<XdpFeatures>,
    is_its_own: impl Fn(u32) -> bool,
) -> Result<(), String> {
    if way == Way::Tc {
        return Ok(());
    }
    let name = &link.name;
    if let Some(program) = link.xdp.iter().find(|program| !is_its_own(program.id)) {
        let whose = fairlead_survey::program_name(program.id).unwrap_or_default();
        return Err(format!(
            "{name} has another XDP program ({} {whose}), which is not replaced",
            program.id
        ));
    }
    match (way, features) {
        (Way::XdpNative, Some(features)) if !features.basic() => {
            Err(format!("the driver of {name} has no XDP of its own"))
        }
        (Way::XdpNative, Some(features)) if !features.redirect() => Err(format!(
            "XDP in the driver of {name} cannot send packets on"
        )),
        _ => Ok(()),
    }
}

/// True for a program that a running switch has attached.
fn is_ours(id: u32) -> bool {
    fairlead_survey::program_name(id).is_ok_and(|name| is_our_name(&name))
}

/// True for the name, maybe cut, of one of our programs.
pub(crate) fn is_our_name(name: &str) -> bool {
    name.len() >= 8 && OURS.iter().any(|ours| ours.starts_with(name))
}

impl Expected {
    /// The way that interfaces are judged by: the one that works, or the only one that was asked
    /// for, for that needs to be made to work.
    pub(super) fn way_wanted(&self) -> Option<Way> {
        let only = match ways(self.asked) {
            [only] => Some(*only),
            _ => None,
        };
        self.way.or(only)
    }

    /// As a finding.
    pub(super) fn check(&self) -> Check {
        const ABOUT: &str = "mode";
        let on = match self.interfaces.is_empty() {
            true => String::new(),
            false => format!(" on {}", self.interfaces.join(", ")),
        };
        let asked = self.asked.name();
        if self.way.is_some() {
            let what = format!("mode = \"{asked}\": {}{on}", self.name);
            if self.why_not_better.is_empty() {
                return Check::ok(ABOUT, "mode", what);
            }
            let what = format!("{what} ({})", self.why_not_better);
            return match self.asked {
                Mode::Auto => Check::ok(ABOUT, "mode", what),
                // Of the one way that was asked for.
                _ => Check::warning(ABOUT, "mode", what)
                    .advise("mode = \"auto\" takes the best that there is"),
            };
        }
        let why = &self.why_not_better;
        match self.asked {
            Mode::Engine => {
                let what = "mode = \"engine\": every packet takes the engine";
                Check::ok(ABOUT, "mode", what)
            }
            Mode::Auto => Check::warning(ABOUT, "mode", format!("mode = \"auto\": engine ({why})"))
                .advise(
                    "`serve` runs all the same, with more work a packet: see above for what is \
                     missing",
                ),
            _ => Check::problem(
                ABOUT,
                "mode",
                format!("mode = \"{asked}\" cannot be had: {why}"),
            )
            .advise("mode = \"auto\" takes the best that there is"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn expected(asked: Mode, way: Option<Way>) -> Check {
        let expected = Expected {
            name: way.map_or("engine", Way::name),
            way,
            interfaces: vec!["eth0".into()],
            why_not_better: String::new(),
            asked,
        };
        expected.check()
    }

    #[test]
    fn what_cannot_be_had_is_a_problem_only_where_it_was_asked_for() {
        assert_eq!(expected(Mode::Xdp, None).state, State::Problem);
        assert_eq!(expected(Mode::Auto, None).state, State::Warning);
        assert_eq!(expected(Mode::Engine, None).state, State::Ok);
        let tc = expected(Mode::Auto, Some(Way::Tc));
        assert_eq!(tc.state, State::Ok);
        assert_eq!(tc.what, "mode = \"auto\": tc on eth0");
        let slow = Expected {
            name: "xdp",
            way: Some(Way::XdpNative),
            interfaces: vec!["eth0".into()],
            why_not_better: "eth0 carries super-packets".into(),
            asked: Mode::Xdp,
        };
        assert_eq!(slow.check().state, State::Warning);
    }

    #[test]
    fn our_programs_are_known_by_their_names_even_cut() {
        assert!(is_our_name("fairlead_tc") && is_our_name("fairlead_xdp"));
        assert!(!is_our_name("xdp_dispatcher") && !is_our_name("") && !is_our_name("fair"));
    }
}
