//! SYN cookies: the client's handshake without memory (RFC 4987, section 3.6).
//!
//! The initial sequence number of our SYN-ACK carries, from the low end: whether SACK was agreed (1
//! bit), the client's window scale (4, 15 for none), the class of its MSS (3), the parity of the
//! time interval (1), the parity of the window scale it was offered (1), 16 bits of a keyed hash
//! over all of that, the tuple, the client's initial sequence number and the interval's number, and
//! 6 bits of a keyed hash over the same without the client's number. An attacker who does not see
//! our SYN-ACK guesses it with probability 2⁻²².
//!
//! The six bits show whether a client has seen the SYN-ACK even if its first segment is missing and
//! its initial sequence number is therefore unknown.

use core::hash::Hasher;
use core::time::Duration;

use fairlead_base::{FlowKey, Instant, SeqNumber};
use siphasher::sip::SipHasher24;

/// MSS values that a cookie can remember; a client's is rounded down to one of them. The smallest
/// is for links of 256 bytes and a little more.
pub const MSS_CLASSES: [u16; 8] = [216, 536, 1220, 1340, 1400, 1440, 1460, 8960];

/// The default MSS (RFC 9293, section 3.7.1).
const MSS_UNSAID: u16 = 536;

/// A cookie is valid in the interval of its creation and in the next one.
pub const INTERVAL: Duration = Duration::from_secs(64);

/// The longest time for which a cookie can be good.
pub const LIFETIME: Duration = Duration::from_secs(2 * INTERVAL.as_secs());

const NUMBER_MAC_SHIFT: u32 = 10;
const TUPLE_MAC_SHIFT: u32 = 26;
const NO_SCALE: u32 = 15;

/// What a cookie remembers of a SYN and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The client's MSS, rounded down to one of [`MSS_CLASSES`].
    pub mss: u16,
    /// The client's window scale, if both sides scale.
    pub window_scale: Option<u8>,
    /// Selective acknowledgements were agreed.
    pub sack: bool,
    /// Parity of the window scale in the SYN-ACK: which of the last two that were offered.
    pub scale_parity: bool,
}

impl Promise {
    /// The largest class that does not exceed the client's MSS (or the default); the smallest class
    /// for smaller values.
    pub fn mss_class(mss: Option<u16>) -> u16 {
        let mss = mss.unwrap_or(MSS_UNSAID);
        MSS_CLASSES
            .into_iter()
            .rev()
            .find(|&class| class <= mss)
            .unwrap_or(MSS_CLASSES[0])
    }

    fn encode(self) -> u32 {
        let class = MSS_CLASSES
            .iter()
            .rposition(|&class| class <= self.mss)
            .unwrap_or(0) as u32;
        let scale = self
            .window_scale
            .map_or(NO_SCALE, |scale| u32::from(scale.min(14)));
        (u32::from(self.scale_parity) << 9) | (class << 5) | (scale << 1) | u32::from(self.sack)
    }

    fn decode(bits: u32) -> Self {
        let scale = (bits >> 1) & 15;
        Self {
            mss: MSS_CLASSES[(bits >> 5) as usize & 7],
            window_scale: (scale != NO_SCALE).then_some(scale as u8),
            sack: bits & 1 != 0,
            scale_parity: bits >> 9 & 1 != 0,
        }
    }
}

const INTERVAL_BIT: u32 = 1 << 8;

/// The secret of the cookies.
#[derive(Clone, Copy)]
pub struct CookieKey {
    k0: u64,
    k1: u64,
}

impl core::fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("CookieKey(..)")
    }
}

fn interval(now: Instant) -> u64 {
    now.as_nanos() / INTERVAL.as_nanos() as u64
}

impl CookieKey {
    /// From two secret words.
    pub fn new(k0: u64, k1: u64) -> Self {
        Self { k0, k1 }
    }

    /// Its two words, for a fast path that creates cookies itself.
    pub fn words(&self) -> (u64, u64) {
        (self.k0, self.k1)
    }

