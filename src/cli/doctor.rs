//! `vgmem doctor`: what would work here and what would not.

use crate::probe::Answer;
use crate::settings::{SETTINGS, Status, status};
use crate::{library, memory, probe, settings};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// What `vgmem doctor` takes.
#[derive(Args)]
pub struct Options {
    /// Another libvgmem.so than the one beside this command.
    #[arg(long)]
    library: Option<PathBuf>,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Fine,
    Note,
    Bad,
}

/// One line of the answer.
#[derive(Debug)]
struct Finding {
    weight: Weight,
    about: String,
    text: String,
}

/// The findings so far.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, weight: Weight, about: impl Into<String>, text: impl Into<String>) {
        self.0.push(Finding { weight, about: about.into(), text: text.into() });
    }

    fn print(&self) -> ExitCode {
        for finding in &self.0 {
            let word = match finding.weight {
                Weight::Fine => "ok",
                Weight::Note => "note",
                Weight::Bad => "FAIL",
            };
            println!("{word:<5} {:<9} {}", finding.about, finding.text);
        }
        ExitCode::from(u8::from(self.0.iter().any(|finding| finding.weight == Weight::Bad)))
    }
}

/// Looks at everything and prints it.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let mut findings = Findings::default();
    variables(&mut findings, &settings::present());
    match memory::host() {
        Ok(host) => host_memory(&mut findings, &host),
        Err(message) => findings.add(Weight::Note, "host", message),
    }
    let native = probe::start(None)?;
    driver(&mut findings, &native, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    match library::find(options.library.as_deref()) {
        Err(message) => findings.add(Weight::Bad, "library", message),
        Ok(path) => {
            let before = std::env::var_os("LD_PRELOAD");
            let ours = probe::start(Some(&library::preload(&path, before.as_deref())))?;
            loading(&mut findings, &path.display().to_string(), &native, &ours);
        }
    }
    Ok(findings.print())
}

fn variables(findings: &mut Findings, present: &[(String, String)]) {
    for (name, value) in present {
        match status(name) {
            Some(Status::Known(accepts)) => {
                findings.add(Weight::Fine, "setting", format!("{name}={value} (accepts {accepts})"));
            }
            Some(Status::Unknown) => {
                let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
                let text = format!("{name}={value} is no setting; there are {}", names.join(", "));
                findings.add(Weight::Bad, "setting", text);
            }
            Some(Status::Other) => {
                findings.add(Weight::Note, "setting", format!("{name}={value} is for tests"))
            }
            None => {}
        }
    }
    if present.is_empty() {
        findings.add(Weight::Fine, "setting", "none is set: the defaults hold");
    }
}

fn host_memory(findings: &mut Findings, host: &memory::Host) {
    let size = memory::size;
    let mut text = format!("{} of {} available", size(host.available), size(host.total));
    if let Some(group) = host.group {
        text.push_str(&format!("; the control group has {} left", size(group)));
    }
    text.push_str(&format!(": at most {} can be pinned", size(host.room())));
    findings.add(Weight::Fine, "host", text);
}

fn driver(findings: &mut Findings, native: &Answer, visible: Option<&str>) {
    if let Some(version) = native.version {
        let text = format!("made for CUDA {}.{}", version / 1000, version % 1000 / 10);
        findings.add(Weight::Fine, "driver", text);
    }
    if let Some(failure) = &native.failure {
        findings.add(Weight::Bad, "driver", failure.clone());
    }
    for (ordinal, gpu) in native.gpus.iter().enumerate() {
        findings.add(
            Weight::Fine,
            format!("GPU {ordinal}"),
            format!("{}, {}", gpu.name, memory::size(gpu.memory)),
        );
    }
    for (from, to) in &native.apart {
        let text =
            format!("GPU {from} cannot reach GPU {to}: pages of programs on {from} will not lie there");
        findings.add(Weight::Note, "peers", text);
    }
    if let Some(value) = visible {
        let text = format!("CUDA_VISIBLE_DEVICES={value}: GPUs that it hides are not in the pool");
        findings.add(Weight::Note, "hidden", text);
    }
}

