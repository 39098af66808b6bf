//! A card on one machine: the interface to the network moves into a network namespace, in which
//! the card's own stack lives; the host gets a device of the same name, hardware address and
//! addresses.

use std::io::Write;
use std::process::{Command, Stdio};

use fairlead_bpf_loader::{CardDevices, forget_card, steer};
use fairlead_netns::{Namespace, program};
use serde_json::Value;

use crate::routes::Layer3;

/// The card's device that leads to the host.
pub const TO_HOST: &str = "fl-host";
/// The card's TUN device, at which packets of moving connections are held.
pub const HOLD: &str = "fl-hold";

/// The hardware address of a device of this thread's network namespace.
pub(crate) fn mac_of(device: &str) -> std::io::Result<[u8; 6]> {
    let about = show(None, &["link", "show", "dev", device]).map_err(std::io::Error::other)?;
    let text = about["address"].as_str().unwrap_or_default();
    let bytes: Vec<u8> = text
        .split(':')
        .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes
        .try_into()
        .map_err(|_| std::io::Error::other("it has no hardware address"))
}

/// The `ip` tool, in this card's namespace or this thread's.
pub(crate) fn ip(card: Option<&str>) -> Result<Command, String> {
    let mut command = Command::new(program("ip").ok_or("the `ip` tool (iproute2) is missing")?);
    if let Some(card) = card {
        command.args(["-n", card]);
    }
    Ok(command)
}

/// What the `ip` tool says of one thing.
pub(crate) fn show(card: Option<&str>, what: &[&str]) -> Result<Value, String> {
    match list(card, what)?.into_iter().next() {
        Some(one) => Ok(one),
        None => Err(format!("ip {}: nothing", what.join(" "))),
    }
}

pub(crate) fn list(card: Option<&str>, what: &[&str]) -> Result<Vec<Value>, String> {
    let mut command = ip(card)?;
    let said = command.arg("-j").args(what).output();
    let said = said.map_err(|error| error.to_string())?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        return Err(format!("ip {}: {why}", what.join(" ")));
    }
    let found: Vec<Value> = serde_json::from_slice(&said.stdout).unwrap_or_default();
    Ok(found
        .into_iter()
        .filter(|one| *one != Value::Object(Default::default()))
        .collect())
}

pub(crate) fn run(card: Option<&str>, lines: &[String]) -> Result<(), String> {
    let mut command = ip(card)?;
    command.args(["-batch", "-"]).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
    }
    let said = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    match said.status.success() {
        true => Ok(()),
        false => {
            let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            Err(format!("ip: {why} (input: {})", lines.join("; ")))
        }
    }
}

/// What is copied from an interface.
struct Interface {
    mac: String,
    mtu: u64,
    layer_3: Layer3,
}

impl Interface {
    fn read(device: &str) -> Result<Self, String> {
        let about = show(None, &["addr", "show", "dev", device])?;
        let mac = about["address"].as_str();
        Ok(Self {
            mac: mac
                .ok_or("the interface has no hardware address")?
                .to_owned(),
            mtu: about["mtu"].as_u64().unwrap_or(1_500),
            layer_3: Layer3::read(None, device)?,
        })
    }

    /// Lines that give the host's device these addresses, and its routes through it.
    fn lines(&self, device: &str) -> Vec<String> {
        let up = format!("link set {device} up");
        let own = self.layer_3.lines();
        // Routes through other devices are there still.
        let own = own.filter(|line| line.starts_with("addr ") || line.contains(" dev "));
        [up].into_iter().chain(own).collect()
    }

    /// Lines for the card's device, which has the other end of the wire.
    fn lines_of_card(&self, device: &str) -> Vec<String> {
        let up = format!("link set {device} up");
        [up].into_iter().chain(self.layer_3.lines()).collect()
    }
}

fn sysctl(name: &str, value: &str) -> Result<(), String> {
    let path = format!("/proc/sys/net/{name}");
    std::fs::write(&path, value).map_err(|error| format!("{path}: {error}"))
}

