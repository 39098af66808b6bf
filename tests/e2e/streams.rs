//! What goes in comes out: bodies of all sizes both ways, slow ends, half-closed ends, ends that
//! break off. Streams are hashed at both ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_base::Rng;
use fairlead_netns::{Host, Signal};
use fairlead_testkit::stream::{self, Digest};

use crate::harness::{
    Connection, Family, Lab, Nginx, Origin, PATIENCE, PREFIX, Switch, in_a_lab, long, raw_service,
    rounds, seeds, send_stream, show, web, web_service, xdp_is_asked_for,
};

const SOURCES: [&str; 2] = ["snat", "transparent"];
const SIZES: [u64; 9] = [1, 2, 1_447, 1_448, 1_449, 65_535, 65_536, 300_001, 1 << 20];
const BIG: u64 = 64 << 20;

/// One `web` origin for each family.
fn origins(lab: &Lab) -> [Origin; 2] {
    Family::BOTH.map(|family| {
        Origin::start(
            lab,
            family.server_at(1, 8080),
            web("origin", false, Arc::default()),
        )
    })
}

fn to_origins(source: &str) -> String {
    web_service(source, "", "", |family| vec![family.server_at(1, 8080)])
}

fn put(connection: &mut Connection, seed: u64, len: u64) {
    let head = format!("PUT /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: {len}\r\n\r\n");
    connection.send(head).unwrap();
    connection.send_stream(seed, 0, len).unwrap();
    let response = connection.response(false).unwrap();
    assert_eq!(
        response.text(),
        show(&Digest::of_stream(seed, len)),
        "{len} bytes up"
    );
}

fn fetch(connection: &mut Connection, len: u64) {
    let response = connection
        .ask("GET", "a.example", &format!("/bytes/{len}"))
        .unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(
        response.digest,
        Digest::of_stream(len, len),
        "{len} bytes down"
    );
}

#[test]
fn bodies_of_all_sizes_are_the_same_at_both_ends() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        for source in SOURCES {
            let switch = Switch::start(lab, &to_origins(source));
            for family in Family::BOTH {
                let mut kept = Connection::to(lab, family.virtual_at(80));
                for len in SIZES {
                    let mut fresh = Connection::to(lab, family.virtual_at(80));
                    put(&mut fresh, len, len);
                    fetch(&mut fresh, len);
                    fetch(&mut kept, len);
                    put(&mut kept, len + 1, len);
                }
                fetch(&mut kept, BIG);
                put(&mut kept, 7, BIG);
            }
            assert!(switch.count("fast_packets") > 0);
        }
    });
}

#[test]
fn chunked_uploads_in_pieces_of_any_size_arrive_whole() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let _switch = Switch::start(lab, &to_origins("snat"));
        for seed in seeds(6, 60) {
            let mut rng = Rng::new(seed);
            let family = if seed % 2 == 0 {
                Family::V4
            } else {
                Family::V6
            };
            let mut connection = Connection::to(lab, family.virtual_at(80));
            let mut text =
                b"POST /up HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
                    .to_vec();
            let mut at = 0;
            for _ in 0..rng.below(60) + 1 {
                let bits = 1 + rng.below(16);
                let len = 1 + u64::from(rng.below(1 << bits));
                text.extend_from_slice(format!("{len:x}\r\n").as_bytes());
                text.extend_from_slice(&stream::bytes(seed, at, len as usize));
                text.extend_from_slice(b"\r\n");
                at += len;
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let mut rest = &text[..];
            while !rest.is_empty() {
                let cut = (1 + rng.below(20_000) as usize).min(rest.len());
                connection.send(&rest[..cut]).unwrap();
                rest = &rest[cut..];
            }
            let response = connection.response(false).unwrap();
            assert_eq!(
                response.text(),
                show(&Digest::of_stream(seed, at)),
                "seed {seed}"
            );
        }
    });
}

#[test]
fn a_client_that_sends_one_byte_at_a_time_is_served() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        for source in SOURCES {
            let _switch = Switch::start(lab, &to_origins(source));
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let mut text =
                    b"PUT /slow HTTP/1.1\r\nHost: a.example\r\nContent-Length: 300\r\n\r\n"
                        .to_vec();
                text.extend(stream::bytes(4, 0, 300));
                for byte in text {
                    connection.send([byte]).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
                let response = connection.response(false).unwrap();
                assert_eq!(response.text(), show(&Digest::of_stream(4, 300)));
            }
        }
    });
}

