//! ON and OFF: whether a line was touched a short while ago (paper, section 3.3).
//!
//! In the paper each line has a 3-bit counter, set to 7 at every access and decremented at every
//! tick; a line is ON while the counter is at least 4. That is equivalent to the number of ticks
//! since the last access, and, since time only goes forward, to whether the line's last access came
//! after a certain access. So lines store only the number of their last access, and the cost of a
//! tick does not depend on the number of lines.

use std::collections::VecDeque;

use thiserror::Error;

/// The counter's first value (paper, section 3.3: "111").
pub const COUNTER_MAX: u32 = 7;
/// The longest ON time, in ticks, but for [`Lifetime::ALWAYS`].
pub const ON_TICKS_MAX: u32 = 4096;
/// Access numbers start above those that mark empty lines.
pub(crate) const STAMP_FIRST: i32 = 65;
/// Access number at which numbers are compressed; far below the maximum, so that a block needs no
/// check.
const STAMP_LIMIT: i32 = i32::MAX - (1 << 24);

/// How long a line stays ON after its last access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lifetime {
    on_ticks: u32,
}

/// An ON time that is too long.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a line cannot stay ON for {0} ticks; write at most {ON_TICKS_MAX}, or use longer ticks")]
pub struct LifetimeError(pub u32);

impl Default for Lifetime {
    /// The paper's: 4 ticks of a quarter second.
    fn default() -> Self {
        Self { on_ticks: 4 }
    }
}

impl Lifetime {
    /// ON for ever once touched.
    pub const ALWAYS: Self = Self { on_ticks: u32::MAX };

    /// ON while fewer than `on_ticks` ticks passed since the last access; never with 0.
    ///
    /// # Errors
    /// Above [`ON_TICKS_MAX`].
    pub fn new(on_ticks: u32) -> Result<Self, LifetimeError> {
        if on_ticks > ON_TICKS_MAX {
            return Err(LifetimeError(on_ticks));
        }
        Ok(Self { on_ticks })
    }

    /// ON while a 3-bit counter is at least `threshold`: 4 in the paper, 8 and more is never, 0 is
    /// always.
    pub fn from_counter(threshold: u32) -> Self {
        match threshold {
            0 => Self::ALWAYS,
            _ => Self {
                on_ticks: (COUNTER_MAX + 1).saturating_sub(threshold),
            },
        }
    }

    /// Ticks for which a line stays ON; `u32::MAX` is for ever.
    pub fn on_ticks(&self) -> u32 {
        self.on_ticks
    }
}

/// The time of a cache: numbers of accesses ("stamps"), and which of them are recent.
///
/// Ticks that go backwards count as the current tick. The count wraps, so a jump of 2³¹ ticks or
/// more counts as backwards (17 years of quarter seconds).
#[derive(Clone, Debug)]
pub struct Clock {
    lifetime: Lifetime,
    tick: u32,
    stamp: i32,
    on_since: i32,
    /// The ticks of the window in which there were accesses, with the first stamp of each.
    window: VecDeque<(u32, i32)>,
    window_ticks: u32,
}

impl Clock {
    pub(crate) fn new(lifetime: Lifetime) -> Self {
        let finite = if lifetime == Lifetime::ALWAYS {
            0
        } else {
            lifetime.on_ticks
        };
        let window_ticks = finite.max(COUNTER_MAX + 1);
        let mut clock = Self {
            lifetime,
            tick: 0,
            stamp: STAMP_FIRST - 1,
            on_since: i32::MAX,
            window: VecDeque::with_capacity(window_ticks as usize + 1),
            window_ticks,
        };
        clock.window.push_back((0, STAMP_FIRST));
        clock.find_on_since();
        clock
    }

    /// Time is now `tick`.
    #[inline]
    pub(crate) fn advance(&mut self, tick: u32) {
        if tick != self.tick {
            self.step(tick);
        }
    }

    #[cold]
    #[inline(never)]
    fn step(&mut self, tick: u32) {
        if (tick.wrapping_sub(self.tick) as i32) < 0 {
            return;
        }
        self.tick = tick;
        let next = self.stamp + 1;
        while let Some((old, _)) = self.window.front() {
            if tick.wrapping_sub(*old) < self.window_ticks {
                break;
            }
            self.window.pop_front();
        }
        self.window.push_back((tick, next));
        self.find_on_since();
    }

