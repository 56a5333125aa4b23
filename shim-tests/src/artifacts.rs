//! Builds the two libraries the way users get them, once for each test process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where the files under test lie.
pub struct Artifacts {
    /// `libvgmem.so`, release build.
    pub library: PathBuf,
    /// Folder with the simulated driver as `libcuda.so.1` and `libcuda.so`.
    pub driver_folder: PathBuf,
    /// The simulated driver.
    pub driver: PathBuf,
}

/// Root of the checkout.
pub fn workspace() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        here.parent().expect("shim-tests lies in the workspace").to_path_buf()
    })
}

/// Folder for build outputs.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Holds other test processes off while files in `target/` are made.
pub(crate) struct Lock(#[allow(dead_code)] File);

impl Lock {
    pub(crate) fn take() -> Lock {
        let folder = target().join("shim-tests");
        fs::create_dir_all(&folder).expect("target is writable");
        let file = File::create(folder.join("lock")).expect("target is writable");
        // SAFETY: the descriptor is open; the kernel gives the lock back when it is closed.
        let rc = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        assert_eq!(rc, 0, "cannot lock {}", folder.display());
        Lock(file)
    }
}

/// The libraries, built if they are not up to date (`VGMEM_TEST_BUILT=1`: taken as they are).
pub fn artifacts() -> &'static Artifacts {
    static ONCE: OnceLock<Artifacts> = OnceLock::new();
    ONCE.get_or_init(|| {
        let _lock = Lock::take();
        if std::env::var_os("VGMEM_TEST_BUILT").is_none_or(|v| v != "1") {
            build();
        }
        let release = target().join("release");
        let folder = target().join("sim");
        install(&release.join("libvgmem_simdriver.so"), &folder);
        let library = release.join("libvgmem.so");
        assert!(library.is_file(), "{} is missing", library.display());
        Artifacts { library, driver: folder.join("libcuda.so.1"), driver_folder: folder }
    })
}

/// The driver as cargo finds it on users' machines: `-p` picks the same features as a plain build.
fn build() {
    let status = Command::new(env!("CARGO"))
        .current_dir(workspace())
        .args(["build", "--release", "--locked", "-p", "vgmem", "-p", "vgmem-simdriver"])
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the libraries do not build");
}

/// The library with the feature `broken`, in a folder of its own: it breaks the rule that `VGMEM_TEST_BROKEN` names.
/// Built once for each test process if it is not up to date, whoever has built the others.
pub fn broken_library() -> &'static Path {
    static ONCE: OnceLock<PathBuf> = OnceLock::new();
    ONCE.get_or_init(|| {
        let _lock = Lock::take();
        let folder = target().join("broken");
        let status = Command::new(env!("CARGO"))
            .current_dir(workspace())
            .args(["build", "--release", "--locked", "-p", "vgmem", "--features", "broken", "--target-dir"])
            .arg(&folder)
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the broken library does not build");
        folder.join("release/libvgmem.so")
    })
}

fn install(built: &Path, folder: &Path) {
    fs::create_dir_all(folder).expect("target is writable");
    let bytes = fs::read(built).unwrap_or_else(|e| panic!("{}: {e}", built.display()));
    let place = folder.join("libcuda.so.1");
    if fs::read(&place).is_ok_and(|old| old == bytes) && folder.join("libcuda.so").exists() {
        return;
    }
    // A process of another test may have the old file mapped: put a new one in its place.
    let fresh = folder.join("libcuda.so.1.new");
    fs::write(&fresh, bytes).expect("target is writable");
    fs::rename(&fresh, &place).expect("target is writable");
    let link = folder.join("libcuda.so");
    if link.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("libcuda.so.1", &link).expect("target is writable");
    }
}

/// `LD_PRELOAD` value: the named libraries in their order.
pub(crate) fn preload_list(parts: &[PathBuf]) -> OsString {
    let mut list = OsString::new();
    for part in parts {
        if !list.is_empty() {
            list.push(":");
        }
        list.push(part);
    }
    list
}
