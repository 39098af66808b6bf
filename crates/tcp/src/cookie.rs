//! SYN cookies: the client's handshake without memory (RFC 4987, section 3.6).
//!
//! The initial sequence number of our SYN-ACK carries, from the low end: whether SACK was agreed
//! (1 bit), the client's window scale (4, 15 for none), the class of its MSS (3), the parity of the
//! time interval (1), the parity of the window scale it was offered (1), and 22 bits of a keyed hash
//! over all of that, the tuple, the client's initial sequence number and the interval's number.
//! A stranger who does not see our SYN-ACK guesses it once in 2²² tries.

use core::hash::Hasher;
use core::time::Duration;

use fairlead_base::{FlowKey, Instant, SeqNumber};
use siphasher::sip::SipHasher24;

/// MSS values that a cookie can remember; a client's is rounded down to one of them.
pub const MSS_CLASSES: [u16; 8] = [536, 1220, 1340, 1400, 1420, 1440, 1460, 8960];

/// A cookie is good in the interval it was made in and the one after it.
pub const INTERVAL: Duration = Duration::from_secs(64);

/// The longest time for which a cookie can be good.
pub const LIFETIME: Duration = Duration::from_secs(2 * INTERVAL.as_secs());

/// A cookie that is no longer good is still recognised for this many intervals.
const REMEMBERED_INTERVALS: u64 = 8;

const MAC_SHIFT: u32 = 10;
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
    /// The largest class that does not exceed what the client said (536 when it said nothing or
    /// less: RFC 9293, section 3.7.1).
    pub fn mss_class(mss: Option<u16>) -> u16 {
        let mss = mss.unwrap_or(MSS_CLASSES[0]);
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

/// The secret behind the cookies.
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

    fn mac(&self, flow: &FlowKey, client_isn: SeqNumber, interval: u64, bits: u32) -> u32 {
        let mut message = [0u8; 48];
        message[..16].copy_from_slice(&flow.src.addr.0);
        message[16..32].copy_from_slice(&flow.dst.addr.0);
        message[32..34].copy_from_slice(&flow.src.port.to_be_bytes());
        message[34..36].copy_from_slice(&flow.dst.port.to_be_bytes());
        message[36..40].copy_from_slice(&client_isn.0.to_be_bytes());
        // The interval's low 48 bits: 64-second intervals for half a billion years.
        message[40..46].copy_from_slice(&interval.to_le_bytes()[..6]);
        message[46..48].copy_from_slice(&(bits as u16).to_be_bytes());
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
        let mac = self.mac(flow, client_isn, interval, bits);
        SeqNumber((mac << MAC_SHIFT) | bits)
    }

    /// What was promised, if `cookie` is one that [`Self::make`] made for this flow and client
    /// sequence number in this interval or the last.
    pub fn check(
        &self,
        flow: &FlowKey,
        client_isn: SeqNumber,
        now: Instant,
        cookie: SeqNumber,
    ) -> Option<Promise> {
        let bits = cookie.0 & ((1 << MAC_SHIFT) - 1);
        let current = interval(now);
        let made_odd = bits & INTERVAL_BIT != 0;
        let interval = if made_odd == (current & 1 == 1) {
            current
        } else {
            current.checked_sub(1)?
        };
        self.is_of(flow, client_isn, interval, cookie)
            .then(|| Promise::decode(bits))
    }

    /// True for a cookie that [`Self::make`] made for this flow and client sequence number some
    /// minutes ago, and that is not good any more: its client deserves a RST rather than silence.
    pub fn has_aged(
        &self,
        flow: &FlowKey,
        client_isn: SeqNumber,
        now: Instant,
        cookie: SeqNumber,
    ) -> bool {
        let made_odd = cookie.0 & INTERVAL_BIT != 0;
        let current = interval(now);
        (1..=REMEMBERED_INTERVALS)
            .filter_map(|age| current.checked_sub(age))
            .filter(|interval| (interval & 1 == 1) == made_odd)
            .any(|interval| self.is_of(flow, client_isn, interval, cookie))
    }

    fn is_of(
        &self,
        flow: &FlowKey,
        client_isn: SeqNumber,
        interval: u64,
        cookie: SeqNumber,
    ) -> bool {
        let bits = cookie.0 & ((1 << MAC_SHIFT) - 1);
        let mac = self.mac(flow, client_isn, interval, bits);
        mac << MAC_SHIFT == cookie.0 & !((1 << MAC_SHIFT) - 1)
    }
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
        let has_aged = |after_s| {
            let now = made + Duration::from_secs(after_s);
            key.has_aged(&flow(1), SeqNumber(8), now, cookie)
        };
        assert!(has_aged(65) && has_aged(128) && has_aged(500));
        assert!(!has_aged(1_000));
        let now = made + Duration::from_secs(128);
        assert!(!key.has_aged(&flow(1), SeqNumber(9), now, cookie));
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
        assert_eq!(Promise::mss_class(Some(100)), 536);
        assert_eq!(Promise::mss_class(Some(1459)), 1440);
        assert_eq!(Promise::mss_class(Some(65_495)), 8960);
    }
}
