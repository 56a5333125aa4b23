//! Whether a program can be run under the preload at all.

use crate::elf::{Kind, kind};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Program headers and the loader's path lie in the first page of every usual program.
const HEAD: u64 = 64 * 1024;
/// As many interpreters of interpreters as the kernel follows.
const DEPTH: usize = 5;

/// Finds a program as a shell would: a path as it is, a name in `PATH`.
pub fn find(name: &OsStr, path: &OsStr) -> Result<PathBuf, String> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    for folder in std::env::split_paths(path) {
        let candidate = folder.join(name);
        if is_executable(&candidate) {
            return Ok(candidate);
        }
    }
    Err(format!("{}: not found in PATH", name.to_string_lossy()))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, libc::X_OK)
}

fn access(path: &Path, mode: i32) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` is a string that ends in NUL and outlives the call.
    unsafe { libc::access(path.as_ptr(), mode) == 0 }
}

/// Refuses, in one line, what the dynamic loader would start without us.
pub fn check(program: &Path, search: &OsStr) -> Result<(), String> {
    check_within(program, search, DEPTH)
}

fn check_within(program: &Path, search: &OsStr, depth: usize) -> Result<(), String> {
    let mut program = program.to_path_buf();
    for left in (0..depth).rev() {
        let shown = program.display();
        privileged(&program)?;
        let argument = match kind(&head(&program)?) {
            Kind::Dynamic(loader) if loader.contains("musl") => {
                return Err(format!(
                    "{shown} is linked against musl ({loader}): its loader cannot load a library for glibc"
                ));
            }
            Kind::Dynamic(loader) => {
                log::debug!("{shown} is started by {loader}");
                return Ok(());
            }
            Kind::Static => {
                return Err(format!("{shown} is statically linked: no loader reads LD_PRELOAD for it"));
            }
            Kind::Foreign => {
                return Err(format!(
                    "{shown} is a program for another machine: only 64-bit x86 is supported"
                ));
            }
            Kind::Unknown => return Err(format!("{shown} is neither a program nor a script with a #! line")),
            Kind::Script(interpreter, argument) => {
                log::debug!("{shown} is a script of {interpreter}");
                program = PathBuf::from(interpreter);
                argument
            }
        };
        // `env` replaces itself by the program it names: that one matters as well.
        if program.file_name() == Some(OsStr::new("env")) {
            check_env(&program, argument.as_deref(), search, left)?;
        }
    }
    Err(format!("{}: more than {DEPTH} interpreters call each other", program.display()))
}

fn check_env(env: &Path, argument: Option<&str>, search: &OsStr, depth: usize) -> Result<(), String> {
    let mut words = argument.unwrap_or_default().split_whitespace();
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='));
    match name {
        Some(name) if Path::new(name) != env => check_within(&find(OsStr::new(name), search)?, search, depth),
        _ => Ok(()),
    }
}

fn head(program: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(program).map_err(|error| format!("{}: {error}", program.display()))?;
    file.take(HEAD).read_to_end(&mut bytes).map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(bytes)
}

/// Programs that start with other rights than ours: the loader ignores LD_PRELOAD for them.
fn privileged(program: &Path) -> Result<(), String> {
    let facts = program.metadata().map_err(|error| format!("{}: {error}", program.display()))?;
    // SAFETY: these calls only return numbers.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let setuid = facts.mode() & libc::S_ISUID != 0 && facts.uid() != user;
    let setgid = facts.mode() & libc::S_ISGID != 0 && facts.gid() != group;
    let shown = program.display();
    if setuid || setgid {
        return Err(format!("{shown} is setuid or setgid: the loader ignores LD_PRELOAD for it"));
    }
    if user != 0 && has_capabilities(program) {
        return Err(format!("{shown} has file capabilities: the loader ignores LD_PRELOAD for it"));
    }
    Ok(())
}

fn has_capabilities(program: &Path) -> bool {
    let Ok(path) = CString::new(program.as_os_str().as_bytes()) else { return false };
    // SAFETY: both names end in NUL; a length of 0 asks for the size and writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vgmem-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn write(path: &Path, bytes: &[u8], mode: u32) {
        std::fs::write(path, bytes).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        let folder = folder("find");
        write(&folder.join("plain"), b"", 0o644);
        write(&folder.join("tool"), b"", 0o755);
        assert_eq!(find(OsStr::new("tool"), folder.as_os_str()).unwrap(), folder.join("tool"));
        assert!(find(OsStr::new("plain"), folder.as_os_str()).is_err());
        assert_eq!(find(OsStr::new("./x"), OsStr::new("")).unwrap(), PathBuf::from("./x"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_refusal_says_why() {
        let folder = folder("check");
        let path = OsStr::new("/usr/bin:/bin");
        let program = |name: &str, bytes: &[u8]| {
            let file = folder.join(name);
            write(&file, bytes, 0o755);
            check(&file, path)
        };
        let musl = crate::elf::tests::program(Some("/lib/ld-musl-x86_64.so.1"));
        let glibc = crate::elf::tests::program(Some("/lib64/ld-linux-x86-64.so.2"));
        assert!(program("static", &crate::elf::tests::program(None)).unwrap_err().contains("statically"));
        assert!(program("musl", &musl).unwrap_err().contains("musl"));
        assert!(program("text", b"hello").unwrap_err().contains("neither"));
        assert_eq!(program("glibc", &glibc), Ok(()));
        assert_eq!(program("script", b"#!/bin/sh\n"), Ok(()));
        assert_eq!(program("env", b"#!/usr/bin/env sh\n"), Ok(()));
        assert!(program("gone", b"#!/nowhere/sh\n").unwrap_err().contains("/nowhere/sh"));
        assert!(
            program("none", b"#!/usr/bin/env no-such-program\n").unwrap_err().contains("no-such-program")
        );
        let rounds = OsStr::new(folder.as_os_str());
        write(&folder.join("round"), b"#!/usr/bin/env round\n", 0o755);
        assert!(check(&folder.join("round"), rounds).unwrap_err().contains("interpreters"));
        let itself = format!("#!{}\n", folder.join("loop").display());
        assert!(program("loop", itself.as_bytes()).unwrap_err().contains("interpreters"));
        let shell = format!("#!{}\n", folder.join("static").display());
        assert!(program("of-static", shell.as_bytes()).unwrap_err().contains("statically"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_setuid_program_of_somebody_else_is_refused() {
        let folder = folder("setuid");
        let file = folder.join("tool");
        write(&file, &crate::elf::tests::program(Some("/lib64/ld-linux-x86-64.so.2")), 0o755);
        let owner = CString::new(file.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends in NUL. Only root may do this; elsewhere the test shows the other half.
        let given = unsafe { libc::chown(owner.as_ptr(), 12345, 12345) } == 0;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(check(&file, OsStr::new("")).is_err(), given);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