    /// What a cookie says that has been checked.
    pub fn promise(cookie: SeqNumber) -> Promise {
        Promise::decode(cookie.0)
    }

    /// The hash over everything, with the client's number or without it, in the high bits.
    fn mac(&self, flow: &FlowKey, number: Option<SeqNumber>, interval: u64, bits: u32) -> u32 {
        let mut message = [0u8; 48];
        message[..16].copy_from_slice(&flow.src.addr.0);
        message[16..32].copy_from_slice(&flow.dst.addr.0);
        message[32..34].copy_from_slice(&flow.src.port.to_be_bytes());
        message[34..36].copy_from_slice(&flow.dst.port.to_be_bytes());
        let number_given = match number {
            Some(number) => {
                message[36..40].copy_from_slice(&number.0.to_be_bytes());
                1 << 15
            }
            None => 0,
        };
        // The interval's low 48 bits: 64-second intervals for half a billion years.
        message[40..46].copy_from_slice(&interval.to_le_bytes()[..6]);
        message[46..48].copy_from_slice(&(bits as u16 | number_given).to_be_bytes());
        let mut hasher = SipHasher24::new_with_keys(self.k0, self.k1);
        hasher.write(&message);
        (hasher.finish() >> 32) as u32
    }

    /// The initial sequence number for the answer to a SYN. `flow` is the SYN's key.
    pub fn make(
        &self,
        flow: &FlowKey,
        client_isn: SeqNumber,
        now: Instant,
        promise: Promise,
    ) -> SeqNumber {
        let interval = interval(now);
        let parity = if interval & 1 == 1 { INTERVAL_BIT } else { 0 };
        let bits = promise.encode() | parity;
        let tuple = self.mac(flow, None, interval, bits) >> TUPLE_MAC_SHIFT << TUPLE_MAC_SHIFT;
        let number = self.mac(flow, Some(client_isn), interval, bits) >> 16 << NUMBER_MAC_SHIFT;
        SeqNumber(tuple | number | bits)
    }

    /// The encoded options, if [`Self::make`] created `cookie` for this flow and client sequence
    /// number in this interval or the last.
    pub fn check(
        &self,
        flow: &FlowKey,
        client_isn: SeqNumber,
        now: Instant,
        cookie: SeqNumber,
    ) -> Option<Promise> {
        let (interval, bits) = made_in(now, cookie)?;
        let number = self.mac(flow, Some(client_isn), interval, bits) >> 16;
        let same = number == cookie.0 >> NUMBER_MAC_SHIFT & 0xffff;
        (same && self.is_of_tuple(flow, now, cookie)).then(|| Promise::decode(bits))
    }

    /// True for a cookie that [`Self::make`] created for this flow, with any client sequence
    /// number, in this interval or the last; for other values with probability 2⁻⁶.
    pub fn is_of_tuple(&self, flow: &FlowKey, now: Instant, cookie: SeqNumber) -> bool {
        made_in(now, cookie).is_some_and(|(interval, bits)| {
            let tuple = self.mac(flow, None, interval, bits);
            tuple >> TUPLE_MAC_SHIFT == cookie.0 >> TUPLE_MAC_SHIFT
        })
    }
}

