//! First pass over the capture before it is replayed: which options its servers supported, and
//! which senders used checksum offload.
//!
//! The switch offers clients the options that its servers support. Replayed against servers with
//! the options of those in the capture, it offers what the captured clients were offered.

use std::collections::HashMap;

use fairlead_base::{Endpoint, FlowKey};
use fairlead_datapath::{Config, Offers};
use fairlead_driver_pcap::{CaptureError, CaptureReader, ip_packet};
use fairlead_wire::{Classified, SynOptions, TcpFlags, TcpPacket, classify};

use super::prepare::Senders;
use super::target::Targets;

/// Maximum SYNs waiting for an answer; older ones are dropped.
const ASKED_MAX: usize = 65_536;

/// Options assumed for servers if the capture does not show them.
const GENEROUS: Offers = Offers {
    mss: 1_460,
    window_scale: Some(7),
    sack: true,
    timestamps: true,
};

/// Results of the first pass.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Packets in the capture, or before its damage.
    pub packets: u64,
    /// Senders with unreliable checksums.
    pub senders: Senders,
    honoured: Vec<Honoured>,
}

/// Options that the servers behind one service accepted or refused.
#[derive(Clone, Copy, Debug, Default)]
struct Honoured {
    mss: Option<u16>,
    scale: Option<Option<u8>>,
    sack: Option<bool>,
    timestamps: Option<bool>,
}

impl Honoured {
    fn note(&mut self, asked: &SynOptions, answered: &SynOptions) {
        if let Some(mss) = answered.mss {
            self.mss = Some(self.mss.map_or(mss, |known| known.min(mss)));
        }
        if asked.window_scale.is_some() {
            let seen = answered.window_scale;
            self.scale = Some(match self.scale {
                // One server without scaling is enough to refuse; otherwise the largest scale can
                // express every window.
                Some(known) => known.zip(seen).map(|(known, seen)| known.max(seen)),
                None => seen,
            });
        }
        if asked.sack_permitted {
            self.sack = Some(self.sack != Some(false) && answered.sack_permitted);
        }
        if asked.timestamps.is_some() {
            let seen = answered.timestamps.is_some();
            self.timestamps = Some(self.timestamps != Some(false) && seen);
        }
    }

    fn offers(&self) -> Offers {
        Offers {
            mss: self.mss.unwrap_or(GENEROUS.mss),
            window_scale: self.scale.unwrap_or(GENEROUS.window_scale),
            sack: self.sack.unwrap_or(GENEROUS.sack),
            timestamps: self.timestamps.unwrap_or(GENEROUS.timestamps),
        }
    }
}

impl Survey {
    /// Reads a capture to its end, or up to `limit` packets. `progress` is called with the number
    /// of packets read, every so often.
    ///
    /// # Errors
    /// Damage is not an error: the part before it is surveyed.
    pub fn of(
        reader: &mut CaptureReader,
        config: &Config,
        targets: &Targets,
        limit: u64,
        mut progress: impl FnMut(u64),
    ) -> Self {
        let mut survey = Self {
            honoured: vec![Honoured::default(); config.services.len()],
            ..Self::default()
        };
        let mut asked = HashMap::new();
        while survey.packets < limit {
            let captured = match reader.next_packet() {
                Ok(Some(captured)) => captured,
                Ok(None) => break,
                // Reported by the replay itself.
                Err(CaptureError { .. }) => break,
            };
            survey.packets += 1;
            if survey.packets.is_multiple_of(4_096) {
                progress(survey.packets);
            }
            let Ok(ip) = ip_packet(captured.link, captured.bytes) else {
                continue;
            };
            survey.senders.count(&ip);
            // SYNs are short, so relevant ones are captured completely.
            if let Ok(Classified::Tcp(header)) = classify(ip.bytes)
                && header.flags.contains(TcpFlags::SYN)
            {
                survey.note_syn(&header, ip.bytes, targets, &mut asked);
            }
        }
        survey
    }

    fn note_syn(
        &mut self,
        header: &TcpPacket,
        bytes: &[u8],
        targets: &Targets,
        asked: &mut HashMap<FlowKey, SynOptions>,
    ) {
        let Ok(options) = SynOptions::parse(header.options(bytes)) else {
            return;
        };
        if !header.flags.contains(TcpFlags::ACK) {
            if targets.of(header.key.dst).is_ok() {
                if asked.len() >= ASKED_MAX {
                    asked.clear();
                }
                asked.insert(header.key, options);
            }
            return;
        }
        let Some(question) = asked.get(&header.key.reversed()) else {
            return;
        };
        if let Ok(target) = targets.of(header.key.src) {
            self.honoured[usize::from(target.service)].note(question, &options);
        }
    }

    /// Options of a configured server: those of the captured servers that it represents.
    pub fn offers_of(&self, config: &Config, server: Endpoint) -> Offers {
        let served = config.services.iter().zip(&self.honoured);
        let common = served
            .filter(|(service, _)| {
                service.routes.iter().any(|route| {
                    let pool = route.pool.map(|pool| &config.pools[usize::from(pool.0)]);
                    let mut servers = pool.iter().flat_map(|pool| &pool.servers);
                    servers.any(|known| known.endpoint == server)
                })
            })
            .map(|(_, honoured)| honoured.offers())
            .reduce(|a, b| Offers {
                mss: a.mss.min(b.mss),
                window_scale: a.window_scale.zip(b.window_scale).map(|(a, b)| a.max(b)),
                sack: a.sack && b.sack,
                timestamps: a.timestamps && b.timestamps,
            });
        common.unwrap_or(GENEROUS)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_wire::Timestamps;

    use super::*;

    fn options(scale: Option<u8>, sack: bool, stamps: bool) -> SynOptions {
        SynOptions {
            mss: Some(1_400),
            window_scale: scale,
            sack_permitted: sack,
            timestamps: stamps.then_some(Timestamps { value: 1, echo: 0 }),
        }
    }

    #[test]
    fn only_requested_options_can_be_refused() {
        let mut honoured = Honoured::default();
        assert_eq!(honoured.offers(), GENEROUS);
        honoured.note(&options(None, false, false), &options(None, false, false));
        let offers = honoured.offers();
        assert_eq!(
            offers,
            Offers {
                mss: 1_400,
                ..GENEROUS
            }
        );
        honoured.note(&options(Some(7), true, true), &options(Some(9), true, true));
        assert_eq!(honoured.offers().window_scale, Some(9));
        honoured.note(
            &options(Some(7), true, true),
            &options(Some(2), true, false),
        );
        let offers = honoured.offers();
        assert_eq!(
            offers.window_scale,
            Some(9),
            "the largest expresses every window"
        );
        assert!(offers.sack && !offers.timestamps);
        honoured.note(&options(Some(7), true, true), &options(None, false, true));
        let offers = honoured.offers();
        assert_eq!(
            (offers.window_scale, offers.sack, offers.timestamps),
            (None, false, false)
        );
    }
}
