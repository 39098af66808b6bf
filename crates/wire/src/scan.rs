//! The answer of a scanner that is shown a growing run of bytes.

/// A scanner's verdict on the bytes so far. Every verdict but [`Scan::Incomplete`] is final: more
/// bytes never change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan<T, E> {
    /// Valid so far, but incomplete.
    Incomplete,
    /// Complete.
    Complete(T),
    /// Invalid, whatever bytes follow.
    Malformed(E),
}

impl<T, E> Scan<T, E> {
    /// The result, if complete.
    pub fn complete(self) -> Option<T> {
        match self {
            Self::Complete(whole) => Some(whole),
            Self::Incomplete | Self::Malformed(_) => None,
        }
    }

    /// The error, if there is one.
    pub fn malformed(self) -> Option<E> {
        match self {
            Self::Malformed(error) => Some(error),
            Self::Incomplete | Self::Complete(_) => None,
        }
    }
}
