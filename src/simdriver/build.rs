//! Gives the library the name and the way of linking that the real driver has.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The name that programs link and open.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Like the real one, its own calls do not come back through symbols of other libraries.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Its threads run until the process ends: it must stay where it is.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
