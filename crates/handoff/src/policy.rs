//! Which connections an owner hands off, and when what is left of a resource is advertised.

use alloc::vec::Vec;

use crate::message::{Cid, Command, Message, Resource};

/// Which connections are handed off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All of them.
    #[default]
    All,
    /// Those of these server ports.
    Ports(Vec<u16>),
    /// Those that have carried at least this number of bytes, both ways together.
    BytesSeen(u64),
    /// Any, while at least this number of lines was free at the last advertisement.
    Advertised(u64),
}

/// What a policy looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The port that the client connected to.
    pub port: u16,
    /// Bytes that the owner has seen, both ways together.
    pub bytes_seen: u64,
    /// Lines that the carrier advertised last.
    pub advertised: u64,
    /// Free lines of the carrier's table.
    pub free_lines: u32,
}

impl Policy {
    /// Whether this connection is one to be handed off.
    pub fn allows(&self, facts: &Facts) -> bool {
        match self {
            Self::All => true,
            Self::Ports(ports) => ports.contains(&facts.port),
            Self::BytesSeen(least) => facts.bytes_seen >= *least,
            Self::Advertised(least) => facts.advertised >= *least,
        }
    }
}

/// Says what is left of a resource when it has changed by an eighth of all, at most ten times a
/// second.
#[derive(Clone, Copy, Debug)]
pub struct Advertiser {
    resource: Resource,
    /// What there is when none is used.
    all: u64,
    /// The level that was sent last, and when.
    sent: Option<(u64, u64)>,
}

/// The time between two messages about one resource, ms.
const PAUSE_MS: u64 = 100;

impl Advertiser {
    /// For a resource of which there is `all`.
    pub fn new(resource: Resource, all: u64) -> Self {
        let sent = None;
        Self {
            resource,
            all,
            sent,
        }
    }

    /// The message that is due at this level, if any.
    pub fn level(&mut self, level: u64, now_ms: u64) -> Option<Message> {
        if let Some((before, at_ms)) = self.sent {
            // The ends are always said, lest a full carrier look like one with a little room.
            let is_end = level != before && (level == 0 || level >= self.all);
            let changed = level.abs_diff(before) >= (self.all / 8).max(1);
            if !(changed || is_end) || now_ms.saturating_sub(at_ms) < PAUSE_MS {
                return None;
            }
        }
        self.sent = Some((level, now_ms));
        let resource = self.resource;
        let command = Command::OsResource { resource, level };
        Some(Message::command(Cid(0), command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Body;

    #[test]
    fn each_policy_looks_at_its_own_fact() {
        let facts = Facts {
            port: 443,
            bytes_seen: 100,
            advertised: 8,
            free_lines: 0,
        };
        let allows = |policy: Policy| policy.allows(&facts);
        assert!(allows(Policy::All));
        assert!(allows(Policy::Ports([80, 443].into())));
        assert!(!allows(Policy::Ports([80].into())));
        assert!(!allows(Policy::Ports(Vec::new())));
        assert!(allows(Policy::BytesSeen(100)) && !allows(Policy::BytesSeen(101)));
        assert!(allows(Policy::Advertised(8)) && !allows(Policy::Advertised(9)));
    }

    #[test]
    fn a_level_is_said_when_it_moved_by_an_eighth_and_not_too_often() {
        let mut lines = Advertiser::new(Resource::Lines, 800);
        let mut said = |level, now_ms| {
            let message = lines.level(level, now_ms)?;
            match message.body {
                Body::Command(Command::OsResource { level, .. }) => Some(level),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(said(800, 0), Some(800), "the first one");
        assert_eq!(said(701, 500), None);
        assert_eq!(said(700, 500), Some(700));
        assert_eq!(said(100, 599), None, "too soon");
        assert_eq!(said(100, 600), Some(100));
        assert_eq!(said(0, 900), Some(0));
        assert_eq!(said(99, 1_900), None);
        assert_eq!(said(1, 2_000), None);
        assert_eq!(said(0, 2_100), None, "as said before");
    }
}
