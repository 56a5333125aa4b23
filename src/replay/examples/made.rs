//! Writes a made trace to the standard output, for `vgmem replay`; without a name, the names.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    match vgmem_replay::made::ALL.iter().find(|(made, _)| *made == name) {
        Some((_, make)) => write!(out, "{}", make()),
        None => vgmem_replay::made::ALL.iter().try_for_each(|(made, _)| writeln!(out, "{made}")),
    }
}
