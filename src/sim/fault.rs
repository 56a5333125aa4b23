//! Calls that shall fail, chosen by `VGMEM_SIM=fault=...`.

use vgmem_abi::CUresult;

/// Which call shall fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The n-th call of any function, from 1.
    Call(u64),
    /// The n-th call of one exported symbol, from 1.
    Symbol(String, u64),
}

/// One call that shall fail, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The call.
    pub which: Which,
    /// What it answers.
    pub code: CUresult,
}

const ACCEPTED: &str = "fault=<call>:<code> or fault=<symbol>#<n>:<code>, several joined by +";

impl Fault {
    /// Reads `12:2` or `cuMemCreate#3:2`.
    pub fn parse(text: &str) -> Result<Fault, String> {
        let read = || {
            let (call, code) = text.split_once(':')?;
            let code: CUresult = code.parse().ok().filter(|code| *code != 0)?;
            let which = match call.split_once('#') {
                Some((symbol, nth)) => {
                    if !vgmem_abi::functions().any(|f| f.symbols().any(|s| s == symbol)) {
                        return None;
                    }
                    Which::Symbol(symbol.to_string(), nth.parse().ok().filter(|n| *n > 0)?)
                }
                None => Which::Call(call.parse().ok().filter(|n| *n > 0)?),
            };
            Some(Fault { which, code })
        };
        read().ok_or_else(|| ACCEPTED.to_string())
    }
}

/// What the call numbered `call`, the `nth` of `symbol`, shall answer instead of doing its work.
pub(crate) fn injected(faults: &[Fault], call: u64, symbol: &str, nth: u64) -> Option<CUresult> {
    let hit = faults.iter().find(|fault| match &fault.which {
        Which::Call(n) => *n == call,
        Which::Symbol(name, n) => name == symbol && *n == nth,
    });
    hit.map(|fault| fault.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_call_fails_and_no_other() {
        let faults = [Fault::parse("12:2").unwrap(), Fault::parse("cuMemCreate#3:999").unwrap()];
        assert_eq!(injected(&faults, 12, "cuInit", 1), Some(2));
        assert_eq!(injected(&faults, 13, "cuMemCreate", 3), Some(999));
        assert_eq!(injected(&faults, 13, "cuMemCreate", 2), None);
        assert_eq!(injected(&faults, 13, "cuMemRelease", 3), None);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for text in ["", "3", "3:0", "0:2", "cuNothing#1:2", "cuMemCreate#0:2", "cuMemCreate:2"] {
            assert!(Fault::parse(text).is_err(), "{text}");
        }
    }
}
