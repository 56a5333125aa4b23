//! The setting `VGMEM_SIM`: what machine is simulated.

use crate::fault::Fault;
use crate::ledger;
use std::time::Duration;

/// How the GPUs are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// NVLink: peers can be mapped, atomics work.
    Nvlink4,
    /// PCI Express: peers can be mapped.
    Pcie4,
    /// No peer access at all.
    None,
}

/// The machine to simulate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of GPUs.
    pub gpus: u32,
    /// Bytes of memory of each GPU.
    pub memory: u64,
    /// Bytes of a GPU's memory that each context takes for itself.
    pub context: u64,
    /// Bytes of host RAM that can be pinned as pages.
    pub host: u64,
    /// How the GPUs are joined.
    pub link: Link,
    /// Where the order of completion starts from.
    pub seed: u64,
    /// Version of the driver (`13000` is 13.0).
    pub driver: u32,
    /// Calls that shall fail.
    pub(crate) faults: Vec<Fault>,
    /// Least time of each operation on the GPU.
    pub latency: Duration,
    /// What a GPU's memory carries, in MB/s, and bytes of its cache, as its attributes say; kernels take the time that
    /// they take.
    pub speed: (u64, u64),
    /// Name of the machine that processes share; none: this process has its own.
    pub machine: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            gpus: 1,
            memory: 24 << 30,
            context: 0,
            host: 64 << 30,
            link: Link::Nvlink4,
            seed: 1,
            driver: 13000,
            faults: Vec::new(),
            latency: Duration::ZERO,
            speed: (3_328_000, 50 << 20),
            machine: None,
        }
    }
}

impl Settings {
    /// Settings of this process; the error is one line that names what was wrong.
    pub fn from_environment() -> Result<Settings, String> {
        let mut settings = match std::env::var_os("VGMEM_SIM") {
            None => Settings::default(),
            Some(text) => match text.to_str() {
                Some(text) => Settings::parse(text)?,
                None => return Err("VGMEM_SIM: not valid UTF-8".to_string()),
            },
        };
        if let Some(name) = std::env::var_os("VGMEM_SIM_MACHINE") {
            let name = name.to_string_lossy().into_owned();
            if !ledger::is_name(&name) {
                let accepted = "a name of letters, digits, - and _";
                return Err(format!("VGMEM_SIM_MACHINE: {name} cannot be used: accepted is {accepted}"));
            }
            settings.machine = Some(name);
        }
        Ok(settings)
    }

    /// Reads a text like `gpus=8,mem=24G,link=nvlink4`.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            settings.set(key.trim(), value.trim()).map_err(|accepted| {
                format!("VGMEM_SIM: {key}={value} cannot be used: accepted is {accepted}")
            })?;
        }
        Ok(settings)
    }

    /// Bytes of memory of each GPU that can be had, in whole granules.
    pub fn gpu_memory(&self) -> u64 {
        self.memory & !(crate::memory::GRANULE - 1)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "gpus" => self.gpus = number(value, 0, 64).ok_or("gpus=0 to 64")? as u32,
            "mem" => {
                self.memory = size(value).filter(|s| *s >= 2 << 20).ok_or("mem=24G, 256M, at least 2M")?;
            }
            "context" => self.context = size(value).ok_or("context=0, 64M")?,
            "host" => self.host = size(value).ok_or("host=64G, 256M, 0")?,
            "link" => {
                self.link = match value {
                    "nvlink4" => Link::Nvlink4,
                    "pcie4" => Link::Pcie4,
                    "none" => Link::None,
                    _ => return Err("link=nvlink4, pcie4 or none".to_string()),
                };
            }
            "seed" => self.seed = number(value, 0, u64::MAX).ok_or("seed=0 and up")?,
            "driver" => {
                self.driver = number(value, 11000, 99999).ok_or("driver=11000 to 99999")? as u32;
            }
            "latency" => {
                let micros = number(value, 0, 10_000_000).ok_or("latency=0 to 10000000 (microseconds)")?;
                self.latency = Duration::from_micros(micros);
            }
            "membw" => {
                self.speed.0 = number(value, 1, 100_000_000).ok_or("membw=1 to 100000000 (MB/s)")?;
            }
            "l2" => self.speed.1 = size(value).filter(|s| *s < 1 << 31).ok_or("l2=50M, less than 2G")?,
            "fault" => {
                for one in value.split('+') {
                    self.faults.push(Fault::parse(one)?);
                }
            }
            _ => {
                return Err(
                    "gpus, mem, context, host, link, seed, driver, latency, membw, l2, fault".to_string()
                );
            }
        }
        Ok(())
    }
}

fn number(text: &str, least: u64, most: u64) -> Option<u64> {
    text.parse().ok().filter(|n| (least..=most).contains(n))
}

/// Reads `24G`, `256M`, `64K` or a number of bytes.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes <= 1 << 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read() {
        let text =
            "gpus=8, mem=256M,link=none,host=3G,seed=7,driver=12020,latency=5,fault=3:2+cuMemCreate#2:999";
        let settings = Settings::parse(text).unwrap();
        assert_eq!(settings.gpus, 8);
        assert_eq!(settings.memory, 256 << 20);
        assert_eq!(settings.host, 3 << 30);
        assert_eq!(settings.link, Link::None);
        assert_eq!(settings.seed, 7);
        assert_eq!(settings.driver, 12020);
        assert_eq!(settings.latency, Duration::from_micros(5));
        assert_eq!(settings.faults.len(), 2);
    }

    #[test]
    fn a_bad_value_is_named() {
        for (text, part) in [
            ("gpus=many", "gpus=many"),
            ("mem=1M", "mem=1M"),
            ("mem=-2G", "mem=-2G"),
            ("link=usb", "nvlink4, pcie4 or none"),
            ("seed=x", "seed=x"),
            ("driver=1", "driver=1"),
            ("fault=x", "fault="),
            ("colour=red", "gpus, mem"),
            ("gpus", "gpus="),
        ] {
            let line = Settings::parse(text).unwrap_err();
            assert!(line.contains(part), "{line}");
            assert!(line.starts_with("VGMEM_SIM: ") && !line.contains('\n'), "{line}");
        }
    }
}
