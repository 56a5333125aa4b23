//! The settings: `VGMEM_*` variables, read once, when the engine starts.
//!
//! A value that cannot be read is one line naming the variable and what it accepts. Nothing is guessed.

use std::ffi::CStr;
use std::fmt;

use log::LevelFilter;
use vgmem_policy::{Advertise, GRANULE, Placement};

/// Which GPUs are in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// All that the program sees.
    All,
    /// These, by ordinal or UUID as given.
    Named(Vec<String>),
}

/// A number of bytes for every GPU, or for some by ordinal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerGpu {
    /// The same for all.
    All(u64),
    /// By ordinal; the others are as if nothing were set.
    Each(Vec<(usize, u64)>),
}

impl PerGpu {
    /// The number for one GPU.
    pub fn of(&self, gpu: usize) -> Option<u64> {
        match self {
            PerGpu::All(bytes) => Some(*bytes),
            PerGpu::Each(list) => list.iter().find(|(ordinal, _)| *ordinal == gpu).map(|(_, bytes)| *bytes),
        }
    }
}

/// How much host RAM the pool may pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostBudget {
    /// What is available, less a part for everybody else.
    Auto,
    /// Bytes.
    Bytes(u64),
    /// Percent of the machine's RAM.
    Percent(u64),
}

/// Where the exit report goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Nowhere.
    None,
    /// To standard error, as a table.
    Stderr,
    /// To a file, as JSON.
    File(String),
}

/// What pages may do while work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safety {
    /// Nothing: they move while nothing is in flight.
    Strict,
    /// They move beside work of functions that were found to use only what they name.
    Auto,
}

/// All settings but the log level, which is read first.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `VGMEM_DEVICES`
    pub devices: Devices,
    /// `VGMEM_DEVICE_LIMIT`
    pub device_limit: Option<PerGpu>,
    /// `VGMEM_DEVICE_RESERVE`
    pub device_reserve: Option<PerGpu>,
    /// `VGMEM_HOST`
    pub host: HostBudget,
    /// `VGMEM_PAGE_SIZE`, `None` for auto
    pub page_size: Option<u64>,
    /// `VGMEM_MIN_ALLOC`
    pub min_alloc: u64,
    /// `VGMEM_PLACEMENT`
    pub placement: Placement,
    /// `VGMEM_ADVERTISE`
    pub advertise: Advertise,
    /// `VGMEM_PAGING`: whether pages are brought home before launches.
    pub paging: bool,
    /// `VGMEM_SAFETY`: whether pages may move while work runs.
    pub safety: Safety,
    /// `VGMEM_COPY_OUT`: whether every page that goes is copied, also one that was not written since it came.
    pub copies_all: bool,
    /// `VGMEM_PATHS`: whether idle GPUs copy over their links, too.
    pub paths: bool,
    /// `VGMEM_GRAPHS`: whether graphs are launched node by node under pressure.
    pub graph_nodes: bool,
    /// `VGMEM_VERIFY`: compare every page's bytes at both ends of every move.
    pub verify: bool,
    /// `VGMEM_CHAOS`: seed of random page moves, for tests.
    pub chaos: Option<u64>,
    /// `VGMEM_REPORT`
    pub report: Report,
    /// `VGMEM_TRACE`: the file that launches and copies are recorded in.
    pub trace: Option<String>,
}

/// A setting that cannot be honoured.
#[derive(Debug)]
pub struct BadSetting {
    /// The variable; empty where the value names it.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What it accepts, or why this value cannot be had.
    pub accepts: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.name.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{} cannot be honoured; accepted: {}", self.name, self.value, self.accepts)
    }
}

type Parsed<T> = Result<T, ()>;

