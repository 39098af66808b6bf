//! Where QEMU loaded a program and its libraries.

use std::fs;
use std::path::Path;

use fairlead_trace::references::Object;

use super::object_file::ObjectFile;

/// Libraries that are listed, at most.
const OBJECTS_MAX: usize = 256;

/// A line of `/proc/self/maps` that maps a file.
struct Mapping<'a> {
    start: u64,
    end: u64,
    offset: u64,
    is_executable: bool,
    path: &'a str,
}

fn mapping(line: &str) -> Option<Mapping<'_>> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(field)
    };
    let (start, end) = field()?.split_once('-')?;
    let is_executable = field()?.contains('x');
    let offset = u64::from_str_radix(field()?, 16).ok()?;
    field()?;
    field()?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset,
        is_executable,
        path: rest,
    })
}

/// The value of `name` in what the plugin said.
pub(super) fn value<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    said.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

/// The object of a file whose addresses are moved by `base`.
fn object(file: &ObjectFile, base: u64) -> Object {
    Object {
        path: file.path.display().to_string(),
        start: file.from.wrapping_add(base),
        size: file.to - file.from,
        base,
        build_id: file.build_id.clone(),
    }
}

/// The program and, from the map of QEMU's own memory, its libraries: the files that are mapped
/// without permission to execute, because QEMU translates them.
pub(super) fn objects(program: &ObjectFile, said: &str) -> Vec<Object> {
    let start = value(said, "start_code").and_then(|text| text.parse::<u64>().ok());
    let base = start.map_or(0, |start| start.wrapping_sub(program.text));
    let whole = object(program, base);
    let mappings: Vec<Mapping<'_>> = said.lines().filter_map(mapping).collect();
    let real = fs::canonicalize(&program.path).unwrap_or_else(|_| program.path.clone());
    // Addresses of the program are below those of QEMU by a constant.
    let of_program = mappings
        .iter()
        .find(|mapping| Path::new(mapping.path) == real && mapping.offset == 0);
    let shift = of_program.map_or(0, |mapping| {
        mapping.start.wrapping_sub(whole.start & !0xfff)
    });
    let program_start = of_program.map(|mapping| mapping.start);
    let mut all = vec![whole];
    for (at, first) in mappings.iter().enumerate() {
        let is_library = first.path.starts_with('/')
            && first.offset == 0
            && Some(first.start) != program_start
            && !is_of_the_emulator(&mappings[at..]);
        if !is_library || all.len() == OBJECTS_MAX {
            continue;
        }
        if let Ok(file) = ObjectFile::read(Path::new(first.path)) {
            let page = file.from & !0xfff;
            let base = first.start.wrapping_sub(shift).wrapping_sub(page);
            all.push(object(&file, base));
        }
    }
    all
}

/// Whether a run of mappings of one file has code that the machine itself executes.
fn is_of_the_emulator(mappings: &[Mapping<'_>]) -> bool {
    let mut end = mappings[0].start;
    mappings
        .iter()
        .take_while(|mapping| {
            let continues = mapping.path == mappings[0].path && mapping.start == end;
            end = mapping.end;
            continues
        })
        .any(|mapping| mapping.is_executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_values_are_read() {
        let line = "7f00-7f10 r-xp 00001000 08:01 42                         /lib/a b.so";
        let found = mapping(line).unwrap();
        assert_eq!(
            (found.start, found.end, found.offset),
            (0x7f00, 0x7f10, 0x1000)
        );
        assert_eq!((found.path, found.is_executable), ("/lib/a b.so", true));
        assert!(mapping("api 1").is_none() && mapping("").is_none());
        assert_eq!(value("isa x86_64\napi 1\n", "api"), Some("1"));
        assert_eq!(value("isa x86_64\napi 1\n", "start_code"), None);
    }

    #[test]
    fn code_of_the_emulator_is_told_by_its_permission() {
        let lines = [
            "1000-2000 r--p 00000000 08:01 1 /lib/c.so",
            "2000-3000 r-xp 00001000 08:01 1 /lib/c.so",
            "9000-a000 r--p 00000000 08:01 1 /lib/c.so",
            "a000-b000 r--p 00001000 08:01 1 /lib/c.so",
        ];
        let mappings: Vec<_> = lines.iter().filter_map(|line| mapping(line)).collect();
        assert!(is_of_the_emulator(&mappings));
        assert!(!is_of_the_emulator(&mappings[2..]));
    }
}
