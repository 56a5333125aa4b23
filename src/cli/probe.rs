//! What the driver says, asked in a process of its own: a driver that hangs or dies ends only that.

use libloading::Library;
use libloading::os::unix::Library as Process;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vgmem_abi::{CUDA_SUCCESS, CUdevice, CUresult, code_name};

/// A driver that needs longer than this to start is not going to.
const PATIENCE: Duration = Duration::from_secs(60);

/// One GPU as the driver shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Gpu {
    /// What it is called.
    pub name: String,
    /// Bytes of memory.
    pub memory: u64,
}

/// Everything that was learned.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether libvgmem.so is in the process and working.
    pub preloaded: bool,
    /// CUDA version that the driver was made for (`13000` is 13.0).
    pub version: Option<u32>,
    /// The GPUs, by ordinal.
    pub gpus: Vec<Gpu>,
    /// Pairs of GPUs where the first cannot reach the second.
    pub apart: Vec<(usize, usize)>,
    /// What failed, in words.
    pub failure: Option<String>,
    /// What the process wrote on standard error.
    pub errors: Vec<String>,
    /// Host memory in the pool, from the library's own report.
    pub host_budget: Option<u64>,
}

/// The child's part: asks, and prints a line for each fact.
pub fn answer() {
    println!("preloaded {}", u8::from(preloaded()));
    if let Err(message) = ask() {
        println!("failure {message}");
    }
}

fn preloaded() -> bool {
    let process = Process::this();
    // SAFETY: the library's C interface declares this function so; it takes nothing.
    unsafe { process.get::<unsafe extern "C" fn() -> c_int>(b"vgmem_active\0") }.is_ok()
}

/// Looks a function up in the driver and calls it; a code other than 0 becomes words.
macro_rules! call {
    ($driver:expr, $name:literal, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the name and the types are those of the driver interface.
        let function = unsafe {
            $driver.get::<unsafe extern "C" fn($($type),*) -> CUresult>(concat!($name, "\0").as_bytes())
        };
        let function = function.map_err(|_| concat!("the driver has no ", $name).to_owned())?;
        // SAFETY: every pointer among the arguments is to a live local variable of that type.
        let code = unsafe { function($($argument),*) };
        succeeded($name, code)?;
    }};
}

fn succeeded(name: &str, code: CUresult) -> Result<(), String> {
    if code == CUDA_SUCCESS {
        return Ok(());
    }
    Err(format!("{name} answers {code} ({})", code_name(code).unwrap_or("unknown code")))
}

fn ask() -> Result<(), String> {
    // SAFETY: loading a driver runs its initialisers; this process exists for nothing else.
    let driver = unsafe { Library::new("libcuda.so.1") }.map_err(|error| format!("no driver: {error}"))?;
    let mut version: c_int = 0;
    call!(driver, "cuDriverGetVersion", (*mut c_int), &raw mut version);
    println!("version {version}");
    call!(driver, "cuInit", (c_uint), 0);
    let mut count: c_int = 0;
    call!(driver, "cuDeviceGetCount", (*mut c_int), &raw mut count);
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut device: CUdevice = 0;
        call!(driver, "cuDeviceGet", (*mut CUdevice, c_int), &raw mut device, ordinal);
        let mut name: [c_char; 128] = [0; 128];
        call!(driver, "cuDeviceGetName", (*mut c_char, c_int, CUdevice), name.as_mut_ptr(), 127, device);
        let mut memory: usize = 0;
        call!(driver, "cuDeviceTotalMem_v2", (*mut usize, CUdevice), &raw mut memory, device);
        // SAFETY: the last byte was never given to the driver, so the text ends in NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        println!("gpu {memory} {}", name.to_string_lossy());
        devices.push(device);
    }
    for (from, &one) in devices.iter().enumerate() {
        for (to, &other) in devices.iter().enumerate() {
            let mut can: c_int = 1;
            if from != to {
                let types = (&raw mut can, one, other);
                call!(
                    driver,
                    "cuDeviceCanAccessPeer",
                    (*mut c_int, CUdevice, CUdevice),
                    types.0,
                    types.1,
                    types.2
                );
            }
            if can == 0 {
                println!("apart {from} {to}");
            }
        }
    }
    Ok(())
}

