//! Runs a program under the preload, or without it, and watches that it ends.

use crate::artifacts;
use crate::artifacts::preload_list;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Which `libcuda.so.1` a process finds.
#[derive(Clone)]
enum Driver {
    None,
    Simulated,
    In(PathBuf),
}

/// Name of the file in which the processes of one machine share their numbers: each run is a machine
/// of its own, and its file goes when it ends.
struct Ledger(String);

impl Ledger {
    fn fresh() -> Ledger {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Ledger(format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: takes no arguments.
        let user = unsafe { libc::geteuid() };
        let _ = std::fs::remove_file(format!("/dev/shm/vgmem-{user}-{}", self.0));
    }
}

/// A process to be started: nothing of the caller's environment but `PATH` and `HOME` gets in.
#[derive(Clone)]
pub struct Run {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    before: Vec<PathBuf>,
    after: Vec<PathBuf>,
    ours: bool,
    instead: Option<PathBuf>,
    driver: Driver,
    limit: Duration,
}

/// How a process ended and what it said.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code, if it exited.
    pub code: Option<i32>,
    /// Signal, if one killed it.
    pub signal: Option<i32>,
    /// All of standard output.
    pub stdout: String,
    /// All of standard error.
    pub stderr: String,
}

impl Run {
    /// `program` with our library preloaded, on the simulated driver.
    pub fn new(program: impl AsRef<OsStr>) -> Run {
        Run {
            program: program.as_ref().to_owned(),
            args: vec![],
            env: vec![],
            before: vec![],
            after: vec![],
            ours: true,
            instead: None,
            driver: Driver::Simulated,
            limit: Duration::from_secs(30),
        }
    }

    /// Without our library.
    pub fn native(mut self) -> Run {
        self.ours = false;
        self
    }

    /// With another build of our library in the place of the one that users get.
    pub fn library(mut self, library: &Path) -> Run {
        self.instead = Some(library.to_path_buf());
        self
    }

    /// On a machine that has no driver.
    pub fn without_driver(mut self) -> Run {
        self.driver = Driver::None;
        self
    }

    /// On the driver in another folder.
    pub fn driver_in(mut self, folder: &Path) -> Run {
        self.driver = Driver::In(folder.to_path_buf());
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Run {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(self, args: &[A]) -> Run {
        args.iter().fold(self, |run, a| run.arg(a))
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Run {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Describes the simulated machine.
    pub fn sim(self, settings: &str) -> Run {
        self.env("VGMEM_SIM", settings)
    }

    /// Preloads another library in front of ours.
    pub fn preload_before(mut self, library: &Path) -> Run {
        self.before.push(library.to_path_buf());
        self
    }

    /// Preloads another library behind ours.
    pub fn preload_after(mut self, library: &Path) -> Run {
        self.after.push(library.to_path_buf());
        self
    }

    /// How long it may take; past that it counts as hung.
    pub fn limit(mut self, seconds: u64) -> Run {
        self.limit = Duration::from_secs(seconds);
        self
    }

    fn command(&self, ledger: &Ledger) -> Command {
        let shipped = || artifacts().library.clone();
        let ours = self.ours.then(|| self.instead.clone().unwrap_or_else(shipped));
        let list: Vec<PathBuf> =
            self.before.iter().cloned().chain(ours).chain(self.after.iter().cloned()).collect();
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().process_group(0);
        for name in ["PATH", "HOME"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        let folder = match &self.driver {
            Driver::None => None,
            Driver::Simulated => Some(&artifacts().driver_folder),
            Driver::In(folder) => Some(folder),
        };
        if let Some(folder) = folder {
            command.env("LD_LIBRARY_PATH", folder);
        }
        if !list.is_empty() {
            command.env("LD_PRELOAD", preload_list(&list));
        }
        command.env("VGMEM_TEST_LEDGER", &ledger.0);
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts it, waits for its end and for that of all who hold its output, and reports.
    ///
    /// # Panics
    /// If it does not end in time: it and its children are killed first.
    pub fn run(&self) -> Outcome {
        let ledger = Ledger::fresh();
        let mut command = self.command(&ledger);
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let end = Instant::now() + self.limit;
        let status = wait(&mut child, end);
        let rest = || end.saturating_duration_since(Instant::now());
        let texts =
            status.and_then(|_| Some((stdout.recv_timeout(rest()).ok()?, stderr.recv_timeout(rest()).ok()?)));
        let Some((status, (stdout, stderr))) = status.zip(texts) else {
            let stacks = if std::env::var_os("VGMEM_TEST_STACKS").is_some() {
                stacks(child.id())
            } else {
                String::new()
            };
            kill_group(&child);
            let _ = child.wait();
            let said = |r: Receiver<String>| r.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
            panic!("hung: {command:?}\nstdout: {}\nstderr: {}\n{stacks}", said(stdout), said(stderr));
        };
        Outcome { code: status.code(), signal: status.signal(), stdout, stderr }
    }

    /// Runs it and checks that it exits with 0.
    pub fn ok(&self) -> Outcome {
        let outcome = self.run();
        assert_eq!(outcome.code, Some(0), "{:?} {:?}: {outcome:#?}", self.program, self.args);
        outcome
    }
}

impl Outcome {
    /// Lines of standard output.
    pub fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    /// What follows `key` and a space on the line of standard output that starts so.
    pub fn value(&self, key: &str) -> &str {
        let line = self.stdout.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no line {key:?} in {self:#?}"))
    }

    /// As [`Outcome::value`], a number.
    pub fn number(&self, key: &str) -> u64 {
        self.value(key).parse().unwrap_or_else(|e| panic!("{key}: {e} in {self:#?}"))
    }
}

fn wait(child: &mut Child, end: Instant) -> Option<std::process::ExitStatus> {
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn kill_group(child: &Child) {
    // SAFETY: the group was made for this child and nobody else is in it but its children.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
}

/// Where the threads of a hung process stand, if gdb is there.
fn stacks(pid: u32) -> String {
    let gdb = Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 24"])
        .output();
    gdb.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).into_owned())
}

fn reader<R: Read + Send + 'static>(pipe: Option<R>) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Run {
        Run::new("sh").native().without_driver().args(&["-c", script])
    }

    #[test]
    fn output_code_and_signal_are_kept() {
        let outcome = sh("echo a 1; echo b >&2; exit 3").run();
        assert_eq!((outcome.code, outcome.signal), (Some(3), None));
        assert_eq!((outcome.number("a"), outcome.stderr.as_str()), (1, "b\n"));
        assert_eq!(sh("kill -9 $$").run().signal, Some(9));
    }

    #[test]
    fn the_callers_environment_stays_out() {
        let outcome = sh("env").env("VGMEM_X", "1").ok();
        let names: Vec<_> = outcome.lines().iter().filter_map(|l| l.split('=').next()).collect();
        let known = ["PATH", "HOME", "VGMEM_X", "VGMEM_TEST_LEDGER", "PWD", "_", "SHLVL", "OLDPWD"];
        assert!(names.iter().all(|n| known.contains(n)), "{names:?}");
    }

    #[test]
    #[should_panic(expected = "hung")]
    fn a_hanging_process_is_found() {
        sh("echo started; sleep 100").limit(1).run();
    }

    /// A child left behind that still holds the output counts as hung, too.
    #[test]
    #[should_panic(expected = "hung")]
    fn a_hanging_child_is_found() {
        sh("sleep 100 & exit 0").limit(1).run();
    }
}
