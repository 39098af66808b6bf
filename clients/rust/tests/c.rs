//! The header for C against a carrier that is written here.

use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use fairlead_handoff::message::{Happening, Kind};
use fairlead_handoff::{Body, Cid, Command as Order, Message, Op, Refusal, Side};
use fairlead_os_tcp::pass;

const PROGRAM: &str = r#"
#include <stdio.h>
#include "fairlead_handoff.h"

static void on_event(void *context, const struct fairlead_message *message)
{
	(void)context;
	printf("event %u %d %d %llu\n", message->cid, message->op, message->flags,
	       (unsigned long long)message->arg);
}

int main(int count, char **arguments)
{
	int link = fairlead_connect(arguments[count - 1]), pair[2], back[2];
	uint32_t number = 0;

	if (link < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 1;
	printf("refused %d\n", fairlead_adopt(link, pair[0], pair[1], &number, on_event, NULL));
	printf("adopted %d ", fairlead_adopt(link, pair[0], pair[1], &number, on_event, NULL));
	printf("%u\n", number);
	printf("back %d\n", fairlead_give_back(link, number, 300, back, on_event, NULL));
	if (write(back[0], "from C", 6) != 6)
		return 1;
	printf("gone %d\n", fairlead_give_back(link, number, 300, back, on_event, NULL));
	return 0;
}
"#;

/// The next message, and its descriptors.
fn next(link: &OwnedFd) -> (Message, Vec<OwnedFd>) {
    assert!(pass::wait_for(link.as_fd(), Duration::from_secs(10)).unwrap());
    let mut bytes = [0; 16];
    let (length, descriptors) = pass::receive(link.as_fd(), &mut bytes).unwrap().unwrap();
    assert_eq!(length, 16);
    (Message::decode(&bytes).unwrap(), descriptors)
}

fn send(link: &OwnedFd, message: Message, descriptors: &[&dyn AsFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(|one| one.as_fd()).collect();
    pass::send(link.as_fd(), &message.encode(), &descriptors).unwrap();
}

#[test]
fn the_header_for_c_speaks_the_same_messages() {
    let folder = std::env::temp_dir().join(format!("fairlead-client-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("client.c"), folder.join("client"));
    std::fs::write(&source, PROGRAM).unwrap();
    let header = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../c");
    let mut compile = Command::new("cc");
    compile.args([
        "-std=c99",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        header,
    ]);
    let Ok(compiled) = compile.arg("-o").arg(&program).arg(&source).status() else {
        let name = "the_header_for_c_speaks_the_same_messages";
        return fairlead_netns::trial::skip(name, "no C compiler: apt-get install gcc");
    };
    assert!(compiled.success());

    let path = folder.join("adopt");
    let listener = pass::listen(&path).unwrap();
    let mut running = Command::new(&program);
    running.arg(&path).stdout(std::process::Stdio::piped());
    let mut running = running.spawn().unwrap();
    assert!(pass::wait_for(listener.as_fd(), Duration::from_secs(10)).unwrap());
    let (link, peer) = pass::accept(listener.as_fd()).unwrap().unwrap();
    assert_eq!(peer.process, running.id() as i32);

    let number = Cid::new(0x1234, 7);
    let (message, descriptors) = next(&link);
    let (kind, unwritten) = (Kind::Pair, [0; 2]);
    assert_eq!(
        message,
        Message::command(Cid(0), Order::Handoff { kind, unwritten })
    );
    assert_eq!(descriptors.len(), 2);
    send(
        &link,
        Message::refused(Cid(0), Op::Handoff, Refusal::QueueNotEmpty),
        &[],
    );
    let (message, _) = next(&link);
    assert!(matches!(message.body, Body::Command(Order::Handoff { .. })));
    // Something that nobody asked for comes first.
    let ended = Order::OsControl {
        happening: Happening::Reset,
        from: Side::Server,
        bytes: 5_000_000_000,
    };
    send(&link, Message::command(Cid(99), ended), &[]);
    send(
        &link,
        Message::done(Cid(0), Op::Handoff, number.0.into()),
        &[],
    );
    let (message, _) = next(&link);
    assert_eq!(
        message,
        Message::command(number, Order::Restore { wait_ms: 300 })
    );
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    send(
        &link,
        Message::done(number, Op::Restore, 0),
        &[&ours, &ours],
    );
    let mut word = [0; 6];
    theirs.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"from C");
    next(&link);
    send(
        &link,
        Message::refused(number, Op::Restore, Refusal::Gone),
        &[],
    );

    let mut said = String::new();
    running
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(running.wait().unwrap().success());
    let expected = "refused 9\nevent 99 10 18 5000000000\nadopted 0 117445172\nback 0\ngone 3\n";
    assert_eq!(said, expected);
    std::fs::remove_dir_all(&folder).unwrap();
}