#[test]
fn a_head_of_many_segments_with_its_body_right_behind_is_read() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let _switch = Switch::start(lab, &to_origins("snat"));
        for family in Family::BOTH {
            for filler in [1_000, 4_000, 14_000] {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                let field = "x".repeat(filler);
                let mut text = format!(
                    "PUT /up HTTP/1.1\r\nHost: a.example\r\nX-Filler: {field}\r\n\
                     Content-Length: 200000\r\n\r\n"
                )
                .into_bytes();
                text.extend(stream::bytes(5, 0, 200_000));
                connection.send(text).unwrap();
                let response = connection.response(false).unwrap();
                assert_eq!(
                    response.text(),
                    show(&Digest::of_stream(5, 200_000)),
                    "{filler}"
                );
                fetch(&mut connection, 100_000);
            }
        }
    });
}

#[test]
fn a_client_that_does_not_read_closes_the_window_and_loses_nothing() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let _switch = Switch::start(lab, &to_origins("transparent"));
        let len = 16 << 20;
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        connection
            .send(format!(
                "GET /bytes/{len} HTTP/1.1\r\nHost: a.example\r\n\r\n"
            ))
            .unwrap();
        // Long enough for a zero window and the server's first probes of it.
        std::thread::sleep(Duration::from_millis(1_500));
        let response = connection.response(false).unwrap();
        assert_eq!(response.digest, Digest::of_stream(len, len));
    });
}

#[test]
fn a_server_that_does_not_read_closes_the_window_and_loses_nothing() {
    in_a_lab(|lab| {
        let digest: Arc<Mutex<Digest>> = Arc::default();
        let record = Arc::clone(&digest);
        let _origin = Origin::start(lab, Family::V4.server_at(1, 7), move |mut stream| {
            std::thread::sleep(Duration::from_millis(1_500));
            let all = read_digest(&mut stream)?;
            *record.lock().unwrap() = all;
            stream.write_all(show(&all).as_bytes())
        });
        let _switch = Switch::start(lab, &raw_service("snat", |family| family.server_at(1, 7)));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(7));
        connection.send_stream(8, 0, 16 << 20).unwrap();
        connection.finish_sending().unwrap();
        let answer = connection.rest().unwrap();
        let expected = Digest::of_stream(8, 16 << 20);
        assert_eq!(String::from_utf8(answer).unwrap(), show(&expected));
        assert_eq!(*digest.lock().unwrap(), expected);
    });
}

#[test]
fn a_client_that_has_closed_its_half_still_gets_everything() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let _raw: Vec<Origin> = Family::BOTH
            .map(|family| {
                Origin::start(lab, family.server_at(1, 7), |mut stream| {
                    // Answers only when the client's stream is over.
                    let digest = read_digest(&mut stream)?;
                    stream.write_all(format!("{}\n", show(&digest)).as_bytes())?;
                    send_stream(&mut stream, 9, 0, 4 << 20)
                })
            })
            .into();
        for source in SOURCES {
            let services =
                to_origins(source) + &raw_service(source, |family| family.server_at(1, 7));
            let switch = Switch::start(lab, &services);
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(7));
                connection.send_stream(6, 0, 1 << 20).unwrap();
                connection.finish_sending().unwrap();
                let all = connection.rest().unwrap();
                let line = format!("{}\n", show(&Digest::of_stream(6, 1 << 20)));
                assert!(all.starts_with(line.as_bytes()));
                assert_eq!(stream::check(9, 0, &all[line.len()..]), Ok(()));
                assert_eq!(all.len() - line.len(), 4 << 20);

                // The FIN right behind the request, often in the same packet.
                let mut connection = Connection::to(lab, family.virtual_at(80));
                connection
                    .send("GET /bytes/3000000 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
                    .unwrap();
                connection.finish_sending().unwrap();
                let response = connection.response(false).unwrap();
                assert_eq!(response.digest, Digest::of_stream(3_000_000, 3_000_000));
                let closed = switch.record(connection.local(), "closed");
                assert_eq!(closed.text("end"), "finished");
            }
        }
    });
}

