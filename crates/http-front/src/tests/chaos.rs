//! Many clients and servers with faults at random: every response that is whole is the one to its
//! request, and nothing is left behind.

use std::collections::BTreeMap;
use std::time::Duration;

use fairlead_base::Rng;

use super::world::{World, config};
use crate::{ConnId, Limits};

const ROUNDS: u64 = 40;

#[test]
fn whatever_happens_responses_belong_to_their_requests() {
    for seed in 0..ROUNDS {
        let limits = Limits {
            clients: 40,
            buffer_bytes: 4 << 20,
            idle_per_server: 2,
            idle: Duration::from_secs(5),
        };
        let mut world = World::of(config(), limits, seed);
        let mut rng = Rng::new(seed ^ 0x5eed);
        world.piece = [7, 300, 5_000, 100_000][rng.below(4) as usize];
        let mut plays = Plays::default();
        for _ in 0..300 {
            plays.step(&mut world, &mut rng);
        }
        plays.finish(&mut world);
        world.wait(Duration::from_secs(140));
        assert!(world.front.is_idle(), "seed {seed}: clients are left");
        let counts = world.front.counts();
        assert_eq!(
            (
                counts.numbers.front_servers,
                counts.numbers.front_buffer_bytes
            ),
            (0, 0),
            "seed {seed}"
        );
    }
}

#[derive(Debug, Default)]
struct Plays {
    clients: Vec<ConnId>,
    /// What each client has asked, in order.
    asked: BTreeMap<(u32, u32), Vec<u64>>,
    number: u64,
    /// What each server has not yet answered of what it got.
    read: BTreeMap<(u32, u32), Vec<u8>>,
}

impl Plays {
    fn step(&mut self, world: &mut World, rng: &mut Rng) {
        match rng.below(12) {
            0 | 1 if self.clients.len() < 30 => self.clients.push(world.client()),
            2..=6 => self.ask(world, rng),
            7 => {
                let at = rng.below(self.clients.len().max(1) as u32) as usize;
                if let Some(&id) = self.clients.get(at)
                    && rng.below(3) == 0
                {
                    world.end(id);
                }
            }
            8 => world.wait(Duration::from_millis(rng.below(900).into())),
            _ => {}
        }
        self.serve(world, rng, true);
    }

    fn ask(&mut self, world: &mut World, rng: &mut Rng) {
        if self.clients.is_empty() {
            return;
        }
        let id = self.clients[rng.below(self.clients.len() as u32) as usize];
        if world.far(id).closed {
            return;
        }
        self.number += 1;
        let number = self.number;
        let path = ["/a", "/b"][rng.below(2) as usize];
        let body = "z".repeat(rng.below(3_000) as usize);
        let ask = match rng.below(4) {
            0 => format!(
                "POST {path}/{number} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
            1 => format!(
                "PUT {path}/{number} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {:x}\r\n{body}z\r\n0\r\n\r\n",
                body.len() + 1
            ),
            _ => format!("GET {path}/{number} HTTP/1.1\r\nHost: x\r\n\r\n"),
        };
        self.asked
            .entry((id.index, id.generation))
            .or_default()
            .push(number);
        world.say(id, ask);
    }

    /// Servers answer what they got, each with the number that stands in the path.
    fn serve(&mut self, world: &mut World, rng: &mut Rng, faults: bool) {
        for conn in world.connects.clone() {
            let got = core::mem::take(&mut world.far(conn).got);
            let read = self.read.entry((conn.index, conn.generation)).or_default();
            read.extend_from_slice(&got);
            while let Some(number) = request(read) {
                if world.far(conn).closed || faults && rng.below(10) == 0 {
                    world.end(conn);
                    break;
                }
                let text = format!("<{number}>").repeat(1 + rng.below(400) as usize);
                let cut = faults && rng.below(12) == 0;
                let (answer, whole) = match rng.below(3) {
                    0 => (format!("HTTP/1.1 200 X\r\n\r\n{text}"), false),
                    1 => {
                        let len = text.len();
                        let head = "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n";
                        (format!("{head}{len:x}\r\n{text}\r\n0\r\n\r\n"), true)
                    }
                    _ => {
                        let len = text.len();
                        (
                            format!("HTTP/1.1 200 X\r\nContent-Length: {len}\r\n\r\n{text}"),
                            true,
                        )
                    }
                };
                let end = if cut { answer.len() / 2 } else { answer.len() };
                world.say(conn, &answer[..end]);
                if cut || !whole {
                    world.end(conn);
                    break;
                }
            }
        }
        self.check(world);
    }

    /// All numbers in what a client got are of its own requests, in their order.
    fn check(&self, world: &mut World) {
        for &id in &self.clients {
            let asked = self.asked.get(&(id.index, id.generation));
            let asked = asked.map_or(&[][..], |all| &all[..]);
            let got = String::from_utf8_lossy(&world.far(id).got).into_owned();
            let mut at = 0;
            for number in got.split('<').skip(1) {
                let Some((number, _)) = number.split_once('>') else {
                    continue;
                };
                let number: u64 = number.parse().expect("a number");
                let here = asked[at..].iter().position(|one| *one == number);
                at += here.expect("an answer to another request");
            }
        }
    }

    fn finish(&mut self, world: &mut World) {
        let mut rng = Rng::new(0);
        for _ in 0..50 {
            self.serve(world, &mut rng, false);
        }
        for &id in &self.clients {
            if !world.far(id).closed {
                world.end(id);
            }
        }
    }
}

/// Takes a whole request from the beginning; the number in its path.
fn request(read: &mut Vec<u8>) -> Option<u64> {
    let text = String::from_utf8_lossy(read).into_owned();
    let head = text.find("\r\n\r\n")? + 4;
    let number = text.split(' ').nth(1)?.rsplit('/').next()?.parse().ok()?;
    let rest = &text[head..];
    let body = if let Some(length) = text[..head].split("Content-Length: ").nth(1) {
        let length: usize = length.split("\r\n").next()?.parse().ok()?;
        (rest.len() >= length).then_some(length)?
    } else if text[..head].contains("chunked") {
        rest.find("\r\n0\r\n\r\n")? + 7
    } else {
        0
    };
    read.drain(..head + body);
    Some(number)
}
