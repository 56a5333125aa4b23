//! Link options of the library.

fn main() {
    println!("cargo:rerun-if-changed=src/shim/build.rs");
    for option in [
        // Another preloaded library may export the same names ahead of us: our own references must stay ours.
        "-Wl,-Bsymbolic-functions",
        "-Wl,-soname,libvgmem.so",
        // A process without CUDA pays for the mapping only: nothing is bound before it is called.
        "-Wl,-z,lazy",
    ] {
        println!("cargo:rustc-cdylib-link-arg={option}");
    }
}