#[test]
fn a_server_that_has_closed_its_half_still_gets_everything() {
    in_a_lab(|lab| {
        let digest: Arc<Mutex<Option<Digest>>> = Arc::default();
        let record = Arc::clone(&digest);
        let _raw = Origin::start(lab, Family::V4.server_at(1, 7), move |mut stream| {
            send_stream(&mut stream, 2, 0, 100_000)?;
            stream.shutdown(Shutdown::Write)?;
            *record.lock().unwrap() = Some(read_digest(&mut stream)?);
            Ok(())
        });
        let _switch = Switch::start(
            lab,
            &raw_service("transparent", |family| family.server_at(1, 7)),
        );
        let mut connection = Connection::to(lab, Family::V4.virtual_at(7));
        // A `tcp` service chooses its server when the handshake is complete, so the server may
        // speak first.
        let all = connection.rest().unwrap();
        assert_eq!((stream::check(2, 0, &all), all.len()), (Ok(()), 100_000));
        connection.send_stream(3, 0, 5_000_000).unwrap();
        drop(connection);
        let until = Instant::now() + PATIENCE;
        while digest.lock().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            *digest.lock().unwrap(),
            Some(Digest::of_stream(3, 5_000_000))
        );
    });
}

#[test]
fn both_directions_at_once_are_whole() {
    in_a_lab(|lab| {
        let _raw: Vec<Origin> = Family::BOTH
            .map(|family| {
                Origin::start(lab, family.server_at(1, 7), |mut stream| {
                    let mut buffer = vec![0; 64 << 10];
                    loop {
                        let count = stream.read(&mut buffer)?;
                        if count == 0 {
                            return Ok(());
                        }
                        stream.write_all(&buffer[..count])?;
                    }
                })
            })
            .into();
        for source in SOURCES {
            let _switch = Switch::start(lab, &raw_service(source, |family| family.server_at(1, 7)));
            for family in Family::BOTH {
                let len = 16u64 << 20;
                let mut connection = Connection::to(lab, family.virtual_at(7));
                let mut sender = connection.stream.try_clone().unwrap();
                let thread = std::thread::spawn(move || {
                    send_stream(&mut sender, 1, 0, len)?;
                    sender.shutdown(Shutdown::Write)
                });
                let digest = read_digest(&mut connection.stream).unwrap();
                thread.join().unwrap().unwrap();
                assert_eq!(digest, Digest::of_stream(1, len));
            }
        }
    });
}

#[test]
fn ends_that_break_off_anywhere_leave_a_true_beginning_and_nothing_behind() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let _breaking: Vec<Origin> = Family::BOTH
            .map(|family| {
                let number = AtomicU64::new(0);
                Origin::start(lab, family.server_at(1, 7), move |stream| {
                    break_off(stream, number.fetch_add(1, Ordering::SeqCst))
                })
            })
            .into();
        for source in SOURCES {
            let services =
                to_origins(source) + &raw_service(source, |family| family.server_at(1, 7));
            let switch = Switch::start(lab, &services);
            for seed in seeds(25, 500) {
                let family = if seed % 2 == 0 {
                    Family::V4
                } else {
                    Family::V6
                };
                client_breaks_off(lab, family, seed);
                server_breaks_off(lab, family, seed);
            }
            switch.wait_for_count("live", 0);
            switch.wait_for_count("setups", 0);
            assert_eq!(switch.count("buffered_bytes"), 0);
        }
    });
}

