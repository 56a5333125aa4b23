//! Gives the library the name that programs open.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Its own calls do not come back through symbols of other libraries.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