/// Settings of the card's namespace, and the steering programs. For a thread of its own.
fn inside(card: &str, wire: &str) -> Result<(), String> {
    let namespace = Namespace::named(card).map_err(|error| error.to_string())?;
    namespace.enter().map_err(|error| error.to_string())?;
    // Held packets come in by another device than the answers leave.
    sysctl("ipv4/conf/all/rp_filter", "0")?;
    sysctl("ipv4/conf/default/rp_filter", "0")?;
    for device in [wire, TO_HOST, HOLD] {
        sysctl(&format!("ipv4/conf/{device}/rp_filter"), "0")?;
    }
    let devices = CardDevices {
        wire,
        host: TO_HOST,
        hold: HOLD,
    };
    steer(card, devices).map_err(|error| error.to_string())
}

/// Makes a card of this interface of the host.
///
/// # Errors
/// Why not. What was made is taken away again.
pub fn up(card: &str, wire: &str) -> Result<(), String> {
    if Namespace::named(card).is_ok() {
        return Err(format!("there is a network namespace {card} already"));
    }
    let before = Interface::read(wire)?;
    is_free(wire)?;
    run(None, &[format!("netns add {card}")])?;
    build(card, wire, &before).inspect_err(|_| {
        let _ = take_down(card, wire, &before);
    })
}

/// Refuses an interface that belongs to another, or that others stand on: these would be lost.
fn is_free(wire: &str) -> Result<(), String> {
    for link in list(None, &["-d", "link", "show"])? {
        let name = link["ifname"].as_str().unwrap_or_default();
        if let (true, Some(master)) = (name == wire, link["master"].as_str()) {
            return Err(format!("{wire} belongs to {master}"));
        }
        // The other end of a veth is named in the same way.
        let is_end = link["linkinfo"]["info_kind"] == "veth";
        if link["link"] == wire && !is_end {
            return Err(format!(
                "{name} stands on {wire} and would be lost; name {name} to make a card of it"
            ));
        }
    }
    Ok(())
}

fn build(card: &str, wire: &str, before: &Interface) -> Result<(), String> {
    let Interface { mac, mtu, .. } = before;
    run(None, &[format!("link set {wire} netns {card}")])?;
    run(
        None,
        &[format!(
            "link add {wire} address {mac} mtu {mtu} type veth peer name {TO_HOST} netns {card}"
        )],
    )?;
    run(
        Some(card),
        &[
            "link set lo up".to_owned(),
            format!("tuntap add {HOLD} mode tun"),
            format!("link set {HOLD} up"),
            format!("link set {TO_HOST} arp off mtu {mtu} up"),
        ],
    )?;
    let card_name = card.to_owned();
    let wire_name = wire.to_owned();
    let thread = std::thread::spawn(move || inside(&card_name, &wire_name));
    thread
        .join()
        .unwrap_or_else(|_| Err("a thread ended".to_owned()))?;
    run(Some(card), &before.lines_of_card(wire))?;
    run(None, &before.lines(wire))
}

/// Takes a card away: the host gets its interface back.
///
/// # Errors
/// What could not be done.
pub fn down(card: &str) -> Result<(), String> {
    let wire = wire_of(card)?;
    let before = Interface::read(&wire)?;
    take_down(card, &wire, &before)
}

/// The name of the card's interface to the network, which the host's device has, too.
pub(crate) fn wire_of(card: &str) -> Result<String, String> {
    let devices = list(Some(card), &["link", "show"])?;
    let wire = devices.iter().filter_map(|one| one["ifname"].as_str());
    let mut wire = wire.filter(|name| ![TO_HOST, HOLD, "lo"].contains(name));
    match (wire.next(), wire.next()) {
        (Some(wire), None) => Ok(wire.to_owned()),
        _ => Err(format!(
            "{card} is no card that `fairlead offload up` has made"
        )),
    }
}

fn take_down(card: &str, wire: &str, before: &Interface) -> Result<(), String> {
    // The host's device is gone, if it was made, before the other gets its name.
    let _ = run(Some(card), &[format!("link del {TO_HOST}")]);
    // This thread's, which need not be the process's.
    let own = std::fs::read_link("/proc/thread-self").map_err(|error| error.to_string())?;
    let own = format!("/proc/{}/ns/net", own.display());
    let back = run(Some(card), &[format!("link set {wire} netns {own}")]);
    let _ = forget_card(card);
    let removed = run(None, &[format!("netns del {card}")]);
    back?;
    run(None, &before.lines(wire))?;
    removed
}
