//! The library's settings, by name.

use std::ffi::OsString;

/// A setting and what it accepts, in words.
pub struct Setting {
    /// Name of the variable.
    pub name: &'static str,
    /// What may stand there.
    pub accepts: &'static str,
}

const fn setting(name: &'static str, accepts: &'static str) -> Setting {
    Setting { name, accepts }
}

/// Every setting that the library reads.
pub const SETTINGS: &[Setting] = &[
    setting("VGMEM_DEVICES", "all, or ordinals or UUIDs of visible GPUs such as 0,2,3"),
    setting("VGMEM_DEVICE_LIMIT", "a size for every GPU such as 20G, or sizes by ordinal such as 0:20G,1:8G"),
    setting(
        "VGMEM_DEVICE_RESERVE",
        "a size for every GPU such as 512M, or sizes by ordinal such as 0:1G,1:512M",
    ),
    setting("VGMEM_HOST", "auto, a size such as 64G, a part of RAM such as 50%, or 0"),
    setting("VGMEM_PAGE_SIZE", "auto, or a power of two from 2M to 1G"),
    setting("VGMEM_MIN_ALLOC", "a size such as 2M"),
    setting("VGMEM_PLACEMENT", "home, interleave or balance"),
    setting("VGMEM_ADVERTISE", "device, share or pool"),
    setting("VGMEM_PAGING", "off or auto"),
    setting("VGMEM_SAFETY", "strict or auto"),
    setting("VGMEM_COPY_OUT", "written or all"),
    setting("VGMEM_PATHS", "own or auto"),
    setting("VGMEM_GRAPHS", "whole or nodes"),
    setting("VGMEM_VERIFY", "1 or 0"),
    setting("VGMEM_CHAOS", "a number: the seed of random page moves (for tests)"),
    setting("VGMEM_REPORT", "stderr, or the name of a file that ends in .json"),
    setting("VGMEM_TRACE", "the name of a file that ends in .vgt, in a folder that is there"),
    setting("VGMEM_LOG", "off, error, warn, info, debug or trace"),
    setting("VGMEM_DISABLE", "1 or 0"),
];

/// Names that start like settings and are none of the library's: the simulator's and the tests'.
const OTHERS: &[&str] = &["VGMEM_SIM", "VGMEM_TEST"];

/// What a variable of our name is.
#[derive(Debug, PartialEq, Eq)]
pub enum Status {
    /// A setting.
    Known(&'static str),
    /// The simulated machine's or a test's.
    Other,
    /// The library refuses to start with it.
    Unknown,
}

/// Sorts one name; `None` if it is not of ours.
pub fn status(name: &str) -> Option<Status> {
    if !name.starts_with("VGMEM_") {
        return None;
    }
    if let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) {
        return Some(Status::Known(setting.accepts));
    }
    if OTHERS.iter().any(|prefix| name.starts_with(prefix)) {
        return Some(Status::Other);
    }
    Some(Status::Unknown)
}

/// The variables of ours that are set, by name.
pub fn present() -> Vec<(String, String)> {
    let text = |value: OsString| value.to_string_lossy().into_owned();
    let ours = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let mut found: Vec<_> = ours.filter(|(name, _)| name.starts_with("VGMEM_")).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_into_known_other_and_unknown() {
        assert!(matches!(status("VGMEM_HOST"), Some(Status::Known(_))));
        assert_eq!(status("VGMEM_SIM"), Some(Status::Other));
        assert_eq!(status("VGMEM_TEST_BUILT"), Some(Status::Other));
        assert_eq!(status("VGMEM_HOSTS"), Some(Status::Unknown));
        assert_eq!(status("PATH"), None);
    }

    #[test]
    fn the_list_is_the_librarys() {
        let source = include_str!("../shim/settings.rs");
        let list = source.split_once("pub const ACCEPTED").unwrap().1.split_once("];").unwrap().0;
        let theirs: Vec<_> = list.split('"').skip(1).step_by(2).collect();
        let ours: Vec<_> = SETTINGS.iter().flat_map(|setting| [setting.name, setting.accepts]).collect();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn names_are_there_once() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            assert!(
                SETTINGS.iter().skip(index + 1).all(|other| other.name != setting.name),
                "{}",
                setting.name
            );
        }
    }
}
