//! The first file system of a virtual machine: an archive (cpio, "newc") with one program.

/// Number of the console's device.
const CONSOLE: (u32, u32) = (5, 1);
const FOLDER: u32 = 0o40_755;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const DEVICE: u32 = 0o20_600;

/// An archive with this program as `/init`, and other files in the root.
pub(super) fn archive(program: &[u8], files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::with_capacity(program.len() + 1024);
    add(&mut archive, "dev", FOLDER, (0, 0), &[]);
    add(&mut archive, "dev/console", DEVICE, CONSOLE, &[]);
    add(&mut archive, "init", PROGRAM, (0, 0), program);
    for (name, contents) in files {
        add(&mut archive, name, FILE, (0, 0), contents);
    }
    add(&mut archive, "TRAILER!!!", 0, (0, 0), &[]);
    archive
}

fn add(archive: &mut Vec<u8>, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
    let (name_bytes, bytes) = (name.len() as u32 + 1, contents.len() as u32);
    // Inode, mode, owner, group, links, time, bytes, device of the file, device, name, checksum.
    let fields = [
        0, mode, 0, 0, 1, 0, bytes, 0, 0, device.0, device.1, name_bytes, 0,
    ];
    archive.extend_from_slice(b"070701");
    for field in fields {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(contents);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_where_its_head_says() {
        let archive = archive(b"\x7fELF!", &[("data".to_owned(), vec![1; 3])]);
        let at = archive
            .windows(5)
            .position(|part| part == b"\x7fELF!")
            .unwrap();
        let head = &archive[at - 116..at];
        let text = String::from_utf8_lossy(head).into_owned();
        assert!(
            at % 4 == 0 && text.starts_with("070701") && text.ends_with("init\0\0"),
            "{text:?}"
        );
        assert_eq!(&text[54..62], "00000005");
        assert!(archive.len().is_multiple_of(4));
    }
}