    fn find_on_since(&mut self) {
        self.on_since = match self.lifetime.on_ticks {
            0 => i32::MAX,
            u32::MAX => STAMP_FIRST,
            on_ticks => self.since(on_ticks),
        };
    }

    /// The first stamp of the last `ticks` ticks.
    fn since(&self, ticks: u32) -> i32 {
        let at = self
            .window
            .partition_point(|(tick, _)| self.tick.wrapping_sub(*tick) >= ticks);
        self.window.get(at).map_or(i32::MAX, |(_, stamp)| *stamp)
    }

    /// Takes the number of the next access.
    #[inline]
    pub(crate) fn take(&mut self) -> i32 {
        self.stamp += 1;
        self.stamp
    }

    /// The present tick.
    pub fn tick(&self) -> u32 {
        self.tick
    }

    /// The number of the last access; grows by one with each hit and each fill.
    pub fn stamp(&self) -> i32 {
        self.stamp
    }

    /// Lines with this stamp or a later one are ON.
    #[inline]
    pub fn on_since(&self) -> i32 {
        self.on_since
    }

    /// The lifetime that lines have.
    pub fn lifetime(&self) -> Lifetime {
        self.lifetime
    }

    /// What the paper's counter holds for a line with this stamp: 7 in the tick of its last access,
    /// one less for each tick since, 0 at the end and for empty lines.
    pub fn counter(&self, stamp: i32) -> u32 {
        let past = self.window.partition_point(|(_, first)| *first <= stamp);
        let Some((tick, _)) = past.checked_sub(1).and_then(|at| self.window.get(at)) else {
            return 0;
        };
        COUNTER_MAX.saturating_sub(self.tick.wrapping_sub(*tick))
    }

    /// True when stamps must be compressed before a further block of accesses.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.stamp >= STAMP_LIMIT
    }

    /// Stamps were replaced by `renumbered(old)`, which keeps their order; the last is now `last`.
    pub(crate) fn compress(&mut self, last: i32, renumbered: impl Fn(i32) -> i32) {
        self.stamp = last;
        for (_, first) in &mut self.window {
            *first = renumbered(*first);
        }
        self.find_on_since();
    }

    /// Sets the last access, for callers that count blocks of accesses themselves.
    #[inline]
    pub(crate) fn set_stamp(&mut self, stamp: i32) {
        self.stamp = stamp;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_base::Rng;

    /// The paper's counters, lowered tick by tick.
    #[test]
    fn stamps_say_what_literal_counters_say() {
        for threshold in 1..=8 {
            let lifetime = Lifetime::from_counter(threshold);
            let mut clock = Clock::new(lifetime);
            let mut rng = Rng::new(u64::from(threshold));
            let (mut counters, mut stamps) = ([0u32; 16], [0i32; 16]);
            let mut tick = 0u32;
            for _ in 0..4000 {
                let leap = if rng.chance(50_000) {
                    rng.below(12)
                } else {
                    rng.below(3) / 2
                };
                for _ in 0..leap {
                    tick += 1;
                    counters = counters.map(|counter| counter.saturating_sub(1));
                }
                clock.advance(tick);
                let line = rng.below(16) as usize;
                counters[line] = 7;
                stamps[line] = clock.take();
                for (counter, stamp) in counters.iter().zip(stamps) {
                    assert_eq!(stamp >= clock.on_since(), *counter >= threshold);
                    assert_eq!(clock.counter(stamp), *counter);
                }
            }
        }
    }

    #[test]
    fn zero_ticks_are_never_and_threshold_zero_is_always() {
        let mut never = Clock::new(Lifetime::new(0).unwrap());
        let mut always = Clock::new(Lifetime::from_counter(0));
        for tick in [0, 5, 1 << 30] {
            never.advance(tick);
            always.advance(tick);
            assert!(never.take() < never.on_since() && always.take() >= always.on_since());
        }
        assert!(
            Lifetime::new(5000)
                .unwrap_err()
                .to_string()
                .contains("4096")
        );
    }

    #[test]
    fn ticks_wrap_and_do_not_run_backwards() {
        let mut clock = Clock::new(Lifetime::default());
        clock.advance(i32::MAX as u32);
        clock.advance(u32::MAX - 1);
        let stamp = clock.take();
        clock.advance(1);
        assert!(stamp >= clock.on_since());
        clock.advance(u32::MAX - 3);
        assert_eq!(clock.tick(), 1);
        clock.advance(2);
        assert!(stamp < clock.on_since());
    }
}
