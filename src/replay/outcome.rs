//! What a replay found, for people and for programs.

use std::fmt;

use vgmem_engine::Freed;

use crate::bound::{Least, least};
use crate::device::{HOME, OUT};
use crate::foretold::foretold;
use crate::intervals::least_time;
use crate::losses::{LOOK, Loss, by_reason};
use crate::machine::{Machine, Nanos};
use crate::options::Options;
use crate::replay::{Mark, Replay};
use crate::steps::native;
use crate::trace::{Record, Trace};

/// Rounds of which the result is the mean: the last quarter.
const MEASURED: usize = 4;
/// Losses that are listed, the longest ones.
const LISTED: usize = 20;

/// What a replay found. Times are in nanoseconds, all amounts are of one round: the mean of the last quarter
/// of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// How long each round took.
    pub rounds: Vec<Nanos>,
    /// A round.
    pub time: Nanos,
    /// The same where everything fits.
    pub native: Nanos,
    /// All work, one after the other.
    pub work: Nanos,
    /// The longest of the native time, the time of the least that has to be fetched, and the least time of
    /// its phases.
    pub bound: Nanos,
    /// The same where all that goes is written back, and both ways share the link.
    pub bound_both: Nanos,
    /// The native time, or that of fetching once what does not fit.
    pub overflow_once: Nanos,
    /// Time and bytes fetched of a pager that knows the future and whose calls take no time; 0 where allocations
    /// come and go in a round, or on several GPUs.
    pub foretold: (Nanos, u64),
    /// The least bytes.
    pub least: Least,
    /// Bytes fetched.
    pub fetched: u64,
    /// Bytes sent away.
    pub evicted: u64,
    /// Pages fetched.
    pub pages_fetched: u64,
    /// Pages sent away.
    pub pages_evicted: u64,
    /// Bytes that kernels used where they lay, elsewhere.
    pub in_place: u64,
    /// How long launches waited for their pages.
    pub waited: Nanos,
    /// How long the first GPU's way out was busy.
    pub busy_out: Nanos,
    /// How long its way home was busy.
    pub busy_home: Nanos,
    /// Why its way home was idle, in the measured rounds.
    pub losses: Vec<Loss>,
    /// Rounds that were measured.
    pub measured: usize,
}

/// Replays a trace on a machine.
///
/// # Errors
/// One line that says what is wrong with the machine, the options or the trace.
pub fn replay(trace: &Trace, machine: &Machine, options: Options) -> Result<Outcome, String> {
    machine.check()?;
    if options.rounds == 0 || options.skip >= trace.records.len() {
        return Err("nothing to replay".to_string());
    }
    let mut run = Replay::new(trace, *machine, options);
    run.run()?;
    let last = options.rounds - 1;
    let measured = (options.rounds / MEASURED).max(1);
    let before = last.checked_sub(measured);
    let device = run.pool.device();
    let busy = [OUT, HOME].map(|lane| device.busy(0, lane));
    let mut outcome = measure(trace, machine, options, &run.rounds);
    let from = before.map_or(0, |round| run.rounds[round].end);
    let to = run.rounds[last].end;
    let count = measured as u64;
    let inside = |spans: &[(Nanos, Nanos)]| -> Nanos {
        spans.iter().map(|&(begin, end)| end.min(to).saturating_sub(begin.max(from))).sum()
    };
    outcome.busy_out = inside(&busy[OUT]) / count;
    outcome.busy_home = inside(&busy[HOME]) / count;
    outcome.losses = std::mem::take(&mut run.log).idle(&busy[HOME], from, to);
    run.finish()?;
    Ok(outcome)
}

