//! What can be wrong with a request head.

use core::fmt;

use fairlead_base::DropReason;

macro_rules! head_errors {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident = $name:literal, $status:literal, $reason:ident;
    )+) => {
        /// Why a request is refused because of its head.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum HeadError {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl HeadError {
            /// Every error.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in logs.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The HTTP status to answer with.
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// The reason that counters and events carry.
            pub fn reason(self) -> DropReason {
                match self { $(Self::$variant => DropReason::$reason,)+ }
            }
        }
    };
}

head_errors! {
    /// The first byte begins no method: not HTTP/1 at all.
    NotHttp = "not_http", 400, HttpMalformed;
    /// A line ends with LF alone (RFC 9112, section 2.2, lets a recipient take it; servers differ).
    BareLf = "bare_lf", 400, HttpMalformed;
    /// A CR that no LF follows (RFC 9112, section 2.2).
    BareCr = "bare_cr", 400, HttpMalformed;
    /// NUL or another control byte (RFC 9110, section 5.5).
    ControlByte = "control_byte", 400, HttpMalformed;
    /// A line that begins with a blank: obs-fold, or a blank line's place before the first field
    /// (RFC 9112, sections 5.2 and 2.2).
    FoldedLine = "folded_line", 400, HttpMalformed;
    /// A request line that is not method, target and version with one space between each
    /// (RFC 9112, section 3).
    BadRequestLine = "bad_request_line", 400, HttpMalformed;
    /// A method longer than any known one (RFC 9112, section 3, asks for 501).
    MethodTooLong = "method_too_long", 501, HttpMalformed;
    /// A version other than HTTP/1.0 and HTTP/1.1; the preface of HTTP/2 among them.
    Version = "http_version", 505, HttpVersion;
    /// CONNECT: the switch opens no tunnels.
    Connect = "connect", 501, HttpMalformed;
    /// A target that has none of the forms of RFC 9112, section 3.2, or not the one that fits the
    /// method.
    BadTarget = "bad_target", 400, HttpMalformed;
    /// A target with a fragment, which no client may send.
    FragmentInTarget = "fragment_in_target", 400, HttpMalformed;
    /// A target with user information before the host (RFC 9110, section 4.2.4).
    UserinfoInTarget = "userinfo_in_target", 400, HttpMalformed;
    /// An absolute target for another host than `Host` says.
    TargetHostDiffers = "target_host_differs", 400, HttpMalformed;
    /// A field line without a colon, or a field name that is no token.
    BadField = "bad_field", 400, HttpMalformed;
    /// A blank between field name and colon (RFC 9112, section 5.1).
    BlankBeforeColon = "blank_before_colon", 400, HttpMalformed;
    /// HTTP/1.1 without `Host` (RFC 9112, section 3.2).
    HostMissing = "host_missing", 400, HttpMalformed;
    /// More than one `Host`.
    HostRepeated = "host_repeated", 400, HttpMalformed;
    /// A `Host` that is neither a name nor an address with an optional port.
    HostMalformed = "host_malformed", 400, HttpMalformed;
    /// More than one `Content-Length`, equal or not.
    ContentLengthRepeated = "content_length_repeated", 400, HttpMalformed;
    /// A `Content-Length` that is no plain decimal number below 2⁶⁴.
    ContentLengthMalformed = "content_length_malformed", 400, HttpMalformed;
    /// `Transfer-Encoding` with `Content-Length` (RFC 9112, section 6.1).
    LengthAndCoding = "length_and_coding", 400, HttpMalformed;
    /// A `Transfer-Encoding` that is no list of codings, or that does not end with the one and only
    /// `chunked` (RFC 9112, section 6.3).
    CodingNotChunked = "coding_not_chunked", 400, HttpMalformed;
    /// A transfer coding that RFC 9112, section 7, does not name.
    CodingUnknown = "coding_unknown", 501, HttpMalformed;
    /// `Transfer-Encoding` in HTTP/1.0 (RFC 9112, section 6.1).
    CodingOnHttp10 = "coding_on_http10", 400, HttpMalformed;
    /// More field lines than are read.
    TooManyFields = "too_many_fields", 431, HeadTooLarge;
    /// Not even the request line is whole within the limit of bytes (RFC 9112, section 3, asks for
    /// 414). The scanner never says so; who keeps the bytes does.
    TargetTooLong = "target_too_long", 414, HeadTooLarge;
    /// Not whole within the limit of bytes. The scanner never says so, either.
    TooLarge = "head_too_large", 431, HeadTooLarge;
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for HeadError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_statuses_have_answers() {
        let mut names: Vec<_> = HeadError::ALL.iter().map(|error| error.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), HeadError::ALL.len());
        for error in HeadError::ALL {
            assert!(
                matches!(error.status(), 400 | 414 | 431 | 501 | 505),
                "{error}"
            );
        }
    }
}