#[test]
fn a_server_killed_in_mid_transfer_is_noticed_and_the_next_one_serves() {
    in_a_lab(|lab| {
        let addresses = [1, 2].map(|number| Family::V4.server_at(number, 8080));
        let [first, second] =
            [("first", addresses[0]), ("second", addresses[1])].map(|(name, at)| {
                let nginx = Nginx::plain(lab, name, at);
                let big = lab.folder().join(name).join("files/big");
                std::fs::write(big, stream::bytes(1, 0, BIG as usize)).unwrap();
                nginx
            });
        let servers = |family| {
            if family == Family::V4 {
                addresses.to_vec()
            } else {
                Vec::new()
            }
        };
        let switch = Switch::start(lab, &web_service("snat", "", "", servers));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        connection
            .send("GET /files/big HTTP/1.1\r\nHost: a.example\r\n\r\n")
            .unwrap();
        let head = connection.response_head().unwrap();
        let (victim, other, survivor) = match head.server() {
            "first" => (first, second, "second"),
            "second" => (second, first, "first"),
            name => panic!("{name:?} answered"),
        };
        let mut got = vec![0; 1 << 20];
        connection.stream.read_exact(&mut got).unwrap();
        victim.kill();
        let begun = Instant::now();
        let rest = connection.rest();
        assert!(
            begun.elapsed() < PATIENCE / 2,
            "noticed after {:?}",
            begun.elapsed()
        );
        if let Ok(rest) = rest {
            assert!(
                ((1 << 20) + rest.len() as u64) < BIG,
                "a dead server finished its answer"
            );
        }
        let local = connection.local();
        drop(connection);
        let closed = switch.record(local, "closed");
        assert!(
            ["reset_by_server", "finished"].contains(&closed.text("end").as_str()),
            "{closed:?}"
        );
        for _ in 0..6 {
            let mut next = Connection::to(lab, Family::V4.virtual_at(80));
            let response = next.ask("GET", "a.example", "/").unwrap();
            assert_eq!((response.status, response.server()), (200, survivor));
        }
        drop(other);
    });
}

#[test]
fn a_smaller_mtu_on_the_way_is_found_in_either_direction() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        // Only what the switch's end sends is shortened: its kernel has to tell the sender, by
        // ICMP, that the packets which Fairlead sent on do not fit. By the link, or by the route.
        let ends = [
            (&lab.back.a, ["10.2.0.1/32", "fd02::1/128"]),
            (&lab.front.b, ["10.1.0.10/32", "fd01::10/128"]),
        ];
        let far_ends = [
            (
                &lab.servers,
                ["0.0.0.0/0 via 10.2.0.254", "::/0 via fd02::fe"],
            ),
            (
                &lab.client,
                ["10.1.0.3/32 via 10.1.0.2", "fd01:3::/64 via fd01::2"],
            ),
        ];
        for ((device, hosts), (far, ways)) in ends.into_iter().zip(far_ends) {
            if !xdp_is_asked_for() {
                // A veth takes in no single packet that is longer than its own MTU, but any
                // super-packet. The far end therefore sends short ones, and offers to take long
                // ones as before.
                far_routes(
                    far,
                    ways,
                    [" mtu 1300 advmss 1460", " mtu 1300 advmss 1440"],
                );
                lab.switch
                    .ip(&format!("link set {device} mtu 1300\n"))
                    .unwrap();
                both_ways(lab);
                lab.switch
                    .ip(&format!("link set {device} mtu 1500\n"))
                    .unwrap();
                far_routes(far, ways, [""; 2]);
            }
            let routes = |verb: &str, mtu: &str| {
                let line = |host| format!("route {verb} {host} dev {device}{mtu}\n");
                let lines = hosts.map(line);
                lab.switch.ip(&lines.concat()).unwrap();
            };
            routes("add", " mtu lock 1300");
            both_ways(lab);
            routes("del", "");
        }
    });
}

/// Gives the two routes of a far end these metrics.
fn far_routes(far: &Host, ways: [&str; 2], metrics: [&str; 2]) {
    for (way, metrics) in ways.into_iter().zip(metrics) {
        far.ip(&format!("route del {way}\nroute add {way}{metrics}\n"))
            .unwrap();
    }
}

/// Bodies both ways, by both families and kinds of source addresses.
fn both_ways(lab: &Lab) {
    for source in SOURCES {
        let _switch = Switch::start(lab, &to_origins(source));
        for family in Family::BOTH {
            let mut connection = Connection::to(lab, family.virtual_at(80));
            put(&mut connection, 3, 2 << 20);
            fetch(&mut connection, 2 << 20);
        }
    }
}

