//! What can be wrong with a ClientHello.

use core::fmt;

use fairlead_base::DropReason;

/// Alert descriptions (RFC 8446, section 6).
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;

macro_rules! tls_errors {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident = $name:literal, $alert:ident, $reason:ident;
    )+) => {
        /// Why a connection is refused because of its ClientHello.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum TlsError {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl TlsError {
            /// Every error.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The alert description to answer with (RFC 8446, section 6), for
            /// [`alert`](super::alert).
            pub fn alert(self) -> u8 {
                match self { $(Self::$variant => $alert,)+ }
            }

            /// The reason that counters and events carry.
            pub fn reason(self) -> DropReason {
                match self { $(Self::$variant => DropReason::$reason,)+ }
            }
        }
    };
}

tls_errors! {
    /// The first record is no handshake record.
    NotHandshake = "not_handshake", UNEXPECTED_MESSAGE, TlsMalformed;
    /// Plain HTTP on a port for TLS.
    PlainHttp = "plain_http", UNEXPECTED_MESSAGE, TlsMalformed;
    /// A hello in the format of SSL 2.0, which is prohibited (RFC 6176, section 3).
    Sslv2Hello = "sslv2_hello", PROTOCOL_VERSION, TlsMalformed;
    /// A record with a version other than 3.x.
    RecordVersion = "record_version", PROTOCOL_VERSION, TlsMalformed;
    /// A handshake record without content (RFC 8446, section 5.1).
    EmptyRecord = "empty_record", UNEXPECTED_MESSAGE, TlsMalformed;
    /// A record longer than 2¹⁴ bytes.
    RecordTooLong = "record_too_long", RECORD_OVERFLOW, TlsMalformed;
    /// A record of another type between those of the hello.
    Interleaved = "interleaved_record", UNEXPECTED_MESSAGE, TlsMalformed;
    /// The hello is cut into more records than are followed.
    TooManyRecords = "too_many_records", DECODE_ERROR, TlsMalformed;
    /// The first handshake message is no ClientHello.
    NotClientHello = "not_client_hello", UNEXPECTED_MESSAGE, TlsMalformed;
    /// The hello's length exceeds the limit.
    TooLarge = "hello_too_large", DECODE_ERROR, HeadTooLarge;
    /// Something follows the hello in its last record.
    MessageBehindHello = "message_behind_hello", UNEXPECTED_MESSAGE, TlsMalformed;
    /// A hello with a version other than 3.x.
    HelloVersion = "hello_version", PROTOCOL_VERSION, TlsMalformed;
    /// A field ends past the end of what holds it, or leaves bytes over.
    BadLength = "bad_length", DECODE_ERROR, TlsMalformed;
    /// No cipher suite or no compression method is offered.
    NothingOffered = "nothing_offered", DECODE_ERROR, TlsMalformed;
    /// More extensions than are read.
    TooManyExtensions = "too_many_extensions", DECODE_ERROR, TlsMalformed;
    /// Two extensions of one type (RFC 8446, section 4.2).
    ExtensionRepeated = "extension_repeated", ILLEGAL_PARAMETER, TlsMalformed;
    /// A server name that is no host name, or not exactly one (RFC 6066, section 3).
    ServerNameMalformed = "server_name_malformed", ILLEGAL_PARAMETER, TlsMalformed;
    /// An empty list of protocol names, or an empty name in it (RFC 7301, section 3.1).
    AlpnMalformed = "alpn_malformed", DECODE_ERROR, TlsMalformed;
    /// More protocol names than are read.
    TooManyProtocols = "too_many_protocols", DECODE_ERROR, TlsMalformed;
}

impl TlsError {
    /// True when the first bytes are not those of any TLS connection: the client speaks something
    /// else.
    pub fn is_other_protocol(self) -> bool {
        matches!(
            self,
            Self::NotHandshake | Self::PlainHttp | Self::Sslv2Hello | Self::RecordVersion
        )
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for TlsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = TlsError::ALL.iter().map(|error| error.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TlsError::ALL.len());
    }
}
