//! Which responses may be stored, how long they are fresh, and what a request may be answered with
//! (RFC 9111, sections 3 and 4).

use fairlead_base::Instant;
use fairlead_wire::http::members;

use crate::date::parse_date;
use crate::directives::{RequestControl, ResponseControl, SECONDS_MAX, lines, seconds};
use crate::head::{Now, RequestHead, ResponseHead};
use crate::reason::Reason;
use crate::settings::Settings;

/// Field names of a `Vary` field.
pub const VARY_MAX: usize = 16;

/// What decides about an object at a look-up: one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Verdict {
    /// Of the key's part that names the URL.
    pub(crate) hash: u64,
    /// When the response came: milliseconds of the clock that never goes back.
    pub(crate) since_ms: u64,
    /// The same on the wall's clock.
    pub(crate) wall_ms: u64,
    /// Purges up to this number were compared.
    pub(crate) checked: u64,
    /// Age when the response came, in seconds.
    pub(crate) initial_age: u32,
    /// Freshness lifetime, in seconds.
    pub(crate) lifetime: u32,
    pub(crate) stale_while_revalidate: u32,
    pub(crate) stale_if_error: u32,
    /// Of the head, with its fields.
    pub(crate) head_bytes: u32,
    pub(crate) status: u16,
    pub(crate) flags: u16,
}

/// Must be validated before each use.
pub(crate) const NO_CACHE: u16 = 1;
/// Must not be served stale, whatever the request says.
pub(crate) const NEVER_STALE: u16 = 2;
/// Must not be served stale, not even where the response allows it in other words.
pub(crate) const MUST_REVALIDATE: u16 = 4;
/// Made stale by a soft purge.
pub(crate) const SOFTLY_PURGED: u16 = 8;
/// Has a validator.
pub(crate) const HAS_VALIDATOR: u16 = 16;

/// What a stored response is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It may be sent.
    Fresh,
    /// It may be sent, and must be validated in the background.
    WhileRevalidate,
    /// It must be validated first.
    Validate,
}

/// Result of comparing a stored response with a request and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// What it may be used for.
    pub fit: Fit,
    /// Its age, in seconds.
    pub age: u32,
    /// Seconds for which it stays fresh; negative if it is stale.
    pub ttl: i64,
    /// Whether it may be sent if the server fails.
    pub replaces_errors: bool,
}

impl Verdict {
    /// Age in milliseconds. Neither clock can make it younger.
    fn age_ms(&self, now: Now) -> u64 {
        let elapsed = now.at.as_millis().saturating_sub(self.since_ms);
        let by_wall = now.wall_ms.saturating_sub(self.wall_ms);
        u64::from(self.initial_age) * 1_000 + elapsed.max(by_wall)
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// What a request with these directives may do with the response.
    #[inline]
    pub fn judge(&self, asked: &RequestControl, now: Now) -> Judgement {
        let age = self.age_ms(now);
        let lifetime = u64::from(self.lifetime) * 1_000;
        // A wall clock that went back says nothing about dates, so nothing is fresh by it.
        let is_known = now.wall_ms >= self.wall_ms;
        let is_fresh = lifetime > age && is_known && !self.has(SOFTLY_PURGED | NO_CACHE);
        let staleness = age.saturating_sub(lifetime);
        let within = |window: u32| staleness < u64::from(window) * 1_000 && is_known;
        let may_be_stale = !self.has(NO_CACHE | MUST_REVALIDATE);
        let refused = asked.no_cache
            || asked
                .max_age
                .is_some_and(|most| age > u64::from(most) * 1_000)
            || asked
                .min_fresh
                .is_some_and(|least| lifetime.saturating_sub(age) < u64::from(least) * 1_000);
        let accepted = asked.max_stale.is_some_and(|most| {
            may_be_stale
                && !self.has(NEVER_STALE | SOFTLY_PURGED)
                && is_known
                && (most == SECONDS_MAX || staleness <= u64::from(most) * 1_000)
        });
        let fit = match () {
            () if refused => Fit::Validate,
            () if is_fresh || accepted => Fit::Fresh,
            () if may_be_stale && within(self.stale_while_revalidate) => Fit::WhileRevalidate,
            () => Fit::Validate,
        };
        let seconds = |ms: u64| (ms / 1_000).min(u64::from(SECONDS_MAX));
        Judgement {
            fit,
            age: seconds(age) as u32,
            ttl: if self.has(SOFTLY_PURGED | NO_CACHE) {
                -(seconds(staleness) as i64)
            } else {
                seconds(lifetime) as i64 - seconds(age) as i64
            },
            replaces_errors: may_be_stale && within(self.stale_if_error),
        }
    }
}

/// What of a response may be stored, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Storable {
    /// Without hash, generation and length of the head.
    pub(crate) verdict: Verdict,
    /// Names in `Vary`, lower-case, without duplicates.
    pub(crate) vary: Vec<Box<str>>,
    pub(crate) last_modified: Option<u64>,
    /// The `Date` field, or when the response came.
    pub(crate) date: u64,
}