/// Name of every setting, and what it accepts.
pub const ACCEPTED: [(&str, &str); 19] = [
    ("VGMEM_DEVICES", "all, or ordinals or UUIDs of visible GPUs such as 0,2,3"),
    ("VGMEM_DEVICE_LIMIT", "a size for every GPU such as 20G, or sizes by ordinal such as 0:20G,1:8G"),
    ("VGMEM_DEVICE_RESERVE", "a size for every GPU such as 512M, or sizes by ordinal such as 0:1G,1:512M"),
    ("VGMEM_HOST", "auto, a size such as 64G, a part of RAM such as 50%, or 0"),
    ("VGMEM_PAGE_SIZE", "auto, or a power of two from 2M to 1G"),
    ("VGMEM_MIN_ALLOC", "a size such as 2M"),
    ("VGMEM_PLACEMENT", "home, interleave or balance"),
    ("VGMEM_ADVERTISE", "device, share or pool"),
    ("VGMEM_PAGING", "off or auto"),
    ("VGMEM_SAFETY", "strict or auto"),
    ("VGMEM_COPY_OUT", "written or all"),
    ("VGMEM_PATHS", "own or auto"),
    ("VGMEM_GRAPHS", "whole or nodes"),
    ("VGMEM_VERIFY", "1 or 0"),
    ("VGMEM_CHAOS", "a number: the seed of random page moves (for tests)"),
    ("VGMEM_REPORT", "stderr, or the name of a file that ends in .json"),
    ("VGMEM_TRACE", "the name of a file that ends in .vgt, in a folder that is there"),
    ("VGMEM_LOG", "off, error, warn, info, debug or trace"),
    ("VGMEM_DISABLE", "1 or 0"),
];

/// Prefixes of variables that belong to the simulated driver and to the tests.
const NOT_OURS: [&str; 2] = ["VGMEM_SIM", "VGMEM_TEST"];

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn read<T>(name: &'static str, default: T, parse: impl FnOnce(&str) -> Parsed<T>) -> Result<T, BadSetting> {
    match variable(name) {
        None => Ok(default),
        Some(value) => parse(value.trim()).map_err(|()| BadSetting { name, value, accepts: accepts(name) }),
    }
}

/// What a setting accepts.
pub fn accepts(name: &str) -> String {
    ACCEPTED.iter().find(|(known, _)| *known == name).map_or(String::new(), |(_, text)| text.to_string())
}

/// Bytes of a size such as `512M`, `20G`, `20GiB` or `1048576`.
fn size(text: &str) -> Parsed<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().map_err(drop)?;
    let unit = text[digits..].to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(()),
    };
    number.checked_mul(1 << shift).ok_or(())
}

fn per_gpu(text: &str) -> Parsed<PerGpu> {
    if !text.contains(':') {
        return size(text).map(PerGpu::All);
    }
    let entry = |part: &str| -> Parsed<(usize, u64)> {
        let (ordinal, bytes) = part.split_once(':').ok_or(())?;
        Ok((ordinal.trim().parse().map_err(drop)?, size(bytes.trim())?))
    };
    text.split(',').map(entry).collect::<Parsed<Vec<_>>>().map(PerGpu::Each)
}

fn devices(text: &str) -> Parsed<Devices> {
    if text == "all" {
        return Ok(Devices::All);
    }
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let good = |name: &String| {
        name.parse::<u16>().is_ok() || name.strip_prefix("GPU-").is_some_and(|rest| rest.len() >= 4)
    };
    if names.iter().all(good) { Ok(Devices::Named(names)) } else { Err(()) }
}

fn host(text: &str) -> Parsed<HostBudget> {
    if text == "auto" {
        return Ok(HostBudget::Auto);
    }
    match text.strip_suffix('%') {
        Some(part) => match part.trim().parse() {
            Ok(percent @ 0..=100) => Ok(HostBudget::Percent(percent)),
            _ => Err(()),
        },
        None => size(text).map(HostBudget::Bytes),
    }
}

fn page_size(text: &str) -> Parsed<Option<u64>> {
    match text {
        "auto" => Ok(None),
        _ => match size(text)? {
            bytes if bytes.is_power_of_two() && (GRANULE..=1 << 30).contains(&bytes) => Ok(Some(bytes)),
            _ => Err(()),
        },
    }
}

fn placement(text: &str) -> Parsed<Placement> {
    match text {
        "home" => Ok(Placement::Home),
        "interleave" => Ok(Placement::Interleave),
        "balance" => Ok(Placement::Balance),
        _ => Err(()),
    }
}

