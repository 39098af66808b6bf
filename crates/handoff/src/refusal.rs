//! Why a command is refused. The connection then stays where it was.

/// Declares the reasons: number, name in metrics, meaning.
macro_rules! refusals {
    ($($variant:ident = $number:literal, $name:literal, $meaning:literal;)+) => {
        /// Why a command is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Refusal {
            $(#[doc = $meaning] $variant = $number,)+
        }

        impl Refusal {
            /// All reasons, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name in metrics and answers.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it means, one sentence without its full stop.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }

            /// The reason with this number.
            pub fn from_number(number: u64) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

refusals! {
    Protocol = 1, "protocol_error", "The message is malformed or out of turn";
    Unsupported = 2, "unsupported", "The command has no work to do on this kind of connection";
    Gone = 3, "gone", "No handed-off connection has this number";
    Busy = 4, "busy", "Bytes are in flight, or the connection is moving already: try again";
    TableFull = 5, "table_full", "No line is free, or only those that are kept for newcomers";
    Budget = 6, "budget", "The owner has used what it may use";
    Policy = 7, "policy", "Connections like this one are not handed off";
    State = 8, "state", "A connection is not established in both directions";
    QueueNotEmpty = 9, "queue_not_empty", "Bytes are in a socket's queue";
    HoldFull = 10, "hold_full", "More bytes would have to be held than there is room for";
    NotIdle = 11, "not_idle", "The connection is in the middle of a response";
    NotTcp = 12, "not_tcp", "A descriptor is not a connected TCP socket";
    SameSocket = 13, "same_socket", "Both descriptors are one connection";
    Namespace = 14, "namespace", "A socket belongs to another network namespace";
    Family = 15, "family", "One connection is IPv4, the other is IPv6";
    Timestamps = 16, "timestamps_unlike", "Only one of both connections has timestamps";
    Sack = 17, "sack_unlike", "Only one of both connections has selective acknowledgements";
    Mss = 18, "mss_unlike", "An end may send larger segments than the other one accepts";
    Scale = 19, "scale_unlike", "A window cannot be translated within what the receiver promised";
    Ecn = 20, "ecn_unlike", "Only one of both connections has ECN";
    Feature = 21, "feature", "A socket uses TLS in the kernel, MPTCP, MD5, AO or urgent data";
    KeyInUse = 22, "key_in_use", "Addresses and ports belong to a connection of the switch";
    Unstable = 23, "unstable", "A socket's state kept changing while it was read";
    System = 24, "system", "The system refused a call that the transfer needs";
    Unavailable = 25, "unavailable", "Handoff is not enabled, or the switch is stopping";
    Address = 26, "address", "The card does not have the address of the connection";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_and_are_distinct() {
        for (at, &reason) in Refusal::ALL.iter().enumerate() {
            assert_eq!(reason as usize, at + 1, "numbered without gaps");
            assert_eq!(Refusal::from_number(reason as u64), Some(reason));
            let same = |other: &&Refusal| other.name() == reason.name();
            assert_eq!(Refusal::ALL.iter().filter(same).count(), 1);
            assert!(!reason.meaning().ends_with('.'));
        }
        assert_eq!(Refusal::from_number(0), None);
        assert_eq!(Refusal::from_number(27), None);
        assert_eq!(Refusal::from_number(1 << 8 | 1), None, "no truncation");
    }
}
