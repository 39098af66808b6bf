//! Why a request was not answered from the cache, or a response was not stored. Each is counted.

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// Why something did not happen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $variant),+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// As it stands in `Cache-Status`, metrics and logs.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

reasons! {
    /// The method is neither GET nor HEAD.
    Method = "method",
    /// The target is no path, or there is no host.
    Target = "target",
    /// The request has a body.
    RequestBody = "request-body",
    /// The request asks for an upgrade or expects an interim response.
    Upgrade = "upgrade",
    /// `If-Match` or `If-Unmodified-Since`: the server decides.
    Precondition = "precondition",
    /// The request has a cookie, and such requests take no part.
    Cookie = "cookie",
    /// The head is longer than the limit, or has too many fields.
    HeadTooLarge = "head-too-large",
    /// HEAD, and nothing is stored.
    HeadMiss = "head-miss",
    /// The request says `no-store`.
    RequestNoStore = "request-no-store",
    /// The request says `only-if-cached`, and there is nothing to answer it with.
    OnlyIfCached = "only-if-cached",
    /// The request has `Authorization`, and the response does not permit storing.
    Authorization = "authorization",
    /// A range of an object that recently was too large.
    RangeOfUncacheable = "range-of-uncacheable",
    /// Too many fetches at a time.
    FetchesFull = "fetches-full",
    /// The status cannot be stored: 206, 304 without a stored response, `must-understand`.
    Status = "status",
    /// The response says `no-store`.
    NoStore = "no-store",
    /// The response is for one user.
    Private = "private",
    /// The response sets a cookie.
    SetCookie = "set-cookie",
    /// `Vary: *`, or more field names than the limit.
    Vary = "vary",
    /// Neither a lifetime nor a validator.
    NoFreshness = "no-freshness",
    /// The body is longer than `max_object`.
    TooLarge = "too-large",
    /// More tags than the limit.
    Tags = "tags",
    /// No memory could be made free: what is stored is being read.
    NoMemory = "no-memory",
    /// The store refused a write.
    StoreFailed = "store-failed",
    /// The body was shorter or longer than announced.
    Length = "length",
    /// The fetch ended before the body did.
    Cut = "cut",
    /// A purge came between the request to the server and its response.
    Purged = "purged",
    /// A waiter's time was up.
    Stalled = "stalled",
    /// Too many requests wait.
    WaitersFull = "waiters-full",
    /// Too many answers are read.
    ReadersFull = "readers-full",
    /// The stored response is for another request.
    Variant = "variant",
    /// The response that was waited for cannot be shared.
    NotShared = "not-shared",
    /// The fetch that was waited for failed.
    FetchFailed = "fetch-failed",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_tokens_and_numbers_are_places() {
        for (at, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            let name = reason.name();
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
            );
            assert!(Reason::ALL[..at].iter().all(|other| other.name() != name));
        }
    }
}
