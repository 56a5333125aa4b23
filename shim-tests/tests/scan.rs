//! The text of the scan kernel. That it becomes one C string is checked where it is compiled in.

const TEXT: &str = include_str!("../../src/shim/scan.ptx");

/// Lines without comments.
fn code() -> Vec<&'static str> {
    TEXT.lines().map(|line| line.split("//").next().unwrap_or("").trim()).filter(|l| !l.is_empty()).collect()
}

#[test]
fn the_text_is_one_kernel_with_the_parameters_that_launches_give() {
    let code = code();
    let entries: Vec<_> = code.iter().filter(|line| line.contains(".entry")).collect();
    assert_eq!(entries, [&".visible .entry vgmem_scan("]);
    let parameters: Vec<_> = code.iter().filter_map(|line| line.strip_prefix(".param ")).collect();
    assert_eq!(parameters, [".u64 address,", ".u64 words,", ".u64 low,", ".u64 high,", ".u64 result"]);
}

#[test]
fn every_driver_since_cuda_11_takes_the_text() {
    assert!(TEXT.is_ascii() && !TEXT.contains('\0'));
    assert_eq!(code()[..3], [".version 7.0", ".target sm_52", ".address_size 64"]);
}

/// What makes a wrong answer impossible: plain loads, unsigned comparisons, and one store that is the flag's.
#[test]
fn the_kernel_writes_nothing_but_its_flag() {
    let code = code();
    let of = |what: &str| code.iter().filter(|line| line.starts_with(what)).copied().collect::<Vec<_>>();
    assert_eq!(of("ld.global"), ["ld.global.u64 %word, [%at];"]);
    assert_eq!(of("st."), ["st.volatile.global.u32 [%found], %one;"]);
    assert!(of("atom").is_empty() && of("red").is_empty());
    assert!(of("setp").iter().all(|line| line.contains(".u64 ")), "signed or narrow comparisons");
}
