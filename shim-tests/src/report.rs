//! Reads the exit report of the library.

use crate::{Outcome, Run, target};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the pool in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The most that may lie there.
    pub capacity: u64,
    /// What lay there when the pool held most.
    pub at_peak: u64,
    /// What lay there at the end.
    pub at_exit: u64,
}

/// An exit report in JSON.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Reads the file that `VGMEM_REPORT` named.
    pub fn read(path: &Path) -> Report {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Report(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}")))
    }

    /// Runs a process that shall exit with 0 and reads its report.
    pub fn of(run: &Run) -> (Outcome, Report) {
        let path = Report::fresh();
        let outcome = run.clone().env("VGMEM_REPORT", &path).ok();
        (outcome, Report::read(&path))
    }

    /// As [`Self::of`], whatever the process exits with.
    pub fn after(run: &Run) -> (Outcome, Report) {
        let path = Report::fresh();
        let outcome = run.clone().env("VGMEM_REPORT", &path).run();
        (outcome, Report::read(&path))
    }

    /// Name of a report file that nobody has written yet.
    pub fn fresh() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = target().join("shim-tests/reports");
        std::fs::create_dir_all(&folder).expect("target is writable");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}.json", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    /// A number at the top of the report.
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {self:?}"))
    }

    /// The strings of a list.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        let list = self.0[name].as_array().unwrap_or_else(|| panic!("no list {name} in {self:?}"));
        list.iter().filter_map(Value::as_str).collect()
    }

    /// One GPU's part.
    pub fn gpu(&self, ordinal: usize) -> Room {
        self.room(&self.0["gpus"][ordinal])
    }

    /// The host's part.
    pub fn host(&self) -> Room {
        self.room(&self.0["host"])
    }

    fn room(&self, value: &Value) -> Room {
        let field = |name: &str| value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {self:?}"));
        Room { capacity: field("capacity"), at_peak: field("at_peak"), at_exit: field("at_exit") }
    }
}