/// The parent's part: starts this command as the child, with `preload` as its LD_PRELOAD or without one.
pub fn start(preload: Option<&std::ffi::OsStr>) -> Result<Answer, String> {
    let command =
        std::env::current_exe().map_err(|error| format!("where this command lies is unknown: {error}"))?;
    let mut command = Command::new(command);
    command.arg("probe").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match preload {
        Some(value) => command.env("LD_PRELOAD", value),
        None => command.env_remove("LD_PRELOAD"),
    };
    let report = std::env::temp_dir().join(format!("vgmem-doctor-{}.json", std::process::id()));
    if preload.is_some() && std::env::var_os("VGMEM_REPORT").is_none() {
        command.env("VGMEM_REPORT", &report);
    }
    let mut child = command.spawn().map_err(|error| format!("the probe did not start: {error}"))?;
    // Each pipe has its reader, so that a talkative driver cannot fill one and stop.
    let out = child.stdout.take().map(|pipe| std::thread::spawn(move || drain(pipe)));
    let err = child.stderr.take().map(|pipe| std::thread::spawn(move || drain(pipe)));
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                // It may have ended meanwhile; then there is nothing to kill.
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let text = |reader: Option<std::thread::JoinHandle<String>>| reader.and_then(|reader| reader.join().ok());
    let mut answer = parse(&text(out).unwrap_or_default());
    answer.errors = text(err).unwrap_or_default().lines().map(str::to_owned).collect();
    if let Ok(text) = std::fs::read_to_string(&report) {
        answer.host_budget = budget(&text);
        // A file left in the temporary folder harms nobody.
        let _ = std::fs::remove_file(&report);
    }
    match status {
        None => answer.failure = Some(format!("the driver gave no answer within {} s", PATIENCE.as_secs())),
        Some(status) if !status.success() => {
            answer.failure = Some(format!("asking the driver ended with {status}"))
        }
        Some(_) => {}
    }
    Ok(answer)
}

fn drain(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The host's capacity in a report.
fn budget(report: &str) -> Option<u64> {
    let rest = report.split_once("\"host\":{\"capacity\":")?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn parse(text: &str) -> Answer {
    let mut answer = Answer::default();
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "preloaded" => answer.preloaded = rest == "1",
            "version" => answer.version = rest.parse().ok(),
            "gpu" => answer.gpus.push(Gpu { memory: first.parse().unwrap_or(0), name: second.to_owned() }),
            "apart" => {
                if let (Ok(from), Ok(to)) = (first.parse(), second.parse()) {
                    answer.apart.push((from, to));
                }
            }
            "failure" => answer.failure = Some(rest.to_owned()),
            _ => {}
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_facts() {
        let answer =
            parse("preloaded 1\nversion 13000\ngpu 1024 NVIDIA H200 NVL\ngpu 2 B\napart 0 1\nnoise\n");
        assert!(answer.preloaded && answer.failure.is_none());
        assert_eq!(answer.version, Some(13000));
        assert_eq!(answer.gpus[0], Gpu { name: "NVIDIA H200 NVL".to_owned(), memory: 1024 });
        assert_eq!(answer.apart, [(0, 1)]);
        assert_eq!(parse("failure no driver: x y").failure.as_deref(), Some("no driver: x y"));
        assert_eq!(parse(""), Answer::default());
    }

    #[test]
    fn the_budget_is_the_hosts_capacity() {
        let report =
            r#"{"gpus":[{"name":"A","capacity":1,"at_peak":2}],"host":{"capacity":345,"at_peak":6}}"#;
        assert_eq!(budget(report), Some(345));
        assert_eq!(budget("{}"), None);
    }

    #[test]
    fn codes_become_words() {
        assert_eq!(succeeded("cuInit", 0), Ok(()));
        let text = succeeded("cuInit", 100).unwrap_err();
        assert!(text.contains("cuInit") && text.contains("CUDA_ERROR_NO_DEVICE"), "{text}");
        assert!(succeeded("cuInit", 54321).unwrap_err().contains("54321"));
    }
}
