//! An HTTP cache in front of a pool of servers (RFC 9111), as a state machine: heads, bytes and
//! time go in; decisions, heads and parts of bodies come out.
//!
//! # How to drive it
//! 1. For each request, [`Cache::request`]. On [`Decision::Hit`] send the head that was appended to
//!    the buffer, fields of the connection (`Connection`, `Transfer-Encoding: chunked` if
//!    [`Body::length`] is `None`) and an empty line; then the body: [`Cache::read`],
//!    [`Cache::advance`] by what was sent, until [`Read::End`]; [`Cache::end`] in any case. On
//!    [`Decision::Fetch`] send a GET with the client's fields that [`Settings::fetches_with`]
//!    allows, and the conditions given. On [`Decision::Wait`] do nothing. On [`Decision::Pass`]
//!    relay as if there were no cache, add [`Cache::note_pass`]'s fields to the response, and
//!    call [`Cache::passed`] with it.
//! 2. For each final response to a fetch, [`Cache::response`], and do what [`Next`] says. With
//!    [`Next::Fill`], every piece of its body to [`Cache::body`], then [`Cache::finish`]; if it
//!    ends otherwise, [`Cache::abort`]. The client that caused the fetch is answered as in 1. A
//!    `Fill` goes on when its client leaves, until [`Event::Abandoned`].
//! 3. If there is no response, [`Cache::abort`]: it may have a stale answer.
//! 4. After every call, [`Cache::poll_event`] until `None`. At [`Cache::poll_timeout`],
//!    [`Cache::handle_timeout`].
//!
//! 5. To keep what is stored when the process ends: [`Settings::journals`], a store that outlives
//!    it, [`Cache::poll_journal`] after every turn, and [`Cache::restore`].
//!
//! | file | contents |
//! |---|---|
//! | `cache/` | the calls above, one file each; memory, invariants |
//! | `freshness.rs` | what may be stored, how long it is fresh; the verdict of a look-up |
//! | `directives.rs`, `dictionary.rs`, `date.rs` | fields of requests and responses |
//! | `range.rs`, `conditions.rs` | ranges and conditions of requests |
//! | `key.rs`, `object.rs`, `store.rs`, `slab.rs` | what is stored, and how it is found |
//! | `journal.rs` | what outlives the process |
//! | `tags.rs`, `remembered.rs` | purges; keys that cannot be shared |
//! | `head.rs`, `asked.rs`, `answer.rs` | heads, and what is read and written of them |
//! | `sample.rs` | the last hour's requests, for the laboratory |
//! | `settings.rs`, `reason.rs`, `stats.rs` | what it is made with, and what it counts |
//!
//! Directory and policies are those of `fairlead-content`.
//!
//! Absent by design: sockets, clocks, threads, files, random sources.
#![forbid(unsafe_code)]

mod answer;
mod asked;
mod cache;
mod conditions;
mod date;
mod dictionary;
mod directives;
mod freshness;
mod head;
mod journal;
mod key;
mod object;
mod range;
mod reason;
mod remembered;
mod sample;
mod settings;
mod slab;
mod stats;
mod store;
mod tags;

pub use cache::{
    Answer, Body, Cache, Decision, Event, Explained, Fetch, FetchId, Journal, Next, Offered, Piece,
    Purge, PurgeError, Read, ReaderId, Variant, WaiterId,
};
pub use date::{parse_date, write_date};
pub use directives::{RequestControl, ResponseControl};
pub use fairlead_content::{BlockSize, CacheOffset, Extent, Policy};
pub use freshness::{Fit, Judgement, VARY_MAX, Verdict};
pub use head::{Field, Now, RequestHead, ResponseHead};
pub use range::{Asked, parse_range};
pub use reason::Reason;
pub use sample::Sample;
pub use settings::{KeyPart, NOT_FETCHED, Settings, UNKEYED};
pub use stats::{ReasonCounts, Stats};
pub use store::{AnyStore, Memory, Store};
pub use tags::{PREFIXES_MAX, TAGS_MAX};

#[cfg(test)]
mod tests;
