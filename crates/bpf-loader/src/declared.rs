//! Reads in the sources of the kernel program whether each map is pinned. The build script uses it,
//! and its tests run with the crate's.

/// Ways to define a map in `bpf/include/fairlead/map.h`, and their names in [`crate::maps`].
const DECLARATIONS: [(&str, &str); 3] = [
    ("FL_MAP_REQUIRED", "Required"),
    ("FL_MAP_OPTIONAL", "Optional"),
    ("FL_MAP_PRIVATE", "Private"),
];

/// The maps that a source file defines, each with its declaration.
///
/// # Errors
/// For a map without one.
pub(crate) fn maps(source: &str) -> Result<Vec<(&str, &'static str)>, String> {
    if let Some(line) = source.lines().find(|line| line.contains("\".maps\"")) {
        return Err(format!(
            "`{}`: a map says with FL_MAP_REQUIRED, FL_MAP_OPTIONAL or FL_MAP_PRIVATE whether it \
             is pinned (bpf/include/fairlead/map.h)",
            line.trim()
        ));
    }
    let mut maps = Vec::new();
    for line in source.lines() {
        for (word, pinning) in DECLARATIONS {
            let Some(before) = line.trim().strip_suffix(&format!("{word};")) else {
                continue;
            };
            let name = before.trim_start_matches('}').trim();
            if name.is_empty() || !before.starts_with('}') {
                return Err(format!("`{}`: write `}} name {word};`", line.trim()));
            }
            maps.push((name, pinning));
        }
    }
    Ok(maps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_map_is_read_with_its_declaration() {
        let source = "struct {\n} fl_a FL_MAP_REQUIRED;\n\
                      struct {\n} fl_b FL_MAP_PRIVATE;\n} fl_c FL_MAP_OPTIONAL;\n} other;\n";
        let read = maps(source).unwrap();
        let expected = [
            ("fl_a", "Required"),
            ("fl_b", "Private"),
            ("fl_c", "Optional"),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn a_map_without_a_declaration_is_refused() {
        let bare = maps("struct {\n} fl_a SEC(\".maps\");\n").unwrap_err();
        assert!(bare.contains("fl_a") && bare.contains("FL_MAP_"), "{bare}");
        let split = maps("}\nfl_a FL_MAP_PRIVATE;\n").unwrap_err();
        assert!(split.contains("write `} name"), "{split}");
    }
}