fn measure(trace: &Trace, machine: &Machine, options: Options, rounds: &[Mark]) -> Outcome {
    let last = options.rounds - 1;
    let measured = (options.rounds / MEASURED).max(1);
    let count = measured as u64;
    let before = last.checked_sub(measured).map_or(Mark::default(), |round| rounds[round]);
    let after = rounds[last];
    let per_round = |before: u64, after: u64| after.saturating_sub(before) / count;
    let ends = native(trace, options.skip, options.rounds, machine);
    let native = per_round(last.checked_sub(measured).map_or(0, |round| ends[round]), ends[last]);
    let least_of = |capacity| {
        let all = least(trace, options.skip, options.rounds, capacity);
        let mean =
            |of: fn(&Least) -> u64| all[options.rounds - measured..].iter().map(of).sum::<u64>() / count;
        Least { fetched: mean(|l| l.fetched), evicted: mean(|l| l.evicted), used: mean(|l| l.used) }
    };
    let least = least_of(machine.memory);
    let link = |bytes: u64, rate: f64| (bytes as f64 / rate) as Nanos;
    let phases = if machine.gpus == 1 { least_time(trace, options.skip, machine) } else { 0 };
    let rate = machine.arrival_rate(least.used);
    let both = if machine.gpus == 1 { machine.rates.both } else { 2.0 * rate };
    // What no GPU has room for comes from the host at some time.
    let from_host = match machine.gpus {
        1 => 0,
        gpus => {
            let all = least_of(machine.memory * u64::from(gpus));
            link(all.fetched, machine.rates.link)
        }
    };
    let bound = native.max(link(least.fetched, rate)).max(from_host).max(phases);
    let foretold = if machine.gpus == 1 { foretold(trace, &options, machine) } else { None };
    let overflow = least.used.saturating_sub(machine.memory);
    let work = |record: &Record| match record {
        Record::Launch(_, work) | Record::Copy(_, work) => work.ns,
        _ => 0,
    };
    let starts = std::iter::once(0).chain(rounds.iter().map(|round| round.end));
    Outcome {
        rounds: rounds.iter().zip(starts).map(|(round, start)| round.end - start).collect(),
        time: per_round(before.end, after.end),
        native,
        work: trace.records[options.skip..].iter().map(work).sum(),
        bound,
        bound_both: bound.max(link(least.evicted, rate)).max(link(least.fetched + least.evicted, both)),
        overflow_once: native.max(link(overflow, rate)),
        foretold: foretold.unwrap_or_default(),
        least,
        fetched: per_round(before.bytes[HOME], after.bytes[HOME]),
        evicted: per_round(before.bytes[OUT], after.bytes[OUT]),
        pages_fetched: per_round(before.pages[HOME], after.pages[HOME]),
        pages_evicted: per_round(before.pages[OUT], after.pages[OUT]),
        in_place: per_round(before.in_place, after.in_place),
        waited: per_round(before.waited, after.waited),
        measured,
        ..Outcome::default()
    }
}

impl Replay<'_> {
    /// Frees everything: what is left then was lost.
    fn finish(mut self) -> Result<(), String> {
        self.settle_all();
        for address in self.addresses.values() {
            if self.pool.free(*address) != Freed::Done(Ok(())) {
                return Err("an allocation could not be freed".to_string());
            }
        }
        self.pool.release_unused();
        let (memory, mappings, wrong) = self.pool.device().books();
        if let Some(wrong) = wrong {
            return Err(format!("the engine did what no driver allows: {wrong}"));
        }
        if memory + mappings > 0 || self.pool.snapshot().lost > 0 {
            return Err(format!("{memory} pages of memory and {mappings} mappings are left over"));
        }
        Ok(())
    }
}

fn ms(ns: Nanos) -> f64 {
    ns as f64 / 1e6
}

fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 1.0 } else { a as f64 / b as f64 }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Outcome {
    /// Time against the bound.
    pub fn ratio(&self) -> f64 {
        ratio(self.time, self.bound)
    }

    /// Bytes fetched against the least.
    pub fn traffic(&self) -> f64 {
        ratio(self.fetched, self.least.fetched)
    }

    /// All numbers as one JSON object, without the losses' list.
    pub fn json(&self) -> String {
        let reasons: Vec<String> = by_reason(&self.losses)
            .into_iter()
            .map(|(reason, ns)| format!("\"{}\":{}", reason.words(), ns / self.measured.max(1) as u64))
            .collect();
        let rounds: Vec<String> = self.rounds.iter().map(u64::to_string).collect();
        let numbers = [
            ("time_ns", self.time),
            ("native_ns", self.native),
            ("work_ns", self.work),
            ("bound_ns", self.bound),
            ("bound_both_ns", self.bound_both),
            ("overflow_once_ns", self.overflow_once),
            ("foretold_ns", self.foretold.0),
            ("foretold_fetched_bytes", self.foretold.1),
            ("waited_ns", self.waited),
            ("busy_out_ns", self.busy_out),
            ("busy_home_ns", self.busy_home),
            ("fetched_bytes", self.fetched),
            ("least_fetched_bytes", self.least.fetched),
            ("evicted_bytes", self.evicted),
            ("least_evicted_bytes", self.least.evicted),
            ("used_bytes", self.least.used),
            ("in_place_bytes", self.in_place),
            ("pages_fetched", self.pages_fetched),
            ("pages_evicted", self.pages_evicted),
        ];
        let numbers: Vec<String> =
            numbers.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let (numbers, rounds, reasons) = (numbers.join(","), rounds.join(","), reasons.join(","));
        format!("{{{numbers},\"rounds_ns\":[{rounds}],\"idle_home_ns\":{{{reasons}}}}}")
    }

    /// When the way home was idle and why: sums, then the longest ones in order of time.
    pub fn timeline(&self, trace: &Trace) -> String {
        let mut text = "the way home idle, ms in a round\n".to_string();
        for (reason, ns) in by_reason(&self.losses) {
            text += &format!("{:>12.3}  {}\n", ms(ns) / self.measured.max(1) as f64, reason.words());
        }
        let mut longest: Vec<Loss> = Vec::new();
        for loss in self.losses.iter().filter(|loss| loss.ns >= LOOK) {
            match longest.last_mut() {
                Some(last) if last.joins(loss) => last.ns = loss.from + loss.ns - last.from,
                _ => longest.push(*loss),
            }
        }
        longest.sort_by_key(|loss| std::cmp::Reverse((loss.ns, loss.from)));
        longest.truncate(LISTED);
        longest.sort_by_key(|loss| loss.from);
        text += "\n   at, ms   for, ms  record  \n";
        for loss in longest {
            let what = match trace.records.get(loss.record) {
                Some(Record::Launch(function, _)) => trace.name(*function),
                Some(Record::Copy(..)) => "a copy",
                Some(Record::Wait(..)) => "waiting",
                _ => "",
            };
            let (at, long, record) = (ms(loss.from), ms(loss.ns), loss.record + 1);
            text += &format!("{at:>9.3} {long:>9.3} {record:>7}  {what}: {}\n", loss.reason.words());
        }
        text
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let time =
            |f: &mut fmt::Formatter, name: &str, ns: Nanos| writeln!(f, "{name:<34}{:>12.3} ms", ms(ns));
        time(f, "native, everything fits", self.native)?;
        time(f, "ours", self.time)?;
        time(f, "bound", self.bound)?;
        time(f, "bound with all written back", self.bound_both)?;
        time(f, "overflow fetched once", self.overflow_once)?;
        if self.foretold.0 > 0 {
            time(f, "the future known", self.foretold.0)?;
        }
        writeln!(f, "{:<34}{:>12.3}", "ours / bound", self.ratio())?;
        let least = |f: &mut fmt::Formatter, name: &str, bytes: u64, least: u64| {
            let (share, least, bytes) = (ratio(bytes, least), mib(least), mib(bytes));
            writeln!(f, "{name:<34}{bytes:>12.0} MiB  least {least:.0} MiB  {share:.3}")
        };
        least(f, "fetched", self.fetched, self.least.fetched)?;
        least(f, "evicted", self.evicted, self.least.evicted)?;
        if self.foretold.0 > 0 {
            writeln!(f, "{:<34}{:>12.0} MiB", "fetched, the future known", mib(self.foretold.1))?;
        }
        writeln!(f, "{:<34}{:>12}", "pages fetched", self.pages_fetched)?;
        writeln!(f, "{:<34}{:>12}", "pages evicted", self.pages_evicted)?;
        writeln!(f, "{:<34}{:>12.0} MiB", "used in place", mib(self.in_place))?;
        time(f, "launches waited", self.waited)?;
        time(f, "way out busy", self.busy_out)?;
        time(f, "way home busy", self.busy_home)?;
        let rounds: Vec<String> = self.rounds.iter().map(|ns| format!("{:.1}", ms(*ns))).collect();
        writeln!(f, "rounds, ms: {}", rounds.join(" "))
    }
}
