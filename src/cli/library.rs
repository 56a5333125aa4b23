//! Where libvgmem.so is, and how a program is told to load it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// File name of the library.
pub const NAME: &str = "libvgmem.so";

/// Finds the library: as told, beside this command, or in the `lib` folder next to its folder.
pub fn find(told: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = told {
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        return usable(path);
    }
    let command =
        std::env::current_exe().map_err(|error| format!("where this command lies is unknown: {error}"))?;
    let candidates = beside(&command);
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => usable(path.canonicalize().unwrap_or_else(|_| path.clone())),
        None => {
            let places: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
            Err(format!("{NAME} was not found (looked for {}); name it with --library", places.join(", ")))
        }
    }
}

/// The places next to the command, best first.
fn beside(command: &Path) -> Vec<PathBuf> {
    let Some(folder) = command.parent() else { return Vec::new() };
    let mut places = vec![folder.join(NAME)];
    if let Some(above) = folder.parent() {
        places.push(above.join("lib").join(NAME));
        places.push(above.join("lib64").join(NAME));
    }
    places
}

/// The loader cuts LD_PRELOAD at blanks and colons: such a path cannot be said there.
fn usable(path: PathBuf) -> Result<PathBuf, String> {
    if path.as_os_str().as_bytes().iter().any(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
        return Err(format!(
            "{}: LD_PRELOAD cannot name a path with a blank or a colon in it",
            path.display()
        ));
    }
    Ok(path)
}

/// LD_PRELOAD with the library in front of what stood there, and only once.
pub fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let before = before.unwrap_or_default().as_bytes();
    for part in before.split(|byte| *byte == b':' || *byte == b' ') {
        if !part.is_empty() && part != library.as_os_str().as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(part));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_goes_in_front_and_stays_alone() {
        let library = Path::new("/opt/libvgmem.so");
        let with = |before: &str| preload(library, Some(OsStr::new(before)));
        assert_eq!(preload(library, None), "/opt/libvgmem.so");
        assert_eq!(with(""), "/opt/libvgmem.so");
        assert_eq!(with("/a.so b.so"), "/opt/libvgmem.so:/a.so:b.so");
        assert_eq!(with("/a.so:/opt/libvgmem.so"), "/opt/libvgmem.so:/a.so");
    }

    #[test]
    fn places_are_beside_the_command_and_in_lib() {
        let places = beside(Path::new("/opt/v/bin/vgmem"));
        assert_eq!(places[0], Path::new("/opt/v/bin/libvgmem.so"));
        assert_eq!(places[1], Path::new("/opt/v/lib/libvgmem.so"));
    }

    #[test]
    fn paths_that_the_loader_would_cut_are_refused() {
        assert!(usable(PathBuf::from("/a b/libvgmem.so")).unwrap_err().contains("blank"));
        assert!(usable(PathBuf::from("/a:b/libvgmem.so")).is_err());
        assert!(usable(PathBuf::from("/a/libvgmem.so")).is_ok());
        assert!(find(Some(Path::new("/nowhere/libvgmem.so"))).unwrap_err().contains("/nowhere"));
    }
}
