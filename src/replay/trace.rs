//! What a program did, one record a line.
//!
//! ```text
//! vgmem-trace 1
//! gpu <index> <bytes of its memory>
//! page <bytes of the largest page>
//! a <id> <gpu> <bytes>                            an allocation
//! f <id>                                          it is freed
//! n <function> <name>                             what a function is called
//! k <us> <stream> <function> <ns> <id+offset>...  a launch: when it was made, its time with all at home
//! m <us> <stream> <set|in|out|dev> <ns> <id+offset+bytes>...   a copy or memset, its destination first
//! w <us> <us>                                     the program waited for the GPU, from and to
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

/// First line of every trace.
const HEAD: &str = "vgmem-trace 1";

/// A part of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The allocation.
    pub id: u64,
    /// Bytes from its start.
    pub offset: u64,
    /// How many bytes; 0 in a launch, where nobody knows.
    pub bytes: u64,
}

/// What a copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A memset.
    Set,
    /// From the host's memory.
    In,
    /// To the host's memory.
    Out,
    /// Between device memory.
    Dev,
}

impl Kind {
    const ALL: [(Kind, &str); 4] =
        [(Kind::Set, "set"), (Kind::In, "in"), (Kind::Out, "out"), (Kind::Dev, "dev")];
}

/// Work that was given to a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// When it was submitted, in microseconds since the start.
    pub at: u64,
    /// Number of the stream.
    pub stream: u32,
    /// How long it ran with everything at home, in nanoseconds.
    pub ns: u64,
    /// What it names.
    pub operands: Vec<Operand>,
}

/// One thing that the program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An allocation was made.
    Allocate {
        /// Its number, never used again.
        id: u64,
        /// The GPU of the context that made it.
        gpu: u8,
        /// Its bytes.
        bytes: u64,
    },
    /// An allocation was freed.
    Free(u64),
    /// A launch of this function.
    Launch(u32, Work),
    /// A copy or memset.
    Copy(Kind, Work),
    /// The program waited for the GPU, from and to, in microseconds since the start.
    Wait(u64, u64),
}

/// A recorded program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Number and bytes of each GPU that it ran on.
    pub gpus: Vec<(u8, u64)>,
    /// Largest page of the pool that it ran in, in bytes; 0 is not known.
    pub page: u64,
    /// Names of functions.
    pub names: BTreeMap<u32, String>,
    /// What it did, in order.
    pub records: Vec<Record>,
}

impl Trace {
    /// The function's name as it was recorded.
    pub fn name(&self, function: u32) -> &str {
        self.names.get(&function).map_or("?", String::as_str)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{HEAD}")?;
        self.gpus.iter().try_for_each(|(gpu, bytes)| writeln!(f, "gpu {gpu} {bytes}"))?;
        if self.page > 0 {
            writeln!(f, "page {}", self.page)?;
        }
        self.names.iter().try_for_each(|(function, name)| writeln!(f, "n {function} {name}"))?;
        self.records.iter().try_for_each(|record| writeln!(f, "{record}"))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Record::Allocate { id, gpu, bytes } => write!(f, "a {id} {gpu} {bytes}"),
            Record::Free(id) => write!(f, "f {id}"),
            Record::Wait(from, to) => write!(f, "w {from} {to}"),
            Record::Launch(function, work) => {
                write!(f, "k {} {} {function} {}", work.at, work.stream, work.ns)?;
                work.operands.iter().try_for_each(|o| write!(f, " {}+{}", o.id, o.offset))
            }
            Record::Copy(kind, work) => {
                let word = Kind::ALL.iter().find(|(other, _)| other == kind).map_or("", |(_, word)| word);
                write!(f, "m {} {} {word} {}", work.at, work.stream, work.ns)?;
                work.operands.iter().try_for_each(|o| write!(f, " {}+{}+{}", o.id, o.offset, o.bytes))
            }
        }
    }
}

/// The words of one line that are still to be read.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().filter(|word| !word.is_empty()).ok_or_else(|| format!("{what} is missing"))
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("{what} is no number that fits: `{word}`"))
    }

    fn end(&mut self) -> Result<(), String> {
        self.0.next().map_or(Ok(()), |word| Err(format!("`{word}` is one word too many")))
    }

    /// The rest of the line: `id+offset`, or `id+offset+bytes` where they are `sized`.
    fn operands(&mut self, sized: bool, made: &HashMap<u64, u64>) -> Result<Vec<Operand>, String> {
        let read = |word: &str| {
            let parts: Option<Vec<u64>> = word.split('+').map(|part| part.parse().ok()).collect();
            let operand = match (parts.as_deref(), sized) {
                (Some(&[id, offset]), false) => Operand { id, offset, bytes: 0 },
                (Some(&[id, offset, bytes]), true) => Operand { id, offset, bytes },
                _ => return Err(format!("`{word}` is no operand")),
            };
            match made.get(&operand.id) {
                None => Err(format!("`{word}` names an allocation that was never made")),
                Some(&size) if operand.offset.saturating_add(operand.bytes) > size => {
                    Err(format!("`{word}` lies beyond its allocation"))
                }
                Some(_) => Ok(operand),
            }
        };
        self.0.by_ref().map(read).collect()
    }
}

