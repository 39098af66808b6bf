//! Numbered causes of drops and refusals: data, not errors. Every one is counted.

use core::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $number:literal, $name:literal;)+) => {
        /// Why a packet was dropped or a connection refused. The number is stable: the kernel
        /// program, the metrics and the logs share it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant = $number,)+
        }

        impl DropReason {
            /// All reasons, in order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in metrics and logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// One sentence for people.
            pub fn describe(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// Shorter than its headers say, or than the smallest header.
    Truncated = 1, "truncated";
    /// An IP version other than 4 or 6, or a header length below the minimum.
    BadIpHeader = 2, "bad_ip_header";
    /// The IPv4 header checksum is wrong.
    BadIpChecksum = 3, "bad_ip_checksum";
    /// A fragment of a packet that is not for an address of the switch.
    Fragment = 4, "fragment";
    /// An IPv6 extension header chain that is too long or not understood.
    BadExtensionHeader = 5, "bad_extension_header";
    /// A TCP header whose data offset is below 5 words or past the packet's end.
    BadTcpHeader = 6, "bad_tcp_header";
    /// The TCP checksum is wrong.
    BadTcpChecksum = 7, "bad_tcp_checksum";
    /// A TCP option list that runs past the header or has an impossible length.
    BadTcpOptions = 8, "bad_tcp_options";
    /// Flags that no TCP sends together (SYN with FIN or RST, or none at all).
    BadTcpFlags = 9, "bad_tcp_flags";
    /// Neither TCP nor an ICMP message that concerns a connection.
    NotTcp = 10, "not_tcp";
    /// For an address or port that no service and no connection here has.
    NotOurs = 11, "not_ours";
    /// An ICMP message that is malformed or quotes no connection of ours.
    BadIcmp = 12, "bad_icmp";
    /// Hop limit used up.
    TtlExpired = 13, "ttl_expired";
    /// An impossible source address (unspecified, multicast, broadcast, or our own).
    BadSource = 14, "bad_source";
    /// Fragments whose packet was not whole within 30 s.
    FragmentTimeout = 15, "fragment_timeout";
    /// Fragments that were given up because there were too many.
    FragmentLimit = 16, "fragment_limit";
    /// Fragments of a packet that contradict each other.
    FragmentOverlap = 17, "fragment_overlap";

    /// First data with an acknowledgement that is no cookie of ours, or one too old.
    CookieInvalid = 20, "cookie_invalid";
    /// A packet for a connection that does not exist (any more).
    NoConnection = 21, "no_connection";
    /// The connection table is full.
    TableFull = 22, "table_full";
    /// Too many connections are being set up at once.
    SetupFull = 23, "setup_full";
    /// Too many half-read heads in all.
    HalfReadFull = 24, "half_read_full";
    /// Too many half-read heads of one client, or answers that it has not acknowledged.
    HalfReadClientFull = 25, "half_read_client_full";
    /// The limit of bytes buffered in heads is reached.
    BufferFull = 26, "buffer_full";
    /// The switch is draining and takes no new connections.
    Draining = 27, "draining";
    /// Data beyond what is buffered for a head, or too many holes in it.
    BeyondHead = 28, "beyond_head";
    /// A sequence or acknowledgement number that this connection cannot have.
    BadSequence = 29, "bad_sequence";
    /// A retransmission of bytes that the switch itself holds and retransmits.
    HeldAlready = 30, "held_already";
    /// A packet that changes nothing in the state the connection is in.
    NothingToDo = 31, "nothing_to_do";

    /// The head is not whole at its limit.
    HeadTooLarge = 40, "head_too_large";
    /// The head did not become whole in time.
    HeadTimeout = 41, "head_timeout";
    /// An HTTP head that breaks RFC 9112 or could be read in two ways.
    HttpMalformed = 42, "http_malformed";
    /// An HTTP version other than 1.0 and 1.1.
    HttpVersion = 43, "http_version";
    /// TLS bytes that are no ClientHello, or a malformed one.
    TlsMalformed = 44, "tls_malformed";
    /// No route matches.
    NoRoute = 45, "no_route";
    /// No server of the pool can be reached.
    NoServer = 46, "no_server";
    /// Every address and port of the source pool is in use towards the server.
    SnatExhausted = 47, "snat_exhausted";
    /// The server refused the connection.
    ServerRefused = 48, "server_refused";
    /// The server did not answer in time.
    ServerSilent = 49, "server_silent";
    /// The server did not agree to an option that was promised to the client.
    OptionMismatch = 50, "option_mismatch";
    /// The server did not acknowledge the bytes that the switch holds for it.
    PreambleUnacked = 51, "preamble_unacked";
    /// No packet for the idle time.
    IdleTimeout = 52, "idle_timeout";
    /// One side closed and nothing came for the half-closed time.
    HalfClosedTimeout = 53, "half_closed_timeout";
    /// The client did not take the switch's own answer.
    AnswerUnacked = 54, "answer_unacked";

    /// A device did not take the packet.
    TransmitFailed = 60, "transmit_failed";
    /// An event could not be kept because nobody fetched the earlier ones.
    EventLost = 61, "event_lost";
    /// A SYN, a segment that proved no handshake, or a packet for no service, that the kernel
    /// dropped because the engine did not keep up.
    Overloaded = 62, "overloaded";
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const REASON_NUMBERS: usize = 64;

/// A counter for every [`DropReason`].
#[derive(Clone, Debug)]
pub struct ReasonCounts([u64; REASON_NUMBERS]);

impl Default for ReasonCounts {
    fn default() -> Self {
        Self([0; REASON_NUMBERS])
    }
}

impl ReasonCounts {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, reason: DropReason) {
        self.0[reason as usize % REASON_NUMBERS] += 1;
    }

    /// Counts `count` at once, counted elsewhere.
    pub fn add_many(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize % REASON_NUMBERS] += count;
    }

    /// The count of one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize % REASON_NUMBERS]
    }

    /// Every reason with its count, zero or not.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.of(reason)))
    }

    /// Adds another set of counts.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }

    /// The sum over all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_rising_and_within_the_counters() {
        for pair in DropReason::ALL.windows(2) {
            assert!((pair[0] as u8) < (pair[1] as u8));
        }
        assert!((*DropReason::ALL.last().unwrap() as usize) < REASON_NUMBERS);
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
    }
}
