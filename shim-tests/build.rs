//! Makes an empty `libcuda.so`, so that the bindings which `tests/layout.rs` compares with can
//! be linked on a machine without a driver. No test calls anything in it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = out.join("empty.c");
    std::fs::write(&source, "int vgmem_test_empty_driver;\n").expect("OUT_DIR is writable");
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(out.join("libcuda.so"))
        .arg(&source)
        .status()
        .expect("gcc starts: install it with `apt-get install gcc`");
    assert!(status.success(), "gcc could not make an empty library");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rerun-if-changed=build.rs");
}
