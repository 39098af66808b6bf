//! The tracer on programs with known counts. Without QEMU these tests are skipped, and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_lab::protocol::packets::{Counter, KindCounts};
use fairlead_lab::protocol::tracer::{MARKS_C, Marks, Outcome, TraceSpec, trace};
use fairlead_lab::{LabError, Silent};
use fairlead_trace::references::{Event, Reader};

/// A folder for programs, removed on drop.
struct Folder(PathBuf);

impl Folder {
    /// `None`, with a line in the list of skipped tests, where programs cannot be traced.
    fn new(test: &str) -> Option<Self> {
        let has = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !has("qemu-x86_64") || !cfg!(target_arch = "x86_64") {
            fairlead_netns::trial::skip(test, "no qemu-x86_64: apt-get install qemu-user");
            return None;
        }
        let name = format!("fairlead-tracer-test-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Some(Self(path))
    }

    fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        self.compile_by("cc", name, source, options)
    }

    fn compile_by(&self, cc: &str, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let (from, to) = (self.0.join(name), self.0.join(format!("{name}.program")));
        std::fs::write(&from, source).unwrap();
        std::fs::write(self.0.join("fairlead_packet.h"), MARKS_C).unwrap();
        let mut cc = Command::new(cc);
        cc.args(options).arg("-o").arg(&to).arg(&from);
        let output = cc.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        to
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn traced(spec: &TraceSpec) -> Result<(Outcome, Vec<Event>), LabError> {
    let mut all = Vec::new();
    let outcome = trace(spec, &Silent, &mut |events| {
        all.extend_from_slice(events);
        Ok(())
    })?;
    Ok((outcome, all))
}

fn spec(program: &Path, arguments: &[&str]) -> TraceSpec {
    TraceSpec {
        program: program.into(),
        arguments: arguments.iter().map(Into::into).collect(),
        is_quiet: true,
        ..TraceSpec::default()
    }
}

fn counted(outcome: &Outcome, events: &[Event]) -> Vec<KindCounts> {
    let mut counter = Counter::new(outcome.header.whole_run);
    counter.add(events).unwrap();
    counter.finish(&outcome.header)
}

const ASSEMBLY: &str = r#"
        .globl _start, work, done, edge
        .text
_start: call work
done:   mov $60, %eax
        xor %edi, %edi
        syscall
        .balign 4096
work:   lea from(%rip), %rsi
        lea to(%rip), %rdi
        mov $100, %ecx
        rep movsb                       # one instruction, 100 reads and 100 writes
        movdqu from(%rip), %xmm0        # one read of 16 bytes
        movdqu %xmm0, edge - 8(%rip)    # one write of 16 bytes, over the end of a page
        mov edge - 4(%rip), %rax        # one read of 8 bytes, over the end of a page
        mov $5, %ecx
1:      dec %ecx
        jnz 1b
        ret
        .bss
        .balign 4096
from:   .skip 4096
to:     .skip 4096
        .skip 4096
edge:   .skip 4096
"#;

#[test]
fn counts_of_assembly_are_exact() {
    let Some(folder) = Folder::new("counts_of_assembly_are_exact") else {
        return;
    };
    let program = folder.compile("known.S", ASSEMBLY, &["-static", "-nostdlib"]);
    let symbols = |begin: &str, end: &str| TraceSpec {
        marks: Marks::Symbols {
            begin: begin.to_owned(),
            end: end.to_owned(),
        },
        ..spec(&program, &[])
    };
    let (outcome, events) = traced(&symbols("work", "done")).unwrap();
    assert_eq!(outcome.trouble, None);
    let kinds = counted(&outcome, &events);
    let [work] = &kinds[..] else {
        panic!("{kinds:?}");
    };
    assert_eq!((work.name.as_str(), work.packets), ("work", 1));
    assert_eq!(work.instructions.median, 8 + 5 * 2 + 1);
    assert_eq!(work.branches.unwrap().median, 5 + 1);
    assert_eq!(work.reads.median, 100 + 1 + 1 + 1);
    assert_eq!(work.writes.median, 100 + 1);
    // 54 bytes of code from the start of a page.
    let lines = (
        work.instruction_lines_32.median,
        work.instruction_lines_64.median,
    );
    assert_eq!(lines, (2, 1));
    // 100 bytes twice, both sides of a page's end, and the stack.
    let lines = (work.data_lines_32.median, work.data_lines_64.median);
    assert_eq!(lines, (4 + 4 + 2 + 1, 2 + 2 + 2 + 1));
    let of_16 = |event: &&Event| {
        matches!(
            event,
            Event::Read { size: 16, .. } | Event::Write { size: 16, .. }
        )
    };
    assert_eq!(events.iter().filter(of_16).count(), 2);
    assert_eq!(outcome.header.objects[0].base, 0);

    // The same by addresses, and in a second run.
    let address = |event: Event| match event {
        Event::Instruction { address, .. } => format!("{address:#x}"),
        other => panic!("{other:?}"),
    };
    let begin = address(events[1]);
    let (_, again) = traced(&symbols(&begin, "done")).unwrap();
    assert_eq!(again, events);

    let refused = |begin: &str, end: &str| {
        let error = traced(&symbols(begin, end)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    assert!(refused("nothing", "done").contains("--begin nothing: "));
    assert!(refused("0x12", "done").contains("an address of the program's file"));
    // What never comes, and what comes out of order.
    assert!(refused("edge", "edge").contains("no packet has begun"));
    assert!(refused("done", "work").contains("not begun, after 0 packets"));
}

const MARKED: &str = r#"
#define FAIRLEAD_PACKET_NAMES "first\nsecond"
#include "fairlead_packet.h"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static volatile int number;
static void *thread(void *unused) { number++; return unused; }
int main(int count, char **words) {
    char how = count > 1 ? words[1][0] : ' ';
    pthread_t other;
    for (int at = 0; at < 10; at++) {
        fairlead_packet_begin(0);
        number++;
        fairlead_packet_end(0);
        number++;
        fairlead_packet_begin(1);
        for (int more = 0; more < 50; more++) number++;
        fairlead_packet_end(1);
    }
    if (how == 'k') abort();
    if (how == 'c') return 3;
    if (how == 'f' && fork() == 0) { sleep(30); return 0; }
    if (how == 't') { pthread_create(&other, 0, thread, 0); pthread_join(other, 0); }
    if (how == 'o' || how == 'n') fairlead_packet_begin(0);
    if (how == 'n') fairlead_packet_begin(0);
    return 0;
}
"#;

#[test]
fn programs_that_mark_their_packets_are_traced() {
    let Some(folder) = Folder::new("programs_that_mark_their_packets_are_traced") else {
        return;
    };
    for options in [
        &["-O1", "-static", "-pthread"][..],
        &["-O1", "-pie", "-fPIE", "-pthread"],
    ] {
        let program = folder.compile("marked.c", MARKED, options);
        let (outcome, events) = traced(&spec(&program, &[])).unwrap();
        assert_eq!(outcome.trouble, None, "{options:?}");
        let kinds = counted(&outcome, &events);
        let seen: Vec<_> = kinds
            .iter()
            .map(|kind| (kind.name.as_str(), kind.packets))
            .collect();
        assert_eq!(seen, [("first", 10), ("second", 10)]);
        // Fifty additions to memory, each a read and a write; and the call of the mark.
        assert_eq!(kinds[1].reads.median - kinds[0].reads.median, 49);
        assert_eq!(kinds[1].writes.median - kinds[0].writes.median, 49);
        assert!(kinds[0].instructions.least == kinds[0].instructions.most);
        // All code is of the program, whose place is known.
        let header = &outcome.header;
        let of_program = |event: &Event| match *event {
            Event::Instruction { address, .. } => header
                .object_at(address)
                .is_some_and(|object| object.path == header.objects[0].path),
            _ => true,
        };
        assert!(events.iter().all(of_program), "{header:?}");
    }
}

#[test]
fn programs_for_another_processor_are_traced() {
    const TEST: &str = "programs_for_another_processor_are_traced";
    let Some(folder) = Folder::new(TEST) else {
        return;
    };
    for (program, package) in [
        ("qemu-aarch64", "qemu-user"),
        ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ] {
        if Command::new(program).arg("--version").output().is_err() {
            let why = format!("no {program}: apt-get install {package}");
            return fairlead_netns::trial::skip(TEST, &why);
        }
    }
    let options = ["-O1", "-static", "-pthread"];
    let program = folder.compile_by("aarch64-linux-gnu-gcc", "marked.c", MARKED, &options);
    let (outcome, events) = traced(&spec(&program, &[])).unwrap();
    assert_eq!(outcome.trouble.as_deref(), None);
    assert_eq!(outcome.header.isa, "aarch64");
    let kinds = counted(&outcome, &events);
    assert_eq!((kinds[0].packets, kinds[1].packets), (10, 10));
    assert_eq!(kinds[1].reads.median - kinds[0].reads.median, 49);
    assert_eq!(kinds[1].writes.median - kinds[0].writes.median, 49);
}

#[test]
fn programs_that_fail_are_told() {
    let Some(folder) = Folder::new("programs_that_fail_are_told") else {
        return;
    };
    let program = folder.compile("marked.c", MARKED, &["-O1", "-static", "-pthread"]);
    let trouble = |how: &str| {
        traced(&spec(&program, &[how]))
            .unwrap()
            .0
            .trouble
            .unwrap_or_default()
    };
    // What the plugin had not yet written is lost with it: here, all of it.
    let killed = traced(&spec(&program, &["killed"])).unwrap_err();
    assert!(killed.to_string().contains("it was killed"), "{killed}");
    assert!(trouble("code").contains("exit code 3"));
    assert!(trouble("open").contains("its last packet, of kind 0, has no end"));
    // A child that lives on does not keep the tracer waiting.
    let begun = std::time::Instant::now();
    assert_eq!(trouble("fork"), "");
    assert!(begun.elapsed().as_secs() < 25, "it waited for the child");
    let refused = |how: &str| {
        let error = traced(&spec(&program, &[how])).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    assert!(refused("nested").contains("a packet begins inside packet 21"));
    assert!(refused("threads").contains("--thread"));
    let one = TraceSpec {
        thread: Some(0),
        ..spec(&program, &["threads"])
    };
    assert_eq!(traced(&one).unwrap().0.trouble, None);
    let script = folder.0.join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    let error = traced(&spec(&script, &[])).unwrap_err();
    assert!(error.to_string().contains("no ELF program"), "{error}");
}

#[test]
fn a_pipe_is_written_and_stays_a_pipe() {
    let Some(folder) = Folder::new("a_pipe_is_written_and_stays_a_pipe") else {
        return;
    };
    let program = folder.compile("marked.c", MARKED, &["-O1", "-static", "-pthread"]);
    let pipe = folder.0.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let read = {
        let pipe = pipe.clone();
        std::thread::spawn(move || std::fs::read(pipe).unwrap())
    };
    let words = ["lab", "--quiet", "protocol", "run", "-o"].map(std::ffi::OsString::from);
    let rest = [pipe.clone().into(), "--".into(), program.into()];
    let code = fairlead_lab::cli::main(words.into_iter().chain(rest), &Silent);
    assert_eq!(
        format!("{code:?}"),
        format!("{:?}", std::process::ExitCode::SUCCESS)
    );
    let through_the_pipe = std::io::Cursor::new(read.join().unwrap());
    let mut reader = Reader::new("pipe", through_the_pipe).unwrap();
    let (mut events, mut count) = (Vec::new(), 0);
    while reader.next_chunk(&mut events).unwrap() {
        count += events.len();
    }
    assert!(count > 0);
    let kind = std::fs::metadata(&pipe).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
}
