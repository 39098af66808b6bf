//! The kernel's counters in Rust, from their table in `bpf/include/fairlead/counters.h`.

/// Reads the table's lines, `COUNTER(NAME, "metric", "help") \`, and writes the struct
/// that holds them, in the order of their places in the map.
pub(crate) fn in_rust(header: &str) -> String {
    let mut fields = String::new();
    let joined = header.replace("\\\n", " ");
    let table = joined
        .lines()
        .find_map(|line| line.strip_prefix("#define FL_COUNTERS(COUNTER)"))
        .expect("counters.h has the table FL_COUNTERS(COUNTER)");
    for line in table.split("COUNTER(").skip(1) {
        // Strings stand at odd places; a help text may be several, one after the other.
        let parts: Vec<&str> = line.split('"').collect();
        let [name, metric, comma, help @ .., end] = &parts[..] else {
            panic!("counters.h: COUNTER(NAME, \"metric\", \"help\"), not COUNTER({line}");
        };
        let name = name.trim().trim_end_matches(',').trim();
        assert_eq!((comma.trim(), end.trim()), (",", ")"), "counters.h: {name}");
        let (text, between): (Vec<_>, Vec<_>) =
            help.chunks(2).map(|pair| (pair[0], pair.get(1))).unzip();
        let joined = between.iter().flatten().all(|gap| gap.trim().is_empty());
        assert!(joined, "counters.h: {name} has more than a help text");
        let help = text.concat();
        let field = name.to_lowercase();
        fields += &format!("        Counter {field}: {metric:?}, {help:?};\n");
    }
    format!(
        "fairlead_base::counters! {{\n    \
         /// Counters of the kernel program, from `bpf/include/fairlead/counters.h`.\n    \
         pub struct KernelCounters {{\n{fields}    }}\n}}\n"
    )
}
