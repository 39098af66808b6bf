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

            /// A one-sentence description.
            pub fn describe(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// Shorter than its length fields, or than the smallest header.
    Truncated = 1, "truncated";
    /// An IP version other than 4 or 6, or a header length below the minimum.
    BadIpHeader = 2, "bad_ip_header";
    /// The IPv4 header checksum is wrong.
    BadIpChecksum = 3, "bad_ip_checksum";
    /// A fragment to an address other than the switch's.
    Fragment = 4, "fragment";
    /// An IPv6 extension header chain that is too long or unsupported.
    BadExtensionHeader = 5, "bad_extension_header";
    /// A TCP header whose data offset is below 5 words or past the packet's end.
    BadTcpHeader = 6, "bad_tcp_header";
    /// The TCP checksum is wrong.
    BadTcpChecksum = 7, "bad_tcp_checksum";
    /// A TCP option list that exceeds the header or has an invalid length.
    BadTcpOptions = 8, "bad_tcp_options";
    /// An invalid combination of TCP flags (SYN with FIN or RST, or no flags).
    BadTcpFlags = 9, "bad_tcp_flags";
    /// Neither TCP nor an ICMP message that concerns a connection.
    NotTcp = 10, "not_tcp";
    /// Destination address or port of neither a service nor a connection.
    NotOurs = 11, "not_ours";
    /// A malformed ICMP message, or one about an unknown connection.
    BadIcmp = 12, "bad_icmp";
    /// TTL or hop limit exceeded.
    TtlExpired = 13, "ttl_expired";
    /// An invalid source address (unspecified, multicast, broadcast, or the switch's own).
    BadSource = 14, "bad_source";
    /// Fragments of a packet that was incomplete after 30 s.
    FragmentTimeout = 15, "fragment_timeout";
    /// Fragments dropped because the reassembly buffer was full.
    FragmentLimit = 16, "fragment_limit";
    /// Overlapping fragments with different contents.
    FragmentOverlap = 17, "fragment_overlap";

    /// First data of a connection with an invalid or expired SYN cookie.
    CookieInvalid = 20, "cookie_invalid";
    /// A packet for a connection that does not exist or has ended.
    NoConnection = 21, "no_connection";
    /// The connection table is full.
    TableFull = 22, "table_full";
    /// Too many connections in setup.
    SetupFull = 23, "setup_full";
    /// Too many incomplete heads.
    HalfReadFull = 24, "half_read_full";
    /// Too many incomplete heads or unacknowledged answers of one client.
    HalfReadClientFull = 25, "half_read_client_full";
    /// The limit for bytes buffered in heads is reached.
    BufferFull = 26, "buffer_full";
    /// The switch is draining and accepts no new connections.
    Draining = 27, "draining";
    /// Data beyond the head's buffer, or with too many gaps.
    BeyondHead = 28, "beyond_head";
    /// A sequence or acknowledgement number outside the connection's window.
    BadSequence = 29, "bad_sequence";
    /// A client's retransmission of bytes that the switch holds and retransmits itself.
    HeldAlready = 30, "held_already";
    /// A packet without effect in the connection's current state.
    NothingToDo = 31, "nothing_to_do";
    /// Bytes of a client behind the one request of a one-shot connection.
    BehindRequest = 32, "behind_request";
    /// A SYN of a client that an access list of the service denies.
    AccessDenied = 33, "access_denied";
    /// Part of the head had to be acknowledged before it was whole, so no socket can take it over.
    HostHeadAcknowledged = 34, "host_head_acknowledged";
    /// Clients that have completed a handshake and wait for the server to speak are at their limit.
    SilentClientsFull = 35, "silent_clients_full";
    /// A request for a listener that nobody listens on, while as many are held as may be.
    HeldFull = 36, "held_full";

    /// The head exceeds its size limit.
    HeadTooLarge = 40, "head_too_large";
    /// The head was not complete in time.
    HeadTimeout = 41, "head_timeout";
    /// The HTTP head violates RFC 9112 or is ambiguous.
    HttpMalformed = 42, "http_malformed";
    /// An HTTP version other than 1.0 and 1.1.
    HttpVersion = 43, "http_version";
    /// The first bytes are not a valid TLS ClientHello.
    TlsMalformed = 44, "tls_malformed";
    /// No route matches.
    NoRoute = 45, "no_route";
    /// No server of the pool can be reached.
    NoServer = 46, "no_server";
    /// All source addresses and ports towards the server are in use.
    SnatExhausted = 47, "snat_exhausted";
    /// The server refused the connection.
    ServerRefused = 48, "server_refused";
    /// The server did not answer in time.
    ServerSilent = 49, "server_silent";
    /// The server did not accept a TCP option that was offered to the client.
    OptionMismatch = 50, "option_mismatch";
    /// The server did not acknowledge bytes held by the switch.
    PreambleUnacked = 51, "preamble_unacked";
    /// No packets during the idle timeout.
    IdleTimeout = 52, "idle_timeout";
    /// One side closed, and no packets followed during the half-closed timeout.
    HalfClosedTimeout = 53, "half_closed_timeout";
    /// The client did not acknowledge the switch's answer.
    AnswerUnacked = 54, "answer_unacked";
    /// The client closed or reset its connection before its head was whole.
    HeadAborted = 55, "head_aborted";
    /// The connection was as old as its service allows.
    MaxLifetime = 56, "max_lifetime";
    /// A later request of a connection belonged to another pool, and its service has
    /// `later_requests = "close"`.
    LaterRequest = 57, "later_request";
    /// No socket of this machine can be reached, as `treatment = "host"` needs it.
    HostUnavailable = 58, "host_unavailable";
    /// The client and this machine's TCP do not agree upon options or the segment size.
    HostMismatch = 59, "host_mismatch";

    /// The device refused the packet.
    TransmitFailed = 60, "transmit_failed";
    /// The event queue was full, so an event was lost.
    EventLost = 61, "event_lost";
    /// A SYN, a segment without a valid cookie, or a packet for no service, dropped by the kernel
    /// because the engine was overloaded.
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

    /// Adds a count from elsewhere.
    pub fn add_many(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize % REASON_NUMBERS] += count;
    }

    /// The count of one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize % REASON_NUMBERS]
    }

    /// All reasons with their counts, including zeros.
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
