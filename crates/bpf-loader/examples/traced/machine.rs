//! What the machine needs before packets, and what it says to the tracer: text, byte by byte.

use std::ffi::CStr;
use std::fs;
use std::hint::black_box;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU8, Ordering};

pub(super) type Outcome<T> = Result<T, String>;

/// The byte that is read is the letter.
// SAFETY: no other symbol has this name.
#[unsafe(export_name = "fairlead_guest_letters")]
static LETTERS: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

// SAFETY: no other symbol has this name.
#[unsafe(export_name = "fairlead_guest_say")]
#[inline(never)]
extern "C" fn say_letter(letter: u8) {
    black_box(LETTERS[usize::from(letter)].load(Ordering::Relaxed));
}

pub(super) fn say(text: &str) {
    text.bytes().for_each(|letter| say_letter(letter));
}

/// The machine stops with this line.
pub(super) fn end_with(what: &str) -> ! {
    say(&format!("guest {}\n", what.replace('\n', " ")));
    loop {
        // SAFETY: no memory is handed over.
        unsafe { libc::reboot(libc::RB_AUTOBOOT) };
    }
}

/// Nothing here waits for long: a machine that stands still ends itself.
const PATIENCE_SECONDS: u32 = 600;

pub(super) fn set_up() -> Outcome<()> {
    // SAFETY: no memory is handed over.
    unsafe { libc::alarm(PATIENCE_SECONDS) };
    for (path, kind) in [("/proc", c"proc"), ("/sys", c"sysfs")] {
        fs::create_dir_all(path).map_err(|error| format!("{path}: {error}"))?;
        mount(kind, path)?;
    }
    for (name, value) in [
        ("net/core/bpf_jit_enable", "1"),
        ("net/core/bpf_jit_kallsyms", "1"),
        ("net/core/bpf_jit_harden", "0"),
        ("kernel/kptr_restrict", "1"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/forwarding", "1"),
    ] {
        let path = format!("/proc/sys/{name}");
        fs::write(&path, value).map_err(|error| format!("{path}: {error}"))?;
    }
    let module = fs::read("/dummy.ko").map_err(|error| format!("/dummy.ko: {error}"))?;
    load_module(&module, c"numdummies=2")?;
    for (name, address, address6) in [
        (c"dummy0", [10, 1, 0, 1], 0xfd01),
        (c"dummy1", [10, 2, 0, 254], 0xfd02),
    ] {
        set_up_interface(name, address, address6)?;
    }
    // What is sent makes the neighbours known.
    for peer in ["10.1.0.9:9", "10.2.0.1:9", "[fd01::9]:9", "[fd02::1]:9"] {
        let own = if peer.starts_with('[') {
            "[::]:0"
        } else {
            "0.0.0.0:0"
        };
        let socket = UdpSocket::bind(own).map_err(|error| format!("a socket: {error}"))?;
        let sent = socket.send_to(b"x", peer);
        sent.map_err(|error| format!("a packet to {peer}: {error}"))?;
    }
    Ok(())
}

fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::last_os_error())
}

fn mount(kind: &CStr, path: &str) -> Outcome<()> {
    let to = std::ffi::CString::new(path).map_err(|error| error.to_string())?;
    let none = std::ptr::null();
    // SAFETY: strings that end in a zero byte, only read; no data.
    let result = unsafe { libc::mount(kind.as_ptr(), to.as_ptr(), kind.as_ptr(), 0, none) };
    if result == 0 {
        Ok(())
    } else {
        Err(failed(path))
    }
}

