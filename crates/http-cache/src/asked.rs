//! The fields of a request that the cache looks at, found in one pass.

use crate::directives::RequestControl;
use crate::head::{Field, RequestHead};
use crate::reason::Reason;
use crate::settings::Settings;

/// Fields of a head that the cache looks at.
const FIELDS_MAX: usize = 100;

/// Which fields a request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Why the cache takes no part in it, whatever is stored.
    pub(crate) refused: Option<Reason>,
    /// `Cache-Control` or `Pragma`.
    pub(crate) has_control: bool,
    /// `If-None-Match`, `If-Modified-Since` or `Range`.
    pub(crate) has_conditions: bool,
    pub(crate) has_range: bool,
    pub(crate) has_authorization: bool,
    pub(crate) has_cookie: bool,
}

impl Asked {
    pub(crate) fn new(head: &RequestHead<'_>, settings: &Settings) -> Self {
        let mut asked = Self::default();
        if !matches!(head.method, "GET" | "HEAD") {
            asked.refused = Some(Reason::Method);
            return asked;
        }
        if head.host.is_empty() || !head.target.starts_with(b"/") {
            asked.refused = Some(Reason::Target);
            return asked;
        }
        let mut bytes = head.target.len() + head.host.len();
        for field in head.fields {
            bytes += field.0.len() + field.1.len() + 4;
            asked.look_at(field);
        }
        if asked.has_cookie && !settings.serves_cookies {
            asked.refused.get_or_insert(Reason::Cookie);
        }
        if bytes > settings.head_max as usize || head.fields.len() > FIELDS_MAX {
            asked.refused.get_or_insert(Reason::HeadTooLarge);
        }
        asked
    }

    #[inline]
    fn look_at(&mut self, (name, value): &Field<'_>) {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        // By length first: most fields are others.
        let refused = match name.len() {
            5 if is("range") => {
                (self.has_range, self.has_conditions) = (true, true);
                return;
            }
            6 if is("expect") => Reason::Upgrade,
            6 => {
                self.has_control |= is("pragma");
                self.has_cookie |= is("cookie");
                return;
            }
            7 if is("upgrade") => Reason::Upgrade,
            8 if is("if-match") => Reason::Precondition,
            13 => {
                self.has_control |= is("cache-control");
                self.has_conditions |= is("if-none-match");
                self.has_authorization |= is("authorization");
                return;
            }
            14 if is("content-length") && *value != b"0" => Reason::RequestBody,
            17 if is("transfer-encoding") => Reason::RequestBody,
            17 => {
                self.has_conditions |= is("if-modified-since");
                return;
            }
            19 if is("if-unmodified-since") => Reason::Precondition,
            _ => return,
        };
        self.refused.get_or_insert(refused);
    }

    /// What the request demands of a stored response.
    pub(crate) fn control(&self, head: &RequestHead<'_>) -> RequestControl {
        if self.has_control {
            RequestControl::new(head.fields)
        } else {
            RequestControl::default()
        }
    }
}
