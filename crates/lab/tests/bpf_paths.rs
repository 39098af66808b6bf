//! What the kernel program does for a packet, traced in a virtual machine. Without QEMU, a kernel
//! or its module these tests are skipped, and say so. They boot kernels, so they are among the
//! long ones.

mod machine;

use std::path::Path;
use std::process::Command;

use fairlead_lab::Silent;
use fairlead_lab::protocol::bpf_paths::{PathCounts, count, spec, traced};
use fairlead_lab::protocol::budget::{Budgets, KernelBudgets, Verdict};
use fairlead_netns::trial::skip;

use machine::kernel;

const ROUNDS: u32 = 20;

#[test]
fn the_kernel_program_costs_what_it_may() {
    const NAME: &str = "the_kernel_program_costs_what_it_may";
    let Some(kernel) = kernel(NAME) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new(root.join("scripts/stacks"))
        .arg("--kernel")
        .output();
    let built = built.unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let spec = match spec(&kernel, ROUNDS) {
        Ok(spec) => spec,
        Err(error) => return skip(NAME, &error.to_string()),
    };
    let first = traced(&spec, &Silent).unwrap();
    let second = traced(&spec, &Silent).unwrap();
    assert!(first == second, "two boots differ");
    let (header, counts) = count(&first).unwrap();
    let of = |name: &str| counts.iter().find(|one| one.name == name).unwrap();
    // 4 instructions of the translator, 2 of the program, 50 rounds of 4, 2 to return.
    let counting = of("loop of 50 rounds");
    assert_eq!((counting.own.least, counting.own.most), (208, 208));
    assert_eq!((counting.helpers.most, counting.map_lines.most), (0, 0));
    assert_eq!(counts.len(), 17);
    for one in counts.iter().filter(|one| one.name != counting.name) {
        plausible(one);
    }
    for mode in ["tc", "xdp"] {
        for family in ["IPv4", "IPv6"] {
            let own = |kind: &str| of(&format!("{mode} {family} {kind}")).own.median;
            // The checksum is corrected, not computed; an answer is more work than a translation.
            assert!(own("full segment") < own("spliced ACK") + 50);
            assert!(own("SYN") > own("client's FIN"));
        }
    }
    let budgets = Budgets::read(&root.join("bench/budgets.toml")).unwrap();
    let budgets = budgets.kernel.expect("budgets of the kernel program");
    match budgets.compare(&KernelBudgets::of(&spec, &header, &counts)) {
        Verdict::Compared(differences) => {
            let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
            let lines = lines.join("\n");
            assert!(
                lines.is_empty(),
                "{lines}\nIf that is meant: fairlead lab protocol budget update --kernel FILE"
            );
        }
        Verdict::OtherTools { budgets, here } => skip(
            NAME,
            &format!(
                "the budgets are of {}, here: {}",
                budgets.join(", "),
                here.join(", ")
            ),
        ),
    }
}

#[track_caller]
fn plausible(one: &PathCounts) {
    assert_eq!(one.frames, u64::from(ROUNDS), "{one:?}");
    assert!((1_000..5_000).contains(&one.own.median), "{one:?}");
    assert!((10..3_000).contains(&one.helpers.median), "{one:?}");
    assert!(one.map_lines.median > 0, "{one:?}");
}
