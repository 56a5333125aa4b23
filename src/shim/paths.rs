//! Other GPUs that copy for a home GPU over their own links to the host (`VGMEM_PATHS=auto`).
//!
//! A path is a context of ours on a GPU that the program does not use. It is never current on a thread of the program,
//! and it is no primary context: the program can neither see nor end it.

use crate::start::{self, Engine};
use crate::{ledger, pinning};

/// Opens all paths of a GPU, on a thread of its own: a context takes a few hundred milliseconds.
pub fn open(engine: &Engine, home: u8) {
    if !engine.settings.paths {
        return;
    }
    let work = move || {
        let Some(engine) = start::engine() else { return };
        for gpu in (0..engine.gpus.len() as u8).filter(|&gpu| gpu != home) {
            let known = &engine.gpus[usize::from(gpu)];
            if !known.pooled || engine.pool.is_used(gpu) || ledger::is_home_of_others(known.key) {
                continue;
            }
            let made = pinning::before_the_end(|| engine.pool.device().new_context(gpu));
            match made {
                None => return,
                Some(Ok(context)) => {
                    engine.pool.add_path(home, gpu, context);
                    log::info!("GPU {gpu} copies for GPU {home}");
                }
                Some(Err(error)) => {
                    log::info!("GPU {gpu} cannot copy for GPU {home} (error {})", error.code())
                }
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("vgmem-paths".into()).spawn(work) {
        log::debug!("no thread opens paths: {error}");
    }
}
