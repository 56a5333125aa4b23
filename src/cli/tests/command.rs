//! The command itself, with a stand-in for the library where one must be loaded.
#![allow(clippy::unwrap_used)] // helpers of tests may fail loudly

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vgmem-command-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Compiles `source` into a file of this folder.
    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (from, to) = (self.0.join(format!("{name}.c")), self.0.join(name));
        std::fs::write(&from, source).unwrap();
        let status = Command::new("gcc").args(flags).arg("-o").arg(&to).arg(&from).status().unwrap();
        assert!(status.success(), "gcc could not compile {name}");
        to
    }

    /// A library that says it is ours.
    fn library(&self) -> PathBuf {
        self.compile("libvgmem.so", "int vgmem_active(void) { return 1; }", &["-shared", "-fPIC"])
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder left in the temporary folder harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn vgmem() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vgmem"));
    command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("VGMEM_")) {
        command.env_remove(name);
    }
    command
}

fn run_with(library: &Path) -> Command {
    let mut command = vgmem();
    command.arg("run").arg("--library").arg(library);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let line = text(&output.stderr);
    assert!(line.starts_with("vgmem: ") && line.lines().count() == 1, "{line}");
    line
}

#[test]
fn help_names_the_commands() {
    let output = vgmem().arg("--help").output().unwrap();
    assert!(output.status.success());
    let help = text(&output.stdout);
    assert!(help.contains("run") && help.contains("doctor"), "{help}");
}

#[test]
fn run_sets_the_preload_in_front_and_the_settings() {
    let folder = Folder::new("env");
    let library = folder.library();
    let other = folder.compile("other.so", "int other;", &["-shared", "-fPIC"]);
    let mut command = run_with(&library);
    let output = command.env("LD_PRELOAD", &other).args(["--limit", "20G", "--", "env"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = text(&output.stdout);
    let preload = format!("LD_PRELOAD={}:{}", library.canonicalize().unwrap().display(), other.display());
    assert!(lines.lines().any(|line| line == preload), "{lines}");
    assert!(lines.lines().any(|line| line == "VGMEM_DEVICE_LIMIT=20G"), "{lines}");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn run_gives_the_program_its_arguments_and_its_exit_code() {
    let folder = Folder::new("code");
    let library = folder.library();
    let output =
        run_with(&library).args(["--", "sh", "-c", "echo \"$1\"; exit 7", "sh", "--limit"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "--limit\n");
}

#[test]
fn run_refuses_what_the_loader_would_start_without_us() {
    let folder = Folder::new("refuse");
    let library = folder.library();
    let source = "void _start(void) { for (;;) ; }";
    let program = folder.compile("static", source, &["-static", "-nostdlib", "-ffreestanding"]);
    let output = run_with(&library).arg("--").arg(&program).output().unwrap();
    assert!(refusal(&output).contains("statically linked"));
    let output = run_with(&library).args(["--", "no-such-program-here"]).output().unwrap();
    assert!(refusal(&output).contains("not found"));
    let output = run_with(&folder.0.join("gone.so")).args(["--", "true"]).output().unwrap();
    assert!(refusal(&output).contains("gone.so"));
}

#[test]
fn doctor_says_that_the_driver_is_missing_and_that_the_library_loads() {
    let folder = Folder::new("doctor");
    let library = folder.library();
    let mut command = vgmem();
    // An empty file in front of any real driver: nothing can be opened under that name.
    std::fs::write(folder.0.join("libcuda.so.1"), "").unwrap();
    command.env("LD_LIBRARY_PATH", &folder.0).env("VGMEM_HOSTS", "1");
    let output = command.arg("doctor").arg("--library").arg(&library).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let lines = text(&output.stdout);
    assert!(lines.contains("no driver"), "{lines}");
    assert!(lines.contains("loads into a program"), "{lines}");
    assert!(lines.lines().any(|line| line.starts_with("FAIL") && line.contains("VGMEM_HOSTS")), "{lines}");
    assert!(lines.lines().any(|line| line.starts_with("ok") && line.contains("host")), "{lines}");
}

#[test]
fn doctor_notices_a_library_that_does_not_load() {
    let folder = Folder::new("unloadable");
    let library = folder.0.join("libvgmem.so");
    std::fs::write(&library, "no library").unwrap();
    let output = vgmem().arg("doctor").arg("--library").arg(&library).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("does not load it"), "{}", text(&output.stdout));
}

#[test]
fn replay_plays_a_trace_and_refuses_what_is_none() {
    let folder = Folder::new("replay");
    let trace = folder.0.join("trace");
    let mut text = "vgmem-trace 1\ngpu 0 4294967296\npage 33554432\nn 1 step\n".to_owned();
    (0..24).for_each(|id| text += &format!("a {id} 0 268435456\n"));
    (0..24).for_each(|id| text += &format!("k {id} 0 1 500000 {id}+0\n"));
    std::fs::write(&trace, &text).unwrap();
    let output = vgmem().arg("replay").arg(&trace).args(["--rounds", "4", "--timeline"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let table = self::text(&output.stdout);
    assert!(table.contains("ours / bound") && table.contains("the way home idle"), "{table}");
    let output = vgmem().arg("replay").arg(&trace).args(["--mem", "8G", "--json"]).output().unwrap();
    let json = self::text(&output.stdout);
    assert!(json.starts_with('{') && json.contains("\"fetched_bytes\":0"), "{json}");
    std::fs::write(&trace, text + "z 1\n").unwrap();
    let line = refusal(&vgmem().arg("replay").arg(&trace).output().unwrap());
    assert!(line.contains("line 53: `z` begins no record"), "{line}");
    let line = refusal(&vgmem().arg("replay").arg(folder.0.join("none")).output().unwrap());
    assert!(line.contains("none"), "{line}");
}
