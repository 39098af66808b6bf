//! Rules that let packets from the device pass the rules for servers' answers.
//!
//! A server's packet that belongs to no connection of the switch is written back to the device,
//! and must not return to it: `iif DEVICE goto 7601` comes before the rules for answers, and an
//! empty rule at 7601 behind them. Rules of others between there and the main table hold for these
//! packets, too. All instances share the empty rule; the last one removes it.

use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};

use super::kernel::{Kernel, family};
use super::{BYPASS_PRIORITY, BYPASS_TARGET, NetError, PROTOCOL};

/// The rules of one device and IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bypass {
    pub(super) device: String,
    pub(super) v4: bool,
}

impl Bypass {
    /// Adds what is missing of this rule and the empty one; false when nothing was. This one comes
    /// first: an empty rule alone is always a leftover.
    pub(super) async fn add(&self, kernel: &Kernel) -> Result<bool, NetError> {
        let step = format!("adding the {}", self.describe());
        let first = kernel.add_message(self.message(), &step).await?;
        let target = kernel.add_message(target(self.v4), &step).await?;
        Ok(first || target)
    }

    /// Removes it, with the shared one if it was the last.
    pub(super) async fn remove(&self, kernel: &Kernel) -> Result<(), NetError> {
        let step = format!("removing the {}", self.describe());
        kernel.remove_message(self.message(), &step).await?;
        if Self::all(kernel, self.v4).await?.is_empty() {
            kernel.remove_message(target(self.v4), &step).await?;
        }
        Ok(())
    }

    /// Those that instances of this program made.
    pub(super) async fn all(kernel: &Kernel, v4: bool) -> Result<Vec<Self>, NetError> {
        let rules = kernel.rules(v4).await?;
        Ok(rules.iter().filter_map(|rule| Self::of(rule, v4)).collect())
    }

    pub(super) fn describe(&self) -> String {
        let version = if self.v4 { "IPv4" } else { "IPv6" };
        let device = &self.device;
        format!("{version} rule iif {device} goto {BYPASS_TARGET}")
    }

    fn message(&self) -> RuleMessage {
        let mut rule = rule_of_ours(self.v4, RuleAction::Goto, BYPASS_PRIORITY);
        rule.attributes.extend([
            RuleAttribute::Goto(BYPASS_TARGET),
            RuleAttribute::Iifname(self.device.clone()),
        ]);
        rule
    }

    fn of(rule: &RuleMessage, v4: bool) -> Option<Self> {
        let (mut ours, mut priority, mut device) = (false, 0, None);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Protocol(by) => ours = u8::from(*by) == PROTOCOL,
                RuleAttribute::Priority(number) => priority = *number,
                RuleAttribute::Iifname(name) => device = Some(name.clone()),
                _ => {}
            }
        }
        let device = device.filter(|_| ours && priority == BYPASS_PRIORITY)?;
        Some(Self { device, v4 })
    }
}

/// Where they lead: an empty rule.
fn target(v4: bool) -> RuleMessage {
    rule_of_ours(v4, RuleAction::Nop, BYPASS_TARGET)
}

fn rule_of_ours(v4: bool, action: RuleAction, priority: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = family(v4);
    rule.header.action = action;
    rule.attributes = vec![
        RuleAttribute::Priority(priority),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    rule
}