/// Decides about a response to this request, sent at `sent`.
pub(crate) fn storable(
    request: &RequestHead<'_>,
    response: &ResponseHead<'_>,
    sent: Instant,
    now: Now,
    settings: &Settings,
) -> Result<Storable, Reason> {
    let control = ResponseControl::new(response.fields, &settings.targets);
    let asked = RequestControl::new(request.fields);
    if !(200..=999).contains(&response.status) || matches!(response.status, 206 | 304) {
        return Err(Reason::Status);
    }
    let is_understood = UNDERSTOOD.contains(&response.status);
    if control.must_understand && !is_understood {
        return Err(Reason::Status);
    }
    if control.no_store && !control.must_understand {
        return Err(Reason::NoStore);
    }
    if asked.no_store && settings.obeys_requests {
        return Err(Reason::RequestNoStore);
    }
    if control.private {
        return Err(Reason::Private);
    }
    let permits = control.public || control.must_revalidate_itself || control.s_maxage.is_some();
    if lines(request.fields, "authorization").next().is_some() && !permits {
        return Err(Reason::Authorization);
    }
    let sets_cookie = ["set-cookie", "set-cookie2"]
        .iter()
        .any(|name| lines(response.fields, name).next().is_some());
    if sets_cookie && !settings.stores_cookies {
        return Err(Reason::SetCookie);
    }
    let vary = vary_names(response).ok_or(Reason::Vary)?;
    let times = Times::new(response, sent, now);
    let explicit = times.explicit(response, &control, now);
    let lifetime = explicit.unwrap_or_else(|| times.heuristic(response, &control, settings));
    let has_validator =
        times.last_modified.is_some() || lines(response.fields, "etag").next().is_some();
    let verdict = verdict(
        response,
        &control,
        &times,
        lifetime,
        has_validator,
        now,
        settings,
    );
    let is_useful = lifetime > times.initial_age && !control.no_cache
        || has_validator
        || verdict.stale_while_revalidate > 0
        || verdict.stale_if_error > 0;
    let may_guess = control.public || HEURISTIC.contains(&response.status);
    if !is_useful || explicit.is_none() && !may_guess {
        return Err(Reason::NoFreshness);
    }
    Ok(Storable {
        verdict,
        vary,
        last_modified: times.last_modified,
        date: times.date,
    })
}

fn verdict(
    response: &ResponseHead<'_>,
    control: &ResponseControl,
    times: &Times,
    lifetime: u32,
    has_validator: bool,
    now: Now,
    settings: &Settings,
) -> Verdict {
    let mut flags = 0;
    let mut set = |flag, holds| flags |= if holds { flag } else { 0 };
    set(NO_CACHE, control.no_cache);
    set(MUST_REVALIDATE, control.must_revalidate);
    set(
        NEVER_STALE,
        control.must_revalidate || control.s_maxage.is_some(),
    );
    set(HAS_VALIDATOR, has_validator);
    let or = |own: Option<u32>, default| own.unwrap_or(default);
    Verdict {
        hash: 0,
        since_ms: now.at.as_millis(),
        wall_ms: now.wall_ms,
        checked: 0,
        initial_age: times.initial_age,
        lifetime,
        stale_while_revalidate: or(
            control.stale_while_revalidate,
            settings.stale_while_revalidate,
        ),
        // Without permission of its own, a response with `s-maxage` is not served stale.
        stale_if_error: match control.stale_if_error {
            None if control.s_maxage.is_some() => 0,
            own => or(own, settings.stale_if_error),
        },
        head_bytes: 0,
        status: response.status,
        flags,
    }
}