#[test]
fn jumbo_links_around_a_device_of_any_mtu_carry_everything() {
    in_a_lab(|lab| {
        let ends = [
            (&lab.client, &lab.front.a),
            (&lab.switch, &lab.front.b),
            (&lab.switch, &lab.back.a),
            (&lab.servers, &lab.back.b),
        ];
        for (host, device) in ends {
            host.ip(&format!("link set {device} mtu 9000\n")).unwrap();
        }
        let _origins = origins(lab);
        for mtu in [1_300, 1_500, 9_000] {
            let prefix = PREFIX.replace("[network]", &format!("[network]\nmtu = {mtu}"));
            for source in SOURCES {
                let _switch = Switch::start_with(lab, &format!("{prefix}{}", to_origins(source)));
                for family in Family::BOTH {
                    let mut connection = Connection::to(lab, family.virtual_at(80));
                    put(&mut connection, 3, 2 << 20);
                    fetch(&mut connection, 2 << 20);
                }
            }
        }
    });
}

#[test]
fn a_switch_that_stands_still_for_a_while_loses_nothing() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let mut switch = Switch::start(lab, &to_origins("transparent"));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let len = 32u64 << 20;
        connection
            .send(format!(
                "GET /bytes/{len} HTTP/1.1\r\nHost: a.example\r\n\r\n"
            ))
            .unwrap();
        let mut digest = Digest::new();
        let mut buffer = vec![0; 64 << 10];
        assert_eq!(connection.response_head().unwrap().status, 200);
        while digest.len_bytes() < len {
            let before = digest.len_bytes() >> 23;
            let count = connection.read(&mut buffer).unwrap();
            assert!(count > 0, "closed after {} bytes", digest.len_bytes());
            digest.update(&buffer[..count]);
            if digest.len_bytes() >> 23 != before {
                switch.signal(Signal::Stop);
                std::thread::sleep(Duration::from_millis(700));
                switch.signal(Signal::Continue);
            }
        }
        assert_eq!(digest, Digest::of_stream(len, len));
    });
}

#[test]
fn an_upgraded_connection_is_a_line_in_both_directions() {
    in_a_lab(|lab| {
        let _origin = Origin::start(lab, Family::V4.server_at(1, 8080), |mut stream| {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte)?;
                head.push(byte[0]);
            }
            stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
            )?;
            // Server and client speak in turns, the server first.
            for round in 0..100u32 {
                stream.write_all(&round.to_be_bytes())?;
                let mut answer = [0; 8];
                stream.read_exact(&mut answer)?;
                if u64::from_be_bytes(answer) != u64::from(round) * 3 {
                    return Ok(());
                }
            }
            stream.write_all(b"done")
        });
        let _switch = Switch::start(lab, &to_origins("snat"));
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        let head =
            "GET /line HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
        connection.send(head).unwrap();
        assert_eq!(connection.response_head().unwrap().status, 101);
        for round in 0..100u32 {
            let mut four = [0; 4];
            let mut got = 0;
            while got < 4 {
                got += connection.read(&mut four[got..]).unwrap();
            }
            assert_eq!(u32::from_be_bytes(four), round);
            connection
                .send((u64::from(round) * 3).to_be_bytes())
                .unwrap();
        }
        assert_eq!(connection.rest().unwrap(), b"done");
    });
}

#[test]
fn every_combination_of_tcp_options_works() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        let settings = [
            "net.ipv4.tcp_sack",
            "net.ipv4.tcp_timestamps",
            "net.ipv4.tcp_window_scaling",
        ];
        // Of the 64 combinations the short form takes those in which one end lacks something.
        for mask in 0..64u32 {
            let (client, server) = (mask & 7, mask >> 3);
            if !long() && client.count_ones() + server.count_ones() > 1 && mask != 63 {
                continue;
            }
            for (bit, setting) in settings.iter().enumerate() {
                let value = |lacking: u32| if lacking >> bit & 1 == 1 { "0" } else { "1" };
                lab.client.sysctl(setting, value(client)).unwrap();
                lab.servers.sysctl(setting, value(server)).unwrap();
            }
            // The switch has to learn what the servers offer, so it starts after the change.
            let _switch = Switch::start(lab, &to_origins("snat"));
            for family in Family::BOTH {
                let mut connection = Connection::to(lab, family.virtual_at(80));
                put(&mut connection, 3, 1 << 20);
                fetch(&mut connection, 3 << 20);
            }
        }
    });
}