fn advertise(text: &str) -> Parsed<Advertise> {
    match text {
        "device" => Ok(Advertise::Device),
        "share" => Ok(Advertise::Share),
        "pool" => Ok(Advertise::Pool),
        _ => Err(()),
    }
}

fn report(text: &str) -> Parsed<Report> {
    match text {
        "stderr" => Ok(Report::Stderr),
        file if file.len() > 5 && file.ends_with(".json") => Ok(Report::File(file.to_owned())),
        _ => Err(()),
    }
}

fn trace(text: &str) -> Parsed<Option<String>> {
    if text.len() > 4 && text.ends_with(".vgt") { Ok(Some(text.to_owned())) } else { Err(()) }
}

/// Whether it is the second of two words.
fn either(text: &str, first: &str, second: &str) -> Parsed<bool> {
    if text == first || text == second { Ok(text == second) } else { Err(()) }
}

fn switch(text: &str) -> Parsed<bool> {
    either(text, "0", "1")
}

fn level(text: &str) -> Parsed<LevelFilter> {
    text.parse().map_err(drop)
}

impl Settings {
    /// Reads the log level alone, so that the log works while the rest is read.
    pub fn log_level() -> Result<LevelFilter, BadSetting> {
        read("VGMEM_LOG", LevelFilter::Warn, level)
    }

    /// Reads all settings.
    pub fn read() -> Result<Settings, BadSetting> {
        refuse_unknown()?;
        read("VGMEM_DISABLE", false, switch)?; // where it is 1 the library never gets here
        Ok(Settings {
            devices: read("VGMEM_DEVICES", Devices::All, devices)?,
            device_limit: read("VGMEM_DEVICE_LIMIT", None, |text| per_gpu(text).map(Some))?,
            device_reserve: read("VGMEM_DEVICE_RESERVE", None, |text| per_gpu(text).map(Some))?,
            host: read("VGMEM_HOST", HostBudget::Auto, host)?,
            page_size: read("VGMEM_PAGE_SIZE", None, page_size)?,
            min_alloc: read("VGMEM_MIN_ALLOC", GRANULE, size)?,
            placement: read("VGMEM_PLACEMENT", Placement::default(), placement)?,
            advertise: read("VGMEM_ADVERTISE", Advertise::default(), advertise)?,
            paging: read("VGMEM_PAGING", false, |text| either(text, "off", "auto"))?,
            safety: read("VGMEM_SAFETY", Safety::Auto, |text| match text {
                "strict" => Ok(Safety::Strict),
                "auto" => Ok(Safety::Auto),
                _ => Err(()),
            })?,
            copies_all: read("VGMEM_COPY_OUT", false, |text| either(text, "written", "all"))?,
            paths: read("VGMEM_PATHS", false, |text| either(text, "own", "auto"))?,
            graph_nodes: read("VGMEM_GRAPHS", true, |text| either(text, "whole", "nodes"))?,
            verify: read("VGMEM_VERIFY", false, switch)?,
            chaos: read("VGMEM_CHAOS", None, |text| text.parse().map(Some).map_err(drop))?,
            report: read("VGMEM_REPORT", Report::None, report)?,
            trace: read("VGMEM_TRACE", None, trace)?,
        })
    }
}

/// A misspelt name would be a setting silently ignored.
fn refuse_unknown() -> Result<(), BadSetting> {
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let ours = name.starts_with("VGMEM_") && !NOT_OURS.iter().any(|prefix| name.starts_with(prefix));
        if ours && !ACCEPTED.iter().any(|(known, _)| *known == name) {
            let known: Vec<&str> = ACCEPTED.iter().map(|(name, _)| *name).collect();
            return Err(BadSetting {
                name: "",
                value: format!("the environment variable {name}={}", value.to_string_lossy()),
                accepts: known.join(", "),
            });
        }
    }
    Ok(())
}

/// Reads a variable that must be readable before the engine starts, without the standard library's lock.
pub fn early(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: `name` ends with NUL; the program may change its environment, but callers read at once.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: a non-null answer is a string that ends with NUL.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}
