//! Why a program's connection is not on the card: why it was not handed off, or why it was taken
//! back. The program counts it in the shared memory.

/// Declares the reasons: name in reports, meaning.
macro_rules! reasons {
    ($($variant:ident = $name:literal, $meaning:literal;)+) => {
        /// Why a connection is not on the card.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $(#[doc = $meaning] $variant,)+
        }

        impl Reason {
            /// All of them, in the order of their words.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Their number.
            pub const COUNT: usize = Self::ALL.len();

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it means, one sentence without its full stop.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }
        }
    };
}

reasons! {
    Port = "port", "Stayed: its port is not one that is offloaded";
    Copied = "copied", "Stayed: its descriptor has a copy (dup)";
    Waiting = "waiting", "Stayed: another thread waits for it in the kernel";
    NoCard = "no_card", "Stayed: there was no card";
    NoRoom = "no_room", "Stayed: the card was full";
    Given = "given", "Stayed: an operator gave it back and has not taken it since";
    Unconnected = "unconnected", "Stayed: it has no peer";
    Refused = "refused", "Stayed: the card refused it, and has counted why";
    NoAnswer = "no_answer", "Stayed: the card died during the handoff";
    Uring = "io_uring", "Stayed or came back: the program uses io_uring";
    Wanted = "wanted", "Came back: the card asked for it";
    Process = "process", "Came back: the program began another process";
    Passed = "passed", "Came back for good: its descriptor was passed to another process";
    Spliced = "spliced", "Came back for good: splice";
    Stream = "stream", "Came back for good: a stream of the C library (fdopen)";
    Flags = "flags", "Came back: flags of a call, as MSG_OOB or MSG_WAITALL";
    SocketOption = "socket_option", "Came back: a socket option that the rings do not carry";
    Call = "call", "Came back: another call that the rings do not carry";
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn words_and_names_are_distinct() {
        for (at, &reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, at);
            let same = |other: &&Reason| other.name() == reason.name();
            assert_eq!(Reason::ALL.iter().filter(same).count(), 1);
            assert!(!reason.meaning().ends_with('.'));
        }
    }
}
