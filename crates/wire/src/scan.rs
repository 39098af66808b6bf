//! The answer of a scanner that is shown a growing run of bytes.

/// What a scanner says of the bytes so far. Every verdict but [`Scan::Incomplete`] is final: more
/// bytes behind those that led to it never change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan<T, E> {
    /// Nothing wrong yet, and not the whole of it.
    Incomplete,
    /// All of it is here.
    Complete(T),
    /// No bytes that could follow would make this right.
    Malformed(E),
}

impl<T, E> Scan<T, E> {
    /// The whole, if it is here.
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