/// Times of a response.
struct Times {
    date: u64,
    last_modified: Option<u64>,
    initial_age: u32,
}

impl Times {
    fn new(response: &ResponseHead<'_>, sent: Instant, now: Now) -> Self {
        let wall = now.wall();
        let read = |name| {
            let mut values = lines(response.fields, name);
            let first = values.next()?;
            // Of several values none is certain.
            values.next().is_none().then(|| parse_date(first, wall))?
        };
        let own = read("date");
        let apparent = own.map_or(0, |date| wall.saturating_sub(date));
        let delay = now.at.since(sent).as_secs();
        let age = age_field(response).saturating_add(delay);
        let initial = apparent.max(age).min(u64::from(SECONDS_MAX));
        Self {
            date: own.unwrap_or(wall),
            last_modified: read("last-modified"),
            initial_age: initial as u32,
        }
    }

    /// Lifetime by `s-maxage`, `max-age` or `Expires`, in this order.
    fn explicit(
        &self,
        response: &ResponseHead<'_>,
        control: &ResponseControl,
        now: Now,
    ) -> Option<u32> {
        if let Some(lifetime) = control.s_maxage.or(control.max_age) {
            return Some(lifetime);
        }
        if control.is_targeted {
            return None;
        }
        let mut values = lines(response.fields, "expires");
        let first = values.next()?;
        let is_one = values.next().is_none();
        let expires = parse_date(first, now.wall()).filter(|_| is_one);
        let lifetime = expires.map_or(0, |expires| expires.saturating_sub(self.date));
        Some(lifetime.min(u64::from(SECONDS_MAX)) as u32)
    }

    /// A tenth of the time since the last change (RFC 9111, section 4.2.2).
    fn heuristic(
        &self,
        response: &ResponseHead<'_>,
        control: &ResponseControl,
        settings: &Settings,
    ) -> u32 {
        if !(control.public || HEURISTIC.contains(&response.status)) {
            return 0;
        }
        let unchanged = self
            .last_modified
            .map_or(0, |at| self.date.saturating_sub(at));
        (unchanged / 10).min(u64::from(settings.heuristic_max)) as u32
    }
}

/// The first member of the first `Age` line, if it is a number (RFC 9111, section 5.1).
fn age_field(response: &ResponseHead<'_>) -> u64 {
    let first = lines(response.fields, "age").next();
    let first = first.and_then(|line| line.split(|byte| *byte == b',').next());
    let number = first.and_then(|digits| seconds(digits.trim_ascii()));
    number.unwrap_or_default().into()
}

/// `None` for `*` and for too many.
fn vary_names(response: &ResponseHead<'_>) -> Option<Vec<Box<str>>> {
    let mut names: Vec<Box<str>> = Vec::new();
    for line in lines(response.fields, "vary") {
        for name in members(line) {
            let name = core::str::from_utf8(name).ok()?.to_ascii_lowercase();
            if name == "*" || names.len() == VARY_MAX {
                return None;
            }
            if !names.iter().any(|other| **other == *name) {
                names.push(name.into_boxed_str());
            }
        }
    }
    Some(names)
}

/// Statuses whose meaning this cache knows, for `must-understand`.
const UNDERSTOOD: [u16; 27] = [
    200, 201, 202, 203, 204, 205, 300, 301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 406, 408,
    410, 414, 429, 500, 501, 502, 503, 504,
];

/// Statuses that may be stored without a lifetime (RFC 9110, section 15.1).
const HEURISTIC: [u16; 12] = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];

#[cfg(test)]
mod tests;