/// The interval of a cookie, and its bits outside the hash.
fn made_in(now: Instant, cookie: SeqNumber) -> Option<(u64, u32)> {
    let bits = cookie.0 & ((1 << NUMBER_MAC_SHIFT) - 1);
    let current = interval(now);
    let made_odd = bits & INTERVAL_BIT != 0;
    let interval = if made_odd == (current & 1 == 1) {
        current
    } else {
        current.checked_sub(1)?
    };
    Some((interval, bits))
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Address, Endpoint, Rng};

    use super::*;

    fn flow(port: u16) -> FlowKey {
        FlowKey {
            src: Endpoint {
                addr: Address::v4([192, 0, 2, 1]),
                port,
            },
            dst: Endpoint {
                addr: Address::v4([10, 1, 0, 3]),
                port: 80,
            },
        }
    }

    const PROMISE: Promise = Promise {
        mss: 1460,
        window_scale: Some(7),
        sack: true,
        scale_parity: false,
    };

    #[test]
    fn every_promise_comes_back() {
        let key = CookieKey::new(1, 2);
        for mss in MSS_CLASSES {
            for scale in (0..=14).map(Some).chain([None]) {
                for (sack, scale_parity) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let promise = Promise {
                        mss,
                        window_scale: scale,
                        sack,
                        scale_parity,
                    };
                    let now = Instant::from_millis(77_000);
                    let cookie = key.make(&flow(9), SeqNumber(5), now, promise);
                    assert_eq!(CookieKey::promise(cookie), promise, "without the key");
                    assert_eq!(
                        key.check(&flow(9), SeqNumber(5), now, cookie),
                        Some(promise)
                    );
                }
            }
        }
    }

    #[test]
    fn it_ages_out_after_two_intervals() {
        let key = CookieKey::new(1, 2);
        let made = Instant::from_millis(63_999);
        let cookie = key.make(&flow(1), SeqNumber(8), made, PROMISE);
        let check = |after_s| {
            key.check(
                &flow(1),
                SeqNumber(8),
                made + Duration::from_secs(after_s),
                cookie,
            )
        };
        assert!(check(0).is_some());
        assert!(check(64).is_some());
        assert!(check(65).is_none());
        assert!(check(128).is_none());
    }

    #[test]
    fn its_tuple_is_known_without_its_number() {
        let key = CookieKey::new(1, 2);
        let made = Instant::from_millis(63_999);
        let (mut known, mut strange) = (0, 0);
        for number in 0..1_000 {
            let cookie = key.make(&flow(1), SeqNumber(number), made, PROMISE);
            known += u32::from(key.is_of_tuple(&flow(1), made, cookie));
            strange += u32::from(key.is_of_tuple(&flow(2), made, cookie));
            strange += u32::from(key.is_of_tuple(&flow(1), made, cookie + (1 << 26)));
            let later = made + Duration::from_secs(65);
            strange += u32::from(key.is_of_tuple(&flow(1), later, cookie));
        }
        assert_eq!(known, 1_000);
        assert!(strange < 100, "{strange} of 3,000; expected 47");
    }

    #[test]
    fn another_tuple_number_or_secret_does_not_pass() {
        let key = CookieKey::new(1, 2);
        let now = Instant::from_millis(1);
        let cookie = key.make(&flow(1), SeqNumber(8), now, PROMISE);
        assert!(key.check(&flow(2), SeqNumber(8), now, cookie).is_none());
        assert!(key.check(&flow(1), SeqNumber(9), now, cookie).is_none());
        assert!(
            CookieKey::new(1, 3)
                .check(&flow(1), SeqNumber(8), now, cookie)
                .is_none()
        );
    }

    #[test]
    fn guesses_pass_about_once_in_four_million() {
        let key = CookieKey::new(1, 2);
        let mut rng = Rng::new(5);
        let now = Instant::from_millis(1);
        let passed = (0..400_000)
            .filter(|_| {
                let guess = SeqNumber(rng.next_u64() as u32);
                key.check(&flow(1), SeqNumber(8), now, guess).is_some()
            })
            .count();
        assert!(
            passed <= 4,
            "{passed} of 400,000 guesses passed; expected 0.1"
        );
    }

    #[test]
    fn mss_is_rounded_down() {
        assert_eq!(Promise::mss_class(None), 536);
        assert_eq!(Promise::mss_class(Some(100)), 216);
        assert_eq!(Promise::mss_class(Some(535)), 216);
        assert_eq!(Promise::mss_class(Some(536)), 536);
        assert_eq!(Promise::mss_class(Some(1459)), 1440);
        assert_eq!(Promise::mss_class(Some(65_495)), 8960);
    }
}