fn load_module(module: &[u8], options: &CStr) -> Outcome<()> {
    // SAFETY: a module and a string that ends in a zero byte, both only read.
    let result = unsafe {
        libc::syscall(
            libc::SYS_init_module,
            module.as_ptr(),
            module.len(),
            options.as_ptr(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(failed("the module dummy"))
    }
}

pub(super) fn interface_index(name: &CStr) -> u32 {
    // SAFETY: a string that ends in a zero byte, only read.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// Of both interfaces.
pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// `struct in6_ifreq`.
#[repr(C)]
struct Address6 {
    address: [u8; 16],
    prefix: u32,
    interface: i32,
}

fn socket(family: i32) -> Outcome<i32> {
    // SAFETY: no memory is handed over.
    let made = unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) };
    if made >= 0 {
        Ok(made)
    } else {
        Err(failed("a socket"))
    }
}

/// An ioctl; `request` must be the structure that `number` takes.
fn ask<T>(socket: i32, number: libc::c_ulong, request: &mut T, what: &str) -> Outcome<()> {
    // SAFETY: a whole structure of the kind that `number` takes, as callers see to.
    let result = unsafe { libc::ioctl(socket, number, request) };
    if result == 0 {
        Ok(())
    } else {
        Err(failed(what))
    }
}

/// An address structure whose data begin with `bytes`.
fn address_of(family: libc::sa_family_t, bytes: &[u8]) -> libc::sockaddr {
    // SAFETY: a structure of numbers, which may all be zero.
    let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
    address.sa_family = family;
    for (to, from) in address.sa_data.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    address
}

fn set_up_interface(name: &CStr, address: [u8; 4], network6: u16) -> Outcome<()> {
    // SAFETY: a structure of numbers, which may all be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // Behind the port.
    let inet = |[a, b, c, d]: [u8; 4]| address_of(libc::AF_INET as u16, &[0, 0, a, b, c, d]);
    let v4 = socket(libc::AF_INET)?;
    request.ifr_ifru.ifru_hwaddr = address_of(libc::ARPHRD_ETHER, &MAC);
    ask(v4, libc::SIOCSIFHWADDR, &mut request, "a MAC address")?;
    // Without ARP neighbours are known as soon as something is sent to them.
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_NOARP) as i16;
    ask(v4, libc::SIOCSIFFLAGS, &mut request, "up")?;
    request.ifr_ifru.ifru_addr = inet(address);
    ask(v4, libc::SIOCSIFADDR, &mut request, "an address")?;
    request.ifr_ifru.ifru_netmask = inet([255, 255, 255, 0]);
    ask(v4, libc::SIOCSIFNETMASK, &mut request, "a netmask")?;
    let mut own = [0; 16];
    own[..2].copy_from_slice(&network6.to_be_bytes());
    own[15] = 0xfe;
    let mut request = Address6 {
        address: own,
        prefix: 64,
        interface: interface_index(name) as i32,
    };
    let v6 = socket(libc::AF_INET6)?;
    ask(v6, libc::SIOCSIFADDR, &mut request, "an IPv6 address")
}

/// Says the functions of the kernel and of its BPF programs, "symbol ADDRESS NAME" a line, and
/// which kernel it is.
pub(super) fn say_symbols() -> Outcome<()> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    say(&format!("kernel {}", read("/proc/sys/kernel/osrelease")?));
    let mut last = 0;
    for line in read("/proc/kallsyms")?.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if matches!(kind, "t" | "T" | "w" | "W") {
            say(&format!("symbol {address} {name}\n"));
            last = u64::from_str_radix(address, 16).unwrap_or(0).max(last);
        }
    }
    say_map_areas(&read("/proc/vmallocinfo")?);
    // The last function ends where nothing more is loaded.
    say(&format!("symbol {:016x} end_of_code\n", last + CODE_MAX));
    Ok(())
}

/// Says where the memory of large maps is, "area ADDRESS BYTES NAME" a line. The kernel names the
/// function that took it.
fn say_map_areas(listed: &str) {
    for line in listed.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, bytes, by, ..] = words[..] else {
            continue;
        };
        let taker = by.split('+').next().unwrap_or_default();
        let (from, _) = range.split_once('-').unwrap_or_default();
        if taker.ends_with("_map_alloc") || taker.starts_with("prealloc_init") {
            let from = from.trim_start_matches("0x");
            say(&format!("area {from} {bytes} bpf_map_area\n"));
        }
    }
}

/// Longer than any program after translation.
const CODE_MAX: u64 = 1 << 20;
