//! Rules that are broken on purpose, to show that the tests would notice (`shim-tests/tests/broken.rs`).
//!
//! Only with the feature `broken`, which no library that users get is built with. Without it [`is`] is false for the
//! compiler as well, and nothing of this is left; a test looks that the shipped file does not know the variable.

/// Whether `VGMEM_TEST_BROKEN` names this rule.
#[cfg(feature = "broken")]
pub fn is(rule: &str) -> bool {
    static NAMED: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    NAMED.get_or_init(|| std::env::var_os("VGMEM_TEST_BROKEN")).as_ref().is_some_and(|named| named == rule)
}

/// No rule is broken.
#[cfg(not(feature = "broken"))]
#[inline(always)]
pub const fn is(_rule: &str) -> bool {
    false
}
