//! Who holds each connection.

use fairlead_tcp::Line;
use fairlead_tcp::ticket::TICKETS_MAX;

/// Who may move a connection's record, and what the other side has to do first to get it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Custody {
    /// The engine. Lines without a connection are the engine's, too.
    #[default]
    Engine,
    /// The fast path joins it when its server answers (`connect.rs`). Until then it reads at
    /// `place`, if the connection was begun by a ticket.
    Connecting { place: Option<u32> },
    /// The fast path forwards its packets.
    Kernel,
    /// Nobody's connection yet: the fast path may begin one with this line (`preconnect.rs`).
    Ticket { lane: u16, place: u32 },
}

impl Custody {
    /// All transitions that there are.
    fn may_become(self, next: Self) -> bool {
        match (self, next) {
            // Nothing is left but to translate; or a connection of an earlier run goes on.
            (Self::Engine, Self::Kernel)
            // Its server was sent a SYN.
            | (Self::Engine, Self::Connecting { place: None })
            // A line was reserved for a connection that the fast path may begin.
            | (Self::Engine, Self::Ticket { .. })
            // Taken back, or gone.
            | (Self::Connecting { .. } | Self::Kernel | Self::Ticket { .. }, Self::Engine)
            // Its server has answered.
            | (Self::Connecting { .. }, Self::Kernel) => true,
            // A client took the ticket.
            (Self::Ticket { place, .. }, Self::Connecting { place: taken }) => taken == Some(place),
            (
                Self::Engine | Self::Connecting { .. } | Self::Kernel | Self::Ticket { .. },
                Self::Engine | Self::Connecting { .. } | Self::Kernel | Self::Ticket { .. },
            ) => false,
        }
    }

    /// The place at which the fast path may read for it.
    pub(in crate::engine) fn place(self) -> Option<u32> {
        match self {
            Self::Engine | Self::Kernel => None,
            Self::Connecting { place } => place,
            Self::Ticket { place, .. } => Some(place),
        }
    }
}

/// The custody of every connection, by line, and the places that none of them has.
#[derive(Debug, Default)]
pub(in crate::engine) struct Custodies {
    /// As long as the highest line that was ever not the engine's.
    by_line: Vec<Custody>,
    free_places: Vec<u32>,
}

impl Custodies {
    /// Everything is the engine's. `places`: the fast path can begin connections.
    pub(super) fn reset(&mut self, places: bool) {
        let mut others = self.by_line.iter().filter(|one| **one != Custody::Engine);
        debug_assert!(others.next().is_none(), "all is taken back before");
        self.by_line.clear();
        self.free_places.clear();
        if places {
            self.free_places.extend(0..TICKETS_MAX);
        }
    }

    /// Who holds the connection on this line.
    #[inline]
    pub(in crate::engine) fn of(&self, line: Line) -> Custody {
        let custody = self.by_line.get(line.0 as usize);
        custody.copied().unwrap_or_default()
    }

    /// The place for the next ticket, if one is free.
    pub(super) fn next_place(&self) -> Option<u32> {
        self.free_places.last().copied()
    }

    /// Moves a connection from one holder to another. A place that was read at is free from then
    /// on; that of a ticket is [`Self::next_place`].
    pub(super) fn pass(&mut self, line: Line, next: Custody) {
        let before = self.of(line);
        debug_assert!(before.may_become(next), "{line:?}: {before:?} to {next:?}");
        if self.by_line.len() <= line.0 as usize {
            self.by_line.resize(line.0 as usize + 1, Custody::Engine);
        }
        self.by_line[line.0 as usize] = next;
        match (before.place(), next.place()) {
            (Some(free), None) => self.free_places.push(free),
            (None, Some(taken)) => {
                let place = self.free_places.pop();
                debug_assert_eq!(place, Some(taken), "a ticket takes the next place");
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// The connection on this line is gone, whoever held it.
    pub(super) fn clear(&mut self, line: Line) {
        if self.of(line) != Custody::Engine {
            self.pass(line, Custody::Engine);
        }
    }

    /// Everyone that the engine does not hold, by line.
    pub(in crate::engine) fn others(&self) -> impl Iterator<Item = (Line, Custody)> + '_ {
        let all = (0..).map(Line).zip(self.by_line.iter().copied());
        all.filter(|(_, custody)| *custody != Custody::Engine)
    }

    pub(in crate::engine) fn free_places(&self) -> &[u32] {
        &self.free_places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Line = Line(3);

    fn custodies() -> Custodies {
        let mut custodies = Custodies::default();
        custodies.reset(true);
        custodies
    }

    #[test]
    fn a_place_is_in_use_from_ticket_to_splice_and_free_then() {
        let mut all = custodies();
        let place = all.next_place().unwrap();
        all.pass(LINE, Custody::Ticket { lane: 0, place });
        assert_ne!(all.next_place(), Some(place));
        let place_of = |custody: Custody| custody.place();
        let taken = Custody::Connecting { place: Some(place) };
        all.pass(LINE, taken);
        assert_eq!(place_of(all.of(LINE)), Some(place));
        assert_ne!(all.next_place(), Some(place));
        all.pass(LINE, Custody::Kernel);
        assert_eq!(all.next_place(), Some(place));
        all.clear(LINE);
        all.clear(LINE);
        assert_eq!(all.of(LINE), Custody::Engine);
        assert_eq!(all.free_places().len(), TICKETS_MAX as usize);
    }

    #[test]
    fn lines_that_nobody_was_given_are_the_engines() {
        let mut all = custodies();
        assert_eq!(all.of(Line(u32::MAX)), Custody::Engine);
        all.pass(LINE, Custody::Kernel);
        assert_eq!(all.others().collect::<Vec<_>>(), [(LINE, Custody::Kernel)]);
        assert_eq!(all.of(Line(2)), Custody::Engine);
    }

    #[test]
    fn only_the_listed_transitions_are_possible() {
        let ticket = |place| Custody::Ticket { lane: 1, place };
        let connecting = |place| Custody::Connecting { place };
        let (engine, kernel) = (Custody::Engine, Custody::Kernel);
        let all = [
            engine,
            kernel,
            ticket(7),
            connecting(None),
            connecting(Some(7)),
        ];
        let possible: Vec<(Custody, Custody)> = all
            .iter()
            .flat_map(|from| all.iter().map(move |to| (*from, *to)))
            .filter(|(from, to)| from.may_become(*to))
            .collect();
        assert_eq!(
            possible,
            [
                (engine, kernel),
                (engine, ticket(7)),
                (engine, connecting(None)),
                (kernel, engine),
                (ticket(7), engine),
                (ticket(7), connecting(Some(7))),
                (connecting(None), engine),
                (connecting(None), kernel),
                (connecting(Some(7)), engine),
                (connecting(Some(7)), kernel),
            ]
        );
        assert!(
            !ticket(7).may_become(connecting(Some(8))),
            "another's place"
        );
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Kernel to Connecting")]
    fn what_the_kernel_forwards_is_taken_back_before_it_connects_again() {
        let mut all = custodies();
        all.pass(LINE, Custody::Kernel);
        all.pass(LINE, Custody::Connecting { place: None });
    }
}
