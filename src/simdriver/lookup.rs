//! Addresses for `cuGetProcAddress`.

use crate::exports::{Variant, variants};
use std::ffi::CStr;
use vgmem_sim::lookup::{Found, find};
use vgmem_sim::{Answer, Settings};

/// Version of the driver, which can be asked before it is initialised.
pub(crate) fn driver_version() -> u32 {
    match vgmem_sim::machine() {
        Ok(machine) => machine.settings.driver,
        Err(_) => Settings::from_environment().unwrap_or_default().driver,
    }
}

/// The function that is meant, or why there is none.
pub(crate) fn lookup(name: &CStr, version: i32, flags: u64) -> Answer<Result<&'static Variant, Found>> {
    // A name that is no UTF-8 is no function's; the empty name is none either.
    let found = find(name.to_str().unwrap_or(""), version, flags, driver_version())?;
    Ok(match found {
        Found::Symbol(symbol) => variants().find(|v| v.symbol == symbol).ok_or(Found::NoSuchName),
        none => Err(none),
    })
}
