//! What an executable's header says about how it is loaded.

/// What kind of file the kernel would be given.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program of this machine's kind with a dynamic loader, by path.
    Dynamic(String),
    /// A program of this machine's kind that no dynamic loader starts.
    Static,
    /// A program of another machine or word size.
    Foreign,
    /// A script: its interpreter, and the one argument that may follow it.
    Script(String, Option<String>),
    /// None of these.
    Unknown,
}

const PT_INTERP: u32 = 3;
const EM_X86_64: u16 = 62;
const HEADER: usize = 64;

/// Reads the kind from the start of a file; `bytes` should hold the headers (a few KiB).
pub fn kind(bytes: &[u8]) -> Kind {
    if let Some(line) = bytes.strip_prefix(b"#!") {
        return script(line);
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Kind::Unknown;
    }
    // Byte 4: 64-bit words. Byte 5: little endian.
    let ours = bytes.get(4) == Some(&2) && bytes.get(5) == Some(&1) && word16(bytes, 18) == Some(EM_X86_64);
    if !ours || bytes.len() < HEADER {
        return Kind::Foreign;
    }
    interpreter(bytes).map_or(Kind::Static, Kind::Dynamic)
}

/// Path of the dynamic loader: the PT_INTERP program header.
fn interpreter(bytes: &[u8]) -> Option<String> {
    let table = usize::try_from(word64(bytes, 32)?).ok()?;
    let size = usize::from(word16(bytes, 54)?);
    let count = usize::from(word16(bytes, 56)?);
    for index in 0..count {
        let header = table.checked_add(index.checked_mul(size)?)?;
        if word32(bytes, header)? != PT_INTERP {
            continue;
        }
        let offset = usize::try_from(word64(bytes, header.checked_add(8)?)?).ok()?;
        let length = usize::try_from(word64(bytes, header.checked_add(32)?)?).ok()?;
        let path = bytes.get(offset..offset.checked_add(length)?)?;
        let path = path.split(|byte| *byte == 0).next()?;
        return String::from_utf8(path.to_vec()).ok();
    }
    None
}

/// The kernel's reading of a `#!` line: an interpreter and everything after it as one argument.
fn script(line: &[u8]) -> Kind {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let line = line.trim();
    let (path, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    if path.is_empty() {
        return Kind::Unknown;
    }
    let rest = rest.trim();
    Kind::Script(path.to_owned(), (!rest.is_empty()).then(|| rest.to_owned()))
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The headers of a small program, with a loader if `path` is given.
    pub fn program(path: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&EM_X86_64.to_le_bytes());
        bytes[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_le_bytes());
        let kind = if path.is_some() { PT_INTERP } else { 1 };
        bytes[HEADER..HEADER + 4].copy_from_slice(&kind.to_le_bytes());
        let text = format!("{}\0", path.unwrap_or_default());
        let offset = bytes.len() as u64;
        bytes[HEADER + 8..HEADER + 16].copy_from_slice(&offset.to_le_bytes());
        bytes[HEADER + 32..HEADER + 40].copy_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn a_dynamic_program_names_its_loader() {
        let loader = "/lib64/ld-linux-x86-64.so.2";
        assert_eq!(kind(&program(Some(loader))), Kind::Dynamic(loader.to_owned()));
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        assert_eq!(kind(&program(None)), Kind::Static);
    }

    #[test]
    fn another_machine_is_foreign() {
        let mut bytes = program(None);
        bytes[18] = 183;
        assert_eq!(kind(&bytes), Kind::Foreign);
        let mut bytes = program(None);
        bytes[4] = 1;
        assert_eq!(kind(&bytes), Kind::Foreign);
    }

    #[test]
    fn scripts_are_read_as_the_kernel_reads_them() {
        let script = |path: &str, rest: Option<&str>| Kind::Script(path.to_owned(), rest.map(str::to_owned));
        assert_eq!(kind(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(kind(b"#! /usr/bin/env python3 -u\n"), script("/usr/bin/env", Some("python3 -u")));
        assert_eq!(kind(b"#!\n"), Kind::Unknown);
        assert_eq!(kind(b"plain text"), Kind::Unknown);
        assert_eq!(kind(b""), Kind::Unknown);
    }

    #[test]
    fn cut_headers_are_no_reason_to_fail() {
        let whole = program(Some("/lib64/ld-linux-x86-64.so.2"));
        for length in 0..whole.len() {
            let seen = kind(&whole[..length]);
            assert!(!matches!(&seen, Kind::Dynamic(path) if path.is_empty()), "{length}: {seen:?}");
        }
        let mut bytes = whole;
        bytes[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(kind(&bytes), Kind::Static);
    }

    #[test]
    fn this_test_program_is_dynamic() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        assert!(matches!(kind(&bytes), Kind::Dynamic(path) if path.contains("ld-linux")));
    }
}
