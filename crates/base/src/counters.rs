//! Tables of counters: each counter is declared once, with its name, its metric and its help text,
//! and status pages, metrics and their documentation iterate over the table.

/// One counter's line in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The field, which is its name in `/status`.
    pub name: &'static str,
    /// Whether it only rises.
    pub kind: CounterKind,
    /// The metric's name without prefix and `_total`; empty when it is in no metric.
    pub metric: &'static str,
    /// A label and its value. Counters that follow each other and share a metric are one family of
    /// metrics, described by the first.
    pub label: Option<(&'static str, &'static str)>,
    /// One sentence without its full stop.
    pub help: &'static str,
}

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Events since the start.
    Counter,
    /// A state now.
    Gauge,
}

/// A struct of 64-bit numbers that [`counters!`](crate::counters) has made.
pub trait CounterSet: Default + Sized {
    /// Its counters, in the order of their declaration.
    const TABLE: &'static [Counter];

    /// The value of the counter at this place of the table.
    fn value(&self, at: usize) -> u64;

    /// The counter at this place of the table.
    fn value_mut(&mut self, at: usize) -> &mut u64;

    /// All counters with their values.
    fn values(&self) -> impl Iterator<Item = (&'static Counter, u64)> {
        let all = Self::TABLE.iter().enumerate();
        all.map(|(at, counter)| (counter, self.value(at)))
    }

    /// The counter of this name; `None` when there is none.
    fn by_name(&mut self, name: &str) -> Option<&mut u64> {
        let at = Self::TABLE.iter().position(|one| one.name == name)?;
        Some(self.value_mut(at))
    }

    /// What was counted since `earlier`; gauges as they are.
    #[must_use]
    fn since(&self, earlier: &Self) -> Self {
        let mut since = Self::default();
        for (at, counter) in Self::TABLE.iter().enumerate() {
            *since.value_mut(at) = match counter.kind {
                CounterKind::Counter => self.value(at).saturating_sub(earlier.value(at)),
                CounterKind::Gauge => self.value(at),
            };
        }
        since
    }
}

/// Declares a struct of counters and its table ([`CounterSet`]):
///
/// ```
/// fairlead_base::counters! {
///     /// What a door has seen.
///     pub struct DoorCounters {
///         Counter opened: "door_opened", "Times that the door was opened";
///         Gauge inside: "persons" { place = "inside" }, "Persons by place";
///     }
/// }
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* $vis:vis struct $set:ident {
        $($kind:ident $field:ident: $metric:literal
            $({ $label:ident = $value:literal })?, $help:literal;)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $set {
            $(#[doc = concat!($help, ".")] pub $field: u64,)+
        }

        impl $crate::CounterSet for $set {
            const TABLE: &'static [$crate::Counter] = &[$($crate::Counter {
                name: stringify!($field),
                kind: $crate::CounterKind::$kind,
                metric: $metric,
                label: $crate::counters!(@label $($label = $value)?),
                help: $help,
            }),+];

            fn value(&self, at: usize) -> u64 {
                [$(self.$field),+][at]
            }

            fn value_mut(&mut self, at: usize) -> &mut u64 {
                [$(&mut self.$field),+].into_iter().nth(at).expect("a place of the table")
            }
        }
    };
    (@label) => { None };
    (@label $label:ident = $value:literal) => { Some((stringify!($label), $value)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::counters! {
        struct Door {
            Counter opened: "door_opened", "Times that the door was opened";
            Gauge inside: "persons" { place = "inside" }, "Persons by place";
        }
    }

    #[test]
    fn counters_have_names_values_and_differences() {
        let mut door = Door {
            opened: 5,
            inside: 3,
        };
        let earlier = door;
        *door.by_name("opened").unwrap() += 2;
        *door.by_name("inside").unwrap() -= 1;
        assert_eq!(door.by_name("closed"), None);
        let values: Vec<_> = door
            .values()
            .map(|(one, value)| (one.name, value))
            .collect();
        assert_eq!(values, [("opened", 7), ("inside", 2)]);
        let since = Door {
            opened: 2,
            inside: 2,
        };
        assert_eq!(door.since(&earlier), since);
        assert_eq!(Door::TABLE[0].label, None);
        assert_eq!(Door::TABLE[1].label, Some(("place", "inside")));
        assert_eq!(Door::TABLE[1].kind, CounterKind::Gauge);
    }
}
