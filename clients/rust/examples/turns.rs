//! Hands connections off and takes them back, again and again, for tests.
//!
//! `turns LISTEN SERVER ADOPT_SOCKET COUNT SEED`: accepts at LISTEN, copies to and from SERVER, and
//! when 64 KiB have passed makes COUNT turns with each connection, with pauses drawn by SEED in
//! which it copies or is handed off. Then it says whether the sockets are what they were, and
//! copies on.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fairlead_client::{Carrier, Refusal, wait_for_any};
use fairlead_os_tcp::{Identity, PeerClock, State, repair};

/// How often something is tried again that was refused for now.
const TRIES: u32 = 200;
const WARM_UP_BYTES: u64 = 64 << 10;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, server, socket, count, seed] = &arguments[..] else {
        return Err("usage: turns LISTEN SERVER ADOPT_SOCKET COUNT SEED".into());
    };
    let count: u64 = count.parse()?;
    let mut seed: u64 = seed.parse()?;
    let listener = TcpListener::bind(listen)?;
    say(&format!("listening {}", listener.local_addr()?));
    loop {
        let (client, _) = listener.accept()?;
        let pair = Pair {
            client,
            server: TcpStream::connect(server)?,
            dice: seed,
        };
        seed = seed.wrapping_add(1);
        let carrier = Carrier::connect(socket.as_ref())?;
        std::thread::spawn(move || {
            if let Err(error) = pair.turn(carrier, count) {
                say(&format!("failed: {error}"));
            }
        });
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

struct Pair {
    client: TcpStream,
    server: TcpStream,
    dice: u64,
}

impl Pair {
    fn turn(mut self, mut carrier: Carrier, count: u64) -> Result<(), Failure> {
        let mut copied = 0;
        while copied < WARM_UP_BYTES {
            copied += self.copy(Duration::from_millis(50))?;
        }
        let (before, begun) = (self.states()?, Instant::now());
        let mut micros = (Vec::new(), Vec::new());
        for _ in 0..count {
            let turn = Instant::now();
            self.there_and_back(&mut carrier, &mut micros)?;
            // On average 400 a second, so that four of these need most of the budget.
            let pause = self.pause(4_000).saturating_sub(turn.elapsed());
            self.copy(pause)?;
        }
        let after = self.states()?;
        let median = |all: &mut Vec<u128>| {
            all.sort_unstable();
            all.get(all.len() / 2).copied().unwrap_or(0)
        };
        let (there, back) = (median(&mut micros.0), median(&mut micros.1));
        say(&format!("turned {count}: {there} us there, {back} us back"));
        let passed = begun.elapsed();
        let mut both = before.iter().zip(&after);
        match both.all(|(a, b)| is_like(a, b, passed)) {
            true => say("as before"),
            false => say(&format!("otherwise: {before:?} {after:?}")),
        }
        loop {
            self.copy(Duration::from_secs(1))?;
        }
    }

    fn there_and_back(
        &mut self,
        carrier: &mut Carrier,
        micros: &mut (Vec<u128>, Vec<u128>),
    ) -> Result<(), Failure> {
        let mut tries = 0;
        let cid = loop {
            let begun = Instant::now();
            match carrier.adopt(&self.client, &self.server)? {
                Ok(cid) => {
                    micros.0.push(begun.elapsed().as_micros());
                    break cid;
                }
                Err(reason) => self.again(reason, &mut tries)?,
            }
        };
        std::thread::sleep(self.pause(2_000));
        tries = 0;
        loop {
            let begun = Instant::now();
            match carrier.give_back(cid, Duration::from_millis(500))? {
                Ok((client, server)) => {
                    micros.1.push(begun.elapsed().as_micros());
                    (self.client, self.server) = (client, server);
                    return Ok(());
                }
                // The carrier has it, and its streams go on.
                Err(Refusal::Busy | Refusal::Budget) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(reason) => return Err(format!("not back: {}", reason.name()).into()),
            }
        }
    }

    fn again(&self, reason: Refusal, tries: &mut u32) -> Result<(), Failure> {
        let is_for_now = matches!(
            reason,
            Refusal::Busy | Refusal::QueueNotEmpty | Refusal::Unstable
        );
        *tries += 1;
        if !is_for_now || *tries > TRIES {
            return Err(format!("refused: {}", reason.name()).into());
        }
        self.copy(Duration::from_millis(2))?;
        Ok(())
    }

    /// Copies what comes in this time, each way once.
    fn copy(&self, patience: Duration) -> Result<u64, Failure> {
        let (client, server) = (&self.client, &self.server);
        let ready = wait_for_any(&[client.as_fd(), server.as_fd()], patience)?;
        let mut copied = 0;
        for (is_ready, mut from, mut to) in [(ready[0], client, server), (ready[1], server, client)]
        {
            if is_ready {
                let mut bytes = [0; 65_536];
                let count = from.read(&mut bytes)?;
                if count == 0 {
                    return Err("an end has closed".into());
                }
                to.write_all(&bytes[..count])?;
                copied += count as u64;
            }
        }
        Ok(copied)
    }

    fn states(&self) -> Result<[State; 2], Failure> {
        let namespace = repair::own_namespace()?;
        let of = |socket: &TcpStream| -> Result<State, Failure> {
            let fd = socket.as_fd();
            let identity = Identity::of(fd, namespace).map_err(|_| "no connection")?;
            repair::enter(fd)?;
            let state = State::export(fd, identity, PeerClock::Seen(0));
            repair::leave(fd, false)?;
            Ok(state?)
        };
        Ok([of(&self.client)?, of(&self.server)?])
    }

    /// Up to this time.
    fn pause(&mut self, micros: u64) -> Duration {
        // splitmix64
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.dice;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Duration::from_micros((word ^ (word >> 31)) % micros)
    }
}

/// Up to here the kernel may enlarge a buffer by itself, when a connection becomes quicker.
const TUNED_BYTES: u32 = 1 << 20;

/// What was agreed is the same, buffers have not run away, and the clock has kept its pace: beside
/// the time that has passed it may jump by as much.
fn is_like(before: &State, after: &State, passed: Duration) -> bool {
    let agreed = |state: &State| {
        let leg = &state.leg;
        (leg.mss, leg.own_mss, leg.scales, leg.sack, leg.ecn)
    };
    let is_near = |a: u32, b: u32| a / 4 <= b && b <= a.saturating_mul(4).max(TUNED_BYTES);
    let clock = |state: &State| state.leg.timestamps.map_or(0, |stamps| stamps.own);
    let gone = clock(after).wrapping_sub(clock(before));
    let mut buffers = before.buffers.iter().zip(after.buffers);
    agreed(before) == agreed(after)
        && buffers.all(|(a, b)| is_near(*a, b))
        && after.leg.promised >= before.leg.promised / 4
        && u128::from(gone) <= 2 * passed.as_millis() + 1_000
}
