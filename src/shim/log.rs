//! The log: one line a message, formatted on the stack, written with one `write`.
//!
//! No allocation, no lock, no buffer that a forked child could inherit half full.

use std::fmt::{self, Write};

use log::{LevelFilter, Log, Metadata, Record};

/// Longest line in bytes; what is longer is cut.
const LINE: usize = 1024;

/// A line under construction.
pub struct Line {
    bytes: [u8; LINE],
    used: usize,
}

impl Line {
    /// A line that begins with the library's name.
    pub fn new() -> Line {
        let mut line = Line { bytes: [0; LINE], used: 0 };
        let _ = line.write_str("vgmem: "); // it fits
        line
    }

    /// Ends the line and writes it to `file`, if it can be written.
    pub fn send(mut self, file: i32) {
        self.bytes[self.used] = b'\n';
        // SAFETY: `used` is below the buffer's length. A message that cannot be written is lost, by design.
        unsafe { libc::write(file, self.bytes.as_ptr().cast(), self.used + 1) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LINE - 1 - self.used; // one byte stays for the end of the line
        let count = text.len().min(room);
        self.bytes[self.used..self.used + count].copy_from_slice(&text.as_bytes()[..count]);
        self.used += count;
        Ok(())
    }
}

/// Writes one line to standard error whatever the level is.
pub fn say(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    let _ = line.write_fmt(text); // a value that cannot show itself is cut short
    line.send(libc::STDERR_FILENO);
}

struct Sink;

impl Log for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            say(*record.args());
        }
    }

    fn flush(&self) {}
}

static SINK: Sink = Sink;

/// Starts the log at a level. A second call changes the level only.
pub fn start(level: LevelFilter) {
    let _ = log::set_logger(&SINK); // fails only when it is set already
    log::set_max_level(level);
}
