//! The control interface that `include/vgmem.h` declares.

use shim_tests::{Run, Source, artifacts, target, workspace};
use std::process::Command;

#[test]
fn the_interface_tells_where_pages_lie() {
    let include = format!("-I{}", workspace().join("include").display());
    let program = Source::program("capi").flags(&[&include]).links(&artifacts().library).build();
    // Linked or preloaded, it is one library in the process.
    for run in [Run::new(&program), Run::new(&program).native()] {
        let outcome = run.sim("gpus=2,mem=64M,host=256M").arg("160").ok();
        assert_eq!(outcome.value("active"), "0 0 given 1", "a lookup starts nothing: {outcome:#?}");
        assert_eq!(outcome.value("reached"), "0 -1 -1");
        assert_eq!(outcome.value("started"), "1");
        assert_eq!(outcome.value("reached_now"), "1 0");
        assert_eq!(outcome.value("bad"), "0", "{outcome:#?}");
        let on = [outcome.number("gpu0"), outcome.number("gpu1"), outcome.number("host")];
        assert_eq!(on.iter().sum::<u64>(), 160, "{outcome:#?}");
        assert!(on[0] >= 56 && on[1] >= 56 && on[2] >= 32, "{outcome:#?}");
        assert_eq!(outcome.value("nowhere"), "1");
        assert_eq!(outcome.value("unpooled"), "0 0 0 0 1", "{outcome:#?}");
    }
}

/// The header stands alone, in both languages, without a warning.
#[test]
fn the_header_compiles() {
    let folder = target().join("shim-tests/header");
    std::fs::create_dir_all(&folder).expect("target is writable");
    for (language, standard) in [("c", "-std=c99"), ("c++", "-std=c++98")] {
        let file = folder.join(format!("only.{language}"));
        std::fs::write(&file, "#include \"vgmem.h\"\n#include \"vgmem.h\"\n").expect("target is writable");
        let output = Command::new("gcc")
            .args([
                "-x",
                language,
                standard,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-long-long",
                "-fsyntax-only",
            ])
            .arg("-I")
            .arg(workspace().join("include"))
            .arg(&file)
            .output()
            .expect("gcc starts: install it with `apt-get install gcc`");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("cannot execute") || said.contains("not installed") {
            shim_tests::skip("the_header_compiles", "gcc has no C++ compiler: apt-get install g++");
            continue;
        }
        assert!(output.status.success(), "{language}: {said}");
    }
}