impl FromStr for Trace {
    type Err = String;

    /// Reads a whole trace. The error is one line that names the line of the trace.
    fn from_str(text: &str) -> Result<Trace, String> {
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, HEAD)) => {}
            Some((_, line)) if line.starts_with("vgmem-trace ") => {
                return Err(format!("line 1: `{line}` is of another version than `{HEAD}`"));
            }
            _ => return Err(format!("line 1: no trace: `{HEAD}` is missing")),
        }
        let mut trace = Trace::default();
        let mut made = HashMap::new();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty()) {
            trace.read(line, &mut made).map_err(|error| format!("line {}: {error}", index + 1))?;
        }
        Ok(trace)
    }
}

impl Trace {
    fn read(&mut self, line: &str, made: &mut HashMap<u64, u64>) -> Result<(), String> {
        let mut words = Words(line.split(' '));
        let record = match words.word("the first word")? {
            "gpu" => {
                self.gpus.push((words.number("the GPU")?, words.number("its bytes")?));
                return words.end();
            }
            "page" => {
                self.page = words.number("the page's bytes")?;
                return words.end();
            }
            "n" => {
                let function = words.number("the function")?;
                self.names.insert(function, words.0.collect::<Vec<_>>().join(" "));
                return Ok(());
            }
            "a" => {
                let (id, gpu) = (words.number("the allocation")?, words.number("the GPU")?);
                let bytes: u64 = words.number("its bytes")?;
                if bytes == 0 || made.insert(id, bytes).is_some() {
                    return Err(format!("allocation {id} has no bytes or was made before"));
                }
                Record::Allocate { id, gpu, bytes }
            }
            "f" => {
                let id = words.number("the allocation")?;
                if !made.contains_key(&id) {
                    return Err(format!("allocation {id} was never made"));
                }
                Record::Free(id)
            }
            "k" => {
                let (at, stream) = (words.number("the time")?, words.number("the stream")?);
                let (function, ns) = (words.number("the function")?, words.number("the duration")?);
                Record::Launch(function, Work { at, stream, ns, operands: words.operands(false, made)? })
            }
            "m" => {
                let (at, stream) = (words.number("the time")?, words.number("the stream")?);
                let word = words.word("the kind")?;
                let kind = Kind::ALL.iter().find(|(_, known)| *known == word);
                let (kind, _) = kind.ok_or_else(|| format!("`{word}` is no kind of copy"))?;
                let ns = words.number("the duration")?;
                Record::Copy(*kind, Work { at, stream, ns, operands: words.operands(true, made)? })
            }
            "w" => {
                let (from, to) = (words.number("the begin")?, words.number("the end")?);
                if from > to {
                    return Err(format!("a wait from {from} to {to} ends before it begins"));
                }
                Record::Wait(from, to)
            }
            // What the pager did when it was recorded: it does it anew.
            "c" | "d" | "e" | "s" => return Ok(()),
            word => return Err(format!("`{word}` begins no record")),
        };
        words.end()?;
        self.records.push(record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "vgmem-trace 1\ngpu 0 8589934592\npage 33554432\nn 3 a name of three\na 1 0 4096\n\
        a 2 0 512\n\
        k 10 0 3 1500 1+0 2+256\nm 20 1 in 700 1+16+100\nm 21 1 set 5 2+0+512\nw 30 45\nf 1\nf 2\n";

    #[test]
    fn a_trace_is_read_and_written_back() {
        let trace: Trace = TEXT.parse().unwrap();
        assert_eq!(trace.to_string(), TEXT);
        assert_eq!(trace.name(3), "a name of three");
        assert_eq!(trace.records.len(), 8);
        assert_eq!(trace.to_string().parse::<Trace>().unwrap(), trace);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (line, says) in [
            ("x 1", "line 2: `x` begins no record"),
            ("a 1 0", "line 2: its bytes is missing"),
            ("a 1 0 -4", "line 2: its bytes is no number that fits: `-4`"),
            ("a 1 300 4", "line 2: the GPU is no number that fits: `300`"),
            ("a 1 0 0", "line 2: allocation 1 has no bytes or was made before"),
            ("f 9", "line 2: allocation 9 was never made"),
            ("f 9 9", "line 2: allocation 9 was never made"),
            ("k 1 0 1 5 7+0", "line 2: `7+0` names an allocation that was never made"),
            ("k 1 0 1 5 7", "line 2: `7` is no operand"),
            ("m 1 0 up 5", "line 2: `up` is no kind of copy"),
            ("w 5 4", "line 2: a wait from 5 to 4 ends before it begins"),
            ("w 5 6 7", "line 2: `7` is one word too many"),
        ] {
            assert_eq!(format!("{HEAD}\n{line}\n").parse::<Trace>().unwrap_err(), says);
        }
        let beyond = format!("{HEAD}\na 1 0 8\nm 1 0 out 5 1+4+5\n").parse::<Trace>().unwrap_err();
        assert_eq!(beyond, "line 3: `1+4+5` lies beyond its allocation");
        assert!("".parse::<Trace>().unwrap_err().starts_with("line 1: no trace"));
        assert!("vgmem-trace 2\n".parse::<Trace>().unwrap_err().contains("another version"));
    }
}
