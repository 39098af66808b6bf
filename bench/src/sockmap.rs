//! A proxy whose bytes stay in the kernel by socket maps (`BPF_MAP_TYPE_SOCKMAP`, a stream
//! verdict): the rival that hands nothing off. It opens connections and learns of ends itself.
//!
//! It is set up as it was seen to be fastest on Linux 6.18: with a parser, with wide windows, and
//! with Nagle's algorithm, because the kernel sends each piece of a page by itself.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use aya::Ebpf;
use aya::maps::{HashMap, MapData, SockMap};
use aya::programs::SkSkb;
use clap::Args;
use socket2::{Domain, SockRef, Socket, Type};

static PROGRAM: &str = include_str!("sockmap.bpf.c");

/// A proxy by socket maps, for `fairlead-bench pairs`.
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// Where it listens.
    listen: String,
    /// Where it connects to.
    server: String,
}

struct Maps {
    sockets: SockMap<MapData>,
    others: HashMap<MapData, u64, u32>,
    /// Places that no socket has.
    free: Vec<u32>,
}

impl Proxy {
    pub(crate) fn run(&self) -> Result<()> {
        fairlead_netns::raise_open_files(1 << 20)?;
        let folder = std::env::temp_dir().join(format!("fairlead-sockmap-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let object = compiled(&folder);
        let _ = std::fs::remove_dir_all(&folder);
        let mut ebpf = Ebpf::load(&object?)?;
        let taken = |ebpf: &mut Ebpf, name| ebpf.take_map(name).context("its maps");
        let sockets = SockMap::try_from(taken(&mut ebpf, "sockets")?)?;
        let others = HashMap::try_from(taken(&mut ebpf, "others")?)?;
        for name in ["as_it_comes", "to_the_other"] {
            let program = ebpf.program_mut(name).context("a program")?;
            let program: &mut SkSkb = program.try_into()?;
            program.load()?;
            program.attach(sockets.fd())?;
        }
        let maps = Arc::new(Mutex::new(Maps {
            sockets,
            others,
            free: (0..65_536).collect(),
        }));
        let listener = wide(&self.listen)?;
        let at: SocketAddr = self.listen.parse()?;
        listener.set_reuse_address(true)?;
        listener.bind(&at.into())?;
        listener.listen(4_096)?;
        let listener = TcpListener::from(listener);
        loop {
            let (client, _) = listener.accept()?;
            let (maps, server) = (Arc::clone(&maps), self.server.clone());
            std::thread::spawn(move || {
                if let Err(error) = serve(&maps, &client, &server) {
                    eprintln!("{error:#}");
                }
            });
        }
    }
}

/// A socket whose window is wide from the start: such sockets do not widen it by themselves.
fn wide(address: &str) -> Result<Socket> {
    let address: SocketAddr = address.parse()?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_recv_buffer_size(4 << 20)?;
    Ok(socket)
}

/// The program as an object file, by the clang that builds the others.
fn compiled(folder: &Path) -> Result<Vec<u8>> {
    let (source, object) = (folder.join("sockmap.bpf.c"), folder.join("sockmap.o"));
    std::fs::write(&source, PROGRAM)?;
    let clang = std::env::var("FAIRLEAD_CLANG").unwrap_or_else(|_| "clang".to_owned());
    let mut command = Command::new(clang);
    command.args(["-O2", "-g", "-target", "bpf", "-c", "-idirafter"]);
    command.arg(format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH));
    let output = command.arg(&source).arg("-o").arg(&object).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "clang: {said}");
    Ok(std::fs::read(object)?)
}

fn serve(maps: &Mutex<Maps>, client: &TcpStream, server: &str) -> Result<()> {
    let to = wide(server)?;
    to.connect(&server.parse::<SocketAddr>()?.into())?;
    let server = TcpStream::from(to);
    let both = [client, &server];
    let cookies = [
        SockRef::from(client).cookie()?,
        SockRef::from(&server).cookie()?,
    ];
    let places = {
        let mut maps = maps.lock().expect("no thread panics");
        let places = [maps.free.pop(), maps.free.pop()];
        let [Some(first), Some(second)] = places else {
            anyhow::bail!("no place");
        };
        maps.others.insert(cookies[0], second, 0)?;
        maps.others.insert(cookies[1], first, 0)?;
        maps.sockets.set(first, client, 0)?;
        maps.sockets.set(second, &server, 0)?;
        [first, second]
    };
    let ended = until_an_end(both);
    let mut maps = maps.lock().expect("no thread panics");
    for (place, cookie) in places.into_iter().zip(cookies) {
        let _ = maps.sockets.clear_index(&place);
        let _ = maps.others.remove(&cookie);
        maps.free.push(place);
    }
    ended
}

/// Passes on what had come before the sockets were in the map, and waits until one end closes.
fn until_an_end([client, server]: [&TcpStream; 2]) -> Result<()> {
    let pass_on = |mut from: &TcpStream, to: &TcpStream| {
        let copied = std::io::copy(&mut from, &mut &*to);
        // The other direction ends, too.
        let _ = (
            client.shutdown(Shutdown::Both),
            server.shutdown(Shutdown::Both),
        );
        copied
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pass_on(server, client));
        pass_on(client, server)
    })?;
    Ok(())
}