fn loading(findings: &mut Findings, path: &str, native: &Answer, ours: &Answer) {
    if !ours.preloaded {
        findings.add(Weight::Bad, "library", format!("{path} is there, but the loader does not load it"));
    } else {
        findings.add(Weight::Fine, "library", format!("{path} loads into a program"));
    }
    match &ours.failure {
        Some(failure) if native.failure.is_none() => {
            findings.add(Weight::Bad, "library", format!("under the preload {failure}"));
        }
        None if ours.preloaded => {
            findings.add(
                Weight::Fine,
                "library",
                "under the preload and with these settings the driver starts",
            );
        }
        _ => {}
    }
    if let Some(bytes) = ours.host_budget {
        findings.add(Weight::Fine, "host", format!("{} of it are in the pool", memory::size(bytes)));
    }
    for line in &ours.errors {
        findings.add(Weight::Note, "library", format!("it says: {line}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Gpu;

    fn answer() -> Answer {
        let gpu = |name: &str| Gpu { name: name.to_owned(), memory: 24 << 30 };
        Answer { preloaded: true, version: Some(12040), gpus: vec![gpu("A"), gpu("B")], ..Answer::default() }
    }

    fn bad(findings: &Findings) -> Vec<&str> {
        let wrong = findings.0.iter().filter(|finding| finding.weight == Weight::Bad);
        wrong.map(|finding| finding.text.as_str()).collect()
    }

    #[test]
    fn a_good_machine_has_nothing_bad() {
        let mut findings = Findings::default();
        variables(&mut findings, &[("VGMEM_HOST".to_owned(), "64G".to_owned())]);
        driver(&mut findings, &answer(), None);
        loading(&mut findings, "/lib/libvgmem.so", &answer(), &answer());
        assert!(bad(&findings).is_empty(), "{:?}", findings.0);
        assert!(findings.0.iter().any(|finding| finding.text == "made for CUDA 12.4"));
        assert!(findings.0.iter().any(|finding| finding.about == "GPU 1" && finding.text == "B, 24.0 GiB"));
    }

    #[test]
    fn unknown_settings_are_named_with_the_known_ones() {
        let mut findings = Findings::default();
        variables(&mut findings, &[("VGMEM_HOSTS".to_owned(), "1".to_owned())]);
        assert!(bad(&findings)[0].contains("VGMEM_HOSTS=1") && bad(&findings)[0].contains("VGMEM_HOST,"));
    }

    #[test]
    fn no_driver_and_no_peers_are_said() {
        let mut findings = Findings::default();
        let native = Answer { failure: Some("no driver: x".to_owned()), ..Answer::default() };
        driver(&mut findings, &native, Some("0"));
        assert_eq!(bad(&findings), ["no driver: x"]);
        assert!(findings.0.iter().any(|finding| finding.about == "hidden"));
        driver(&mut findings, &Answer { apart: vec![(0, 1)], ..answer() }, None);
        assert!(findings.0.iter().any(|finding| finding.text.contains("GPU 0 cannot reach GPU 1")));
    }

    #[test]
    fn what_fails_only_under_the_preload_is_ours() {
        let mut findings = Findings::default();
        let ours = Answer { failure: Some("cuInit answers 1".to_owned()), ..answer() };
        loading(&mut findings, "l", &answer(), &ours);
        assert_eq!(bad(&findings), ["under the preload cuInit answers 1"]);
        let mut findings = Findings::default();
        loading(&mut findings, "l", &ours, &ours);
        assert!(bad(&findings).is_empty());
        let mut findings = Findings::default();
        loading(&mut findings, "l", &answer(), &Answer { preloaded: false, ..answer() });
        assert_eq!(bad(&findings).len(), 1);
    }
}
