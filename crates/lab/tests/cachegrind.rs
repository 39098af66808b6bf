//! The counts of cachegrind, all nine, for a static program and six geometries.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_cache::memory::{Geometry, Hierarchy};
use fairlead_lab::Silent;
use fairlead_lab::protocol::caches::count;
use fairlead_lab::protocol::tracer::{Marks, TraceSpec, trace};
use fairlead_trace::references::{Reader, Writer};

/// Sorts, copies and sums, without anything that depends on the processor: no library at all.
const PROGRAM: &str = r#"
typedef unsigned long u64;
static u64 numbers[6000];
static unsigned char text[40000], copy[40000];

static void sort(u64 *from, long first, long last) {
    if (first >= last) return;
    u64 pivot = from[(first + last) / 2];
    long low = first, high = last;
    while (low <= high) {
        while (from[low] < pivot) low++;
        while (from[high] > pivot) high--;
        if (low <= high) { u64 one = from[low]; from[low++] = from[high]; from[high--] = one; }
    }
    sort(from, first, high);
    sort(from, low, last);
}

/* The stack of the program itself, so that its addresses do not depend on who runs it. */
unsigned char stack[16384] __attribute__((aligned(4096)));
__asm__(".globl _start\n_start: lea stack+16384(%rip), %rsp\n call work\n");

void work(void) {
    u64 state = 12345, sum = 0;
    for (long at = 0; at < 6000; at++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        numbers[at] = state >> 20;
    }
    sort(numbers, 0, 5999);
    for (long at = 0; at < 40000; at++) text[at] = (unsigned char)numbers[at % 6000];
    /* Words that straddle lines, and modifications of memory. */
    for (long at = 1; at + 8 < 40000; at += 7) {
        u64 word;
        __builtin_memcpy(&word, text + at, 8);
        __builtin_memcpy(copy + at, &word, 8);
        (*(volatile u64 *)(copy + (at & ~7L)))++;
        sum += word;
    }
    numbers[0] = sum;
    __asm__ volatile("mov $60, %%eax; xor %%edi, %%edi; syscall" ::: "rax", "rdi", "memory");
    __builtin_unreachable();
}
"#;

const GEOMETRIES: [[&str; 3]; 6] = [
    ["32768,8,64", "32768,8,64", "1048576,16,64"],
    ["16384,1,32", "16384,1,32", "1048576,1,128"],
    ["8192,2,32", "8192,4,32", "65536,4,64"],
    ["1024,1,64", "2048,2,64", "16384,8,64"],
    ["32768,8,64", "49152,12,64", "2097152,16,64"],
    ["512,2,32", "512,1,32", "4096,2,32"],
];

fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|done| done.status.success())
}

fn geometry(text: &str) -> Geometry {
    let parts: Vec<u64> = text.split(',').map(|part| part.parse().unwrap()).collect();
    Geometry::new(parts[0], parts[1] as u32, parts[2] as u32).unwrap()
}

/// Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw.
fn cachegrind(program: &Path, caches: &[&str; 3], out: &Path) -> Vec<u64> {
    let done = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg(format!("--I1={}", caches[0]))
        .arg(format!("--D1={}", caches[1]))
        .arg(format!("--LL={}", caches[2]))
        .arg(program)
        .env_clear()
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = fs::read_to_string(out).unwrap();
    let summary = text
        .lines()
        .find_map(|line| line.strip_prefix("summary: "))
        .unwrap();
    summary
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect()
}

#[test]
fn all_nine_counts_are_those_of_cachegrind() {
    let test = "all_nine_counts_are_those_of_cachegrind";
    for (program, package) in [
        ("valgrind", "valgrind"),
        ("qemu-x86_64", "qemu-user"),
        ("cc", "gcc"),
    ] {
        if !has(program) || !cfg!(target_arch = "x86_64") {
            let why = format!("no {program}: apt-get install {package}");
            return fairlead_netns::trial::skip(test, &why);
        }
    }
    let folder = std::env::temp_dir().join(format!("fairlead-cachegrind-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| -> PathBuf { folder.join(name) };
    fs::write(path("p.c"), PROGRAM).unwrap();
    let compiled = Command::new("cc")
        .args([
            "-O1",
            "-static",
            "-no-pie",
            "-nostdlib",
            "-ffreestanding",
            "-fno-stack-protector",
        ])
        .args(["-mno-sse", "-o"])
        .args([path("p"), path("p.c")])
        .status()
        .unwrap();
    assert!(compiled.success());
    let spec = TraceSpec {
        program: path("p").into_os_string(),
        marks: Marks::Whole,
        ..TraceSpec::default()
    };
    let mut writer = Writer::new(BufWriter::new(File::create(path("p.refs")).unwrap())).unwrap();
    let outcome = trace(&spec, &Silent, &mut |events| {
        events.iter().for_each(|event| writer.push(*event).unwrap());
        Ok(())
    })
    .unwrap();
    assert!(outcome.trouble.is_none(), "{:?}", outcome.trouble);
    writer.finish(outcome.header).unwrap();
    for caches in &GEOMETRIES {
        let file = File::open(path("p.refs")).unwrap();
        let mut reader = Reader::new("p.refs", file).unwrap();
        let [i1, d1, ll] = caches.map(geometry);
        let counts = count(&mut reader, &mut Hierarchy::new(i1, d1, ll), &Silent).unwrap();
        let ours = [
            counts.i1.references,
            counts.i1.misses,
            counts.ll.instruction_misses,
            counts.d1.reads,
            counts.d1.read_misses,
            counts.ll.read_misses,
            counts.d1.writes,
            counts.d1.write_misses,
            counts.ll.write_misses,
        ];
        assert_eq!(
            ours.to_vec(),
            cachegrind(&path("p"), caches, &path("out")),
            "{caches:?}"
        );
        assert!(ours[0] > 500_000);
    }
    fs::remove_dir_all(folder).unwrap();
}
