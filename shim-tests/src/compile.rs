//! Compiles the small C programs in `programs/`.

use crate::artifacts::Lock;
use crate::{artifacts, target, workspace};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// One file of `programs/` and how it is built.
#[derive(Clone, Hash)]
pub struct Source {
    name: &'static str,
    flags: Vec<String>,
    shared: Option<String>,
    driver: bool,
    soname: Option<String>,
}

impl Source {
    /// A program from `programs/<name>.c`.
    pub fn program(name: &'static str) -> Source {
        Source { name, flags: vec![], shared: None, driver: false, soname: None }
    }

    /// A shared library from `programs/<name>.c`, to be called `file`.
    pub fn library(name: &'static str, file: &str) -> Source {
        Source { shared: Some(file.to_string()), ..Source::program(name) }
    }

    /// Adds compiler flags.
    pub fn flags(mut self, flags: &[&str]) -> Source {
        self.flags.extend(flags.iter().map(|f| (*f).to_string()));
        self
    }

    /// Links the driver library, as programs built for CUDA do.
    pub fn links_driver(mut self) -> Source {
        self.driver = true;
        self
    }

    /// Links another library by its path.
    pub fn links(self, library: &Path) -> Source {
        let path = library.display().to_string();
        let folder = library.parent().expect("a library lies in a folder").display().to_string();
        // RUNPATH, as most linkers write it: LD_LIBRARY_PATH may name another folder.
        self.flags(&["-Wl,--no-as-needed", &path, &format!("-Wl,--enable-new-dtags,-rpath,{folder}")])
    }

    /// States the name that the library calls itself by.
    pub fn soname(mut self, name: &str) -> Source {
        self.soname = Some(name.to_string());
        self
    }

    /// Compiles if needed and says where the result lies.
    pub fn build(self) -> PathBuf {
        compile(&self)
    }
}

fn newer(a: &Path, b: &Path) -> bool {
    let time = |p: &Path| fs::metadata(p).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    time(a) > time(b)
}

/// Compiles `source` if its output is missing or older than what it is made of.
pub fn compile(source: &Source) -> PathBuf {
    let driver = source.driver.then(|| artifacts().driver.clone());
    let _lock = Lock::take();
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let folder = target().join("shim-tests").join(format!("{}-{:016x}", source.name, hasher.finish()));
    fs::create_dir_all(&folder).expect("target is writable");
    let programs = workspace().join("shim-tests/programs");
    let file = programs.join(format!("{}.c", source.name));
    let output = folder.join(source.shared.as_deref().unwrap_or(source.name));
    let inputs = ["cu.h", "use.h", "adversary.h", "waits.h"].map(|header| programs.join(header));
    if output.is_file() && !inputs.iter().chain([&file]).any(|i| newer(i, &output)) {
        return output;
    }
    let mut gcc = Command::new("gcc");
    gcc.args(["-g", "-std=gnu11", "-Wall", "-Werror", "-Wno-unused-function", "-pthread", "-I"])
        .arg(&programs);
    if source.shared.is_some() {
        gcc.args(["-shared", "-fPIC"]);
        let soname = source.soname.as_ref().or(source.shared.as_ref());
        gcc.arg(format!("-Wl,-soname,{}", soname.expect("a shared library has a name")));
    }
    gcc.arg("-o").arg(&output).arg(&file);
    if let Some(driver) = driver {
        gcc.arg("-Wl,--no-as-needed").arg(driver);
    }
    gcc.args(&source.flags).arg("-ldl");
    let made = gcc.output().expect("gcc starts: install it with `apt-get install gcc`");
    assert!(made.status.success(), "{gcc:?}:\n{}", String::from_utf8_lossy(&made.stderr));
    output
}