#[test]
fn the_same_client_port_can_be_used_again_at_once() {
    in_a_lab(|lab| {
        let _origins = origins(lab);
        for source in SOURCES {
            let switch = Switch::start(lab, &to_origins(source));
            for round in 0..rounds(60, 1_000) {
                let family = Family::BOTH[round % 2];
                let mut connection = from_port(lab, family, 40_000);
                // The server closes first, so that the client's kernel keeps no TIME_WAIT.
                let text =
                    "GET /bytes/5000 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
                connection.send(text).unwrap();
                let response = connection.response(false).unwrap();
                assert_eq!(
                    response.digest,
                    Digest::of_stream(5_000, 5_000),
                    "round {round}"
                );
                assert_eq!(connection.rest().unwrap(), b"");
            }
            assert_eq!(switch.count("spliced"), rounds(60, 1_000) as u64);
        }
    });
}

/// Connects from a fixed port of the client.
fn from_port(lab: &Lab, family: Family, port: u16) -> Connection {
    let domain = socket2::Domain::for_address(family.virtual_at(80));
    let local = std::net::SocketAddr::new(family.client(), port);
    let attempt = || {
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&local.into())?;
        socket.connect_timeout(&family.virtual_at(80).into(), PATIENCE)?;
        Ok(socket)
    };
    // The kernel may need a moment to let go of the port, and of the connection that it had.
    let until = Instant::now() + PATIENCE;
    let socket = lab.client.enter(|| {
        loop {
            match attempt() {
                Err(error) if is_taken(&error) && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                tried => return tried,
            }
        }
    });
    let socket: socket2::Socket = socket.unwrap().unwrap();
    Connection::over(TcpStream::from(socket)).unwrap()
}

fn is_taken(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};
    matches!(error.kind(), AddrInUse | AddrNotAvailable)
}

fn read_digest(stream: &mut TcpStream) -> std::io::Result<Digest> {
    let mut digest = Digest::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(digest);
        }
        digest.update(&buffer[..count]);
    }
}

/// Sends a random beginning of its stream, then closes or resets.
fn break_off(mut stream: TcpStream, number: u64) -> std::io::Result<()> {
    let mut rng = Rng::new(number ^ 0xb4ea);
    let bits = 1 + rng.below(21);
    let len = u64::from(rng.below(1 << bits));
    send_stream(&mut stream, 77, 0, len)?;
    if rng.chance(500_000) {
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    Ok(())
}

fn server_breaks_off(lab: &Lab, family: Family, seed: u64) {
    let mut connection = match Connection::open(lab, family.virtual_at(7)) {
        Ok(connection) => connection,
        // The server's reset can be faster than the report of the handshake.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
        Err(error) => panic!("seed {seed}: {error}"),
    };
    let mut got = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match connection.stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                assert_eq!(
                    stream::check(77, got, &buffer[..count]),
                    Ok(()),
                    "seed {seed}"
                );
                got += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("seed {seed}: after {got} bytes: {error}"),
        }
    }
}

/// Breaks off in the middle of an upload, of a download, or of a head.
fn client_breaks_off(lab: &Lab, family: Family, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut connection = Connection::to(lab, family.virtual_at(80));
    match rng.below(3) {
        0 => {
            let head = "PUT /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9999999\r\n\r\n";
            connection.send(head).unwrap();
            connection
                .send_stream(1, 0, u64::from(rng.below(2_000_000)))
                .unwrap();
        }
        1 => {
            connection
                .send("GET /bytes/9999999 HTTP/1.1\r\nHost: a.example\r\n\r\n")
                .unwrap();
            let head = connection.response_head().unwrap();
            assert_eq!(head.status, 200);
            let mut left = u64::from(rng.below(2_000_000));
            let mut buffer = vec![0; 64 << 10];
            let mut got = 0;
            while left > 0 {
                let want = left.min(buffer.len() as u64) as usize;
                let count = connection.read(&mut buffer[..want]).unwrap();
                assert_eq!(
                    stream::check(9_999_999, got, &buffer[..count]),
                    Ok(()),
                    "seed {seed}"
                );
                got += count as u64;
                left -= count as u64;
            }
        }
        _ => {
            let head = b"GET /bytes/1 HTTP/1.1\r\nHost: a.example\r\n\r\n";
            connection
                .send(&head[..rng.below(head.len() as u32) as usize])
                .unwrap();
        }
    }
    if rng.chance(500_000) {
        connection.abort();
    }
}
