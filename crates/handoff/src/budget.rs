//! What an owner may use, and the room that is kept for others.

/// What one owner may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Connections handed off at once, those that are moving included.
    pub connections: u32,
    /// Restores in any second that begins with one; 0: none are limited.
    pub restores_per_second: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            connections: 10_000,
            restores_per_second: 1_000,
        }
    }
}

/// What a ledger may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, of all owners together; at most [`crate::Cid::LINES`].
    pub connections: u32,
    /// Owners at once. An owner without connections takes no place.
    pub owners: u32,
    /// Connections moving at once: between a lock and its end.
    pub moving: u32,
    /// Free lines of the carrier's table that are kept for newcomers.
    pub kept_free: u32,
    /// What each owner may use.
    pub budget: Budget,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            owners: 64,
            moving: 256,
            kept_free: 1_024,
            budget: Budget::default(),
        }
    }
}

/// Restores in the current second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    began_ms: u64,
    used: u32,
}

impl Rate {
    /// Takes one of `most` a second; false when they are used up.
    pub(crate) fn take(&mut self, most: u32, now_ms: u64) -> bool {
        if self.used == 0 || now_ms.saturating_sub(self.began_ms) >= 1_000 {
            *self = Self {
                began_ms: now_ms,
                used: 0,
            };
        }
        if most != 0 && self.used >= most {
            return false;
        }
        self.used = self.used.saturating_add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_restores_and_the_next_one_again() {
        let mut rate = Rate::default();
        let taken = |rate: &mut Rate, now_ms| (0..5).filter(|_| rate.take(3, now_ms)).count();
        assert_eq!(taken(&mut rate, 10), 3);
        assert_eq!(taken(&mut rate, 1_009), 0);
        assert_eq!(taken(&mut rate, 1_010), 3);
        assert_eq!((0..5).filter(|_| rate.take(0, 1_011)).count(), 5, "0: any");
    }
}
