//! The limits of the house: sizes, unsafe code, exports, dependencies, what is committed.

use shim_tests::{skip, workspace};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const MOST_LINES_OF_A_FILE: usize = 499;
const MOST_LINES_OF_A_FUNCTION: usize = 69;
const WIDEST_LINE: usize = 120;
const LARGEST_FILE: u64 = 300 * 1024;
const MAY_EXPORT: [&str; 3] = ["src/shim", "src/simdriver", "src/simnvml"];
const MAY_DEPEND_ON: [&str; 7] =
    ["vgmem", "vgmem-abi", "vgmem-policy", "vgmem-engine", "libc", "log", "once_cell"];

fn rust_files(below: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())).flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&workspace().join(below), &mut found);
    found.sort();
    assert!(!found.is_empty(), "no Rust files in {below}");
    found
}

fn all_files() -> Vec<PathBuf> {
    [rust_files("src"), rust_files("shim-tests")].concat()
}

fn short(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap_or(path).display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
}

/// What one file does that the house does not allow.
#[derive(Default)]
struct Findings {
    file: String,
    /// Depth of `#[cfg(test)]` modules and `#[test]` functions around the node.
    tests: usize,
    long: Vec<String>,
    panics: Vec<String>,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let text = a.meta.path().segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
        let cfg_test = a.path().is_ident("cfg") && a.parse_args::<syn::Ident>().is_ok_and(|i| i == "test");
        text == "test" || cfg_test
    })
}

impl Findings {
    fn length(&mut self, name: &syn::Ident, item: proc_macro2::Span) {
        let lines = item.end().line + 1 - item.start().line;
        if lines > MOST_LINES_OF_A_FUNCTION {
            self.long.push(format!("{}:{} fn {name}: {lines} lines", self.file, item.start().line));
        }
    }

    fn panicking(&mut self, what: &str, span: proc_macro2::Span) {
        if self.tests == 0 {
            self.panics.push(format!("{}:{} {what}", self.file, span.start().line));
        }
    }

    /// Bodies of macros are no syntax tree yet: look at their tokens.
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        let mut before_dot = false;
        for token in tokens {
            match &token {
                proc_macro2::TokenTree::Ident(i) if before_dot && (i == "unwrap" || i == "expect") => {
                    self.panicking(&i.to_string(), i.span());
                }
                proc_macro2::TokenTree::Group(g) => self.tokens(g.stream()),
                _ => {}
            }
            before_dot = matches!(&token, proc_macro2::TokenTree::Punct(p) if p.as_char() == '.');
        }
    }
}

impl<'ast> Visit<'ast> for Findings {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.length(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or(item.span()));
        let test = usize::from(is_test(&item.attrs));
        self.tests += test;
        visit::visit_item_fn(self, item);
        self.tests -= test;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.length(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or(item.span()));
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.length(&item.sig.ident, item.span());
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let test = usize::from(is_test(&item.attrs));
        self.tests += test;
        visit::visit_item_mod(self, item);
        self.tests -= test;
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" || call.method == "expect" {
            self.panicking(&call.method.to_string(), call.method.span());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let name = item.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
        if ["panic", "todo", "unimplemented"].contains(&name.as_str()) {
            self.panicking(&format!("{name}!"), item.span());
        }
        self.tokens(item.tokens.clone());
    }
}

fn look(path: &Path) -> Findings {
    let parsed = syn::parse_file(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut findings = Findings { file: short(path), ..Findings::default() };
    findings.visit_file(&parsed);
    findings
}

#[test]
fn files_are_short() {
    let long = all_files().into_iter().filter_map(|path| {
        let lines = read(&path).lines().count();
        (lines > MOST_LINES_OF_A_FILE).then(|| format!("{}: {lines} lines", short(&path)))
    });
    none("files too long", &long.collect::<Vec<_>>());
}

/// The rows of the driver table are one line each whatever their width.
#[test]
fn lines_are_narrow() {
    let mut wide = Vec::new();
    for path in all_files().iter().filter(|p| !short(p).starts_with("src/abi/table/")) {
        for (number, line) in read(path).lines().enumerate() {
            if line.chars().count() > WIDEST_LINE {
                wide.push(format!("{}:{}", short(path), number + 1));
            }
        }
    }
    none("lines too wide", &wide);
}

#[test]
fn functions_are_short() {
    let long: Vec<_> = all_files().iter().flat_map(|p| look(p).long).collect();
    none("functions too long", &long);
}

/// Files of modules that are compiled for tests only.
fn test_modules(path: &Path) -> Vec<PathBuf> {
    let parsed = syn::parse_file(&read(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let folder = match stem {
        "lib" | "main" | "mod" => path.with_file_name(""),
        _ => path.with_extension(""),
    };
    let modules = parsed.items.iter().filter_map(|item| match item {
        syn::Item::Mod(m) if m.content.is_none() && is_test(&m.attrs) => Some(m.ident.to_string()),
        _ => None,
    });
    modules.flat_map(|m| [folder.join(format!("{m}.rs")), folder.join(m)]).collect()
}

/// In what is shipped. Tests, benchmarks and build scripts may panic.
#[test]
fn shipped_code_does_not_panic() {
    let tests: Vec<_> = rust_files("src").iter().flat_map(|p| test_modules(p)).collect();
    let shipped = rust_files("src").into_iter().filter(|p| {
        let name = short(p);
        let apart = ["/tests/", "/benches/"].iter().any(|f| name.contains(f)) || name.ends_with("/build.rs");
        !apart && !tests.iter().any(|t| p.starts_with(t))
    });
    let panics: Vec<_> = shipped.flat_map(|p| look(&p).panics).collect();
    none("code that can panic", &panics);
}

/// The finder itself: what it must and must not see.
#[test]
fn the_finder_finds() {
    let body = "x();\n".repeat(70);
    let source = format!(
        "fn long() {{\n{body}}}\nfn a() {{ b.unwrap(); }}\nmacro_rules! m {{ () => {{ c.expect(\"\") }}; }}\n\
         #[cfg(test)]\nmod tests {{ #[test]\nfn t() {{ d.unwrap(); panic!() }} }}\nfn e() {{ todo!() }}"
    );
    let mut findings = Findings::default();
    findings.visit_file(&syn::parse_file(&source).expect("it is Rust"));
    assert_eq!(findings.long.len(), 1, "{:?}", findings.long);
    assert_eq!(findings.panics.len(), 3, "{:?}", findings.panics);
}

/// Lines with `unsafe {` or `unsafe impl` that no comment with `SAFETY:` explains: the comment ends
/// directly above the statement that holds the block, or stands on the line itself.
fn unexplained(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        let opens = code.contains("unsafe {") || code.contains("unsafe impl");
        if opens && !code.contains("\"unsafe") && !line.contains("SAFETY:") && !explained(&lines, number) {
            found.push(number + 1);
        }
    }
    found
}

/// Goes up from a line to the start of its statement and reads the comment above.
fn explained(lines: &[&str], line: usize) -> bool {
    let mut at = line;
    while at > 0 {
        at -= 1;
        let above = lines[at];
        if above.starts_with("//") {
            let block = lines[..=at].iter().rev().take_while(|l| l.starts_with("//"));
            return block.into_iter().any(|l| l.contains("SAFETY:"));
        }
        if above.is_empty() || above.ends_with(';') || above.ends_with('}') {
            return false;
        }
        let goes_on = above.starts_with("let ") || above.contains("=> {") || above.contains("match ");
        if above.ends_with('{') && !goes_on {
            return false;
        }
    }
    false
}

#[test]
fn unsafe_code_is_explained() {
    let mut found = Vec::new();
    for path in all_files() {
        found.extend(unexplained(&read(&path)).iter().map(|n| format!("{}:{n}", short(&path))));
    }
    none("unsafe blocks without a SAFETY comment", &found);
    let example =
        "fn f() {\n    // SAFETY: because\n    let x =\n        unsafe { g() };\n    unsafe { h() }\n}\n";
    assert_eq!(unexplained(example), [5], "the finder sees what it should");
}

#[test]
fn policy_has_no_unsafe_code() {
    let text = read(&workspace().join("src/policy/lib.rs"));
    assert!(text.contains("#![forbid(unsafe_code)]"), "src/policy/lib.rs does not forbid unsafe code");
}

/// Exports in a library that both cdylibs link would be duplicates.
#[test]
fn only_the_libraries_export() {
    let mut found = Vec::new();
    for path in rust_files("src").into_iter().filter(|p| !MAY_EXPORT.iter().any(|m| short(p).starts_with(m)))
    {
        let text = read(&path);
        let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        found.extend(
            code.filter(|l| l.contains("no_mangle") || l.contains("export_name"))
                .map(|l| format!("{}: {l}", short(&path))),
        );
    }
    none("exports outside the libraries", &found);
}

/// `name version` and features of every package in the tree that `args` ask for.
fn tree(args: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .current_dir(workspace())
        .args(["tree", "--locked", "--prefix", "none", "-f", "{p}|{f}"])
        .args(args)
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut packages = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some((package, rest)) = line.split_once('|') else { continue };
        let name: Vec<_> = package.split(' ').take(2).collect();
        let features = rest.trim_end_matches(" (*)").split(',').filter(|f| !f.is_empty());
        packages.entry(name.join(" ")).or_insert_with(BTreeSet::new).extend(features.map(str::to_string));
    }
    packages
}

#[test]
fn the_library_depends_on_little() {
    let packages = tree(&["-p", "vgmem", "-e", "normal"]);
    let name = |p: &String| p.split(' ').next().unwrap_or("").to_string();
    let foreign: Vec<_> =
        packages.keys().map(name).filter(|n| !MAY_DEPEND_ON.contains(&n.as_str())).collect();
    assert!(packages.keys().any(|p| name(p) == "vgmem"), "the tree was not understood: {packages:?}");
    none("dependencies that the library may not have", &foreign);
}

/// Whatever else is built with it, the library is compiled from the same sources with the same
/// features: what is tested is what is shipped.
#[test]
fn features_do_not_depend_on_what_else_is_built() {
    let alone = tree(&["-p", "vgmem", "-e", "normal"]);
    for others in [&["--workspace"][..], &["-p", "vgmem", "-p", "vgmem-simdriver"], &[]] {
        let together = tree(&[others, &["-e", "normal,build"]].concat());
        for (package, features) in &alone {
            assert_eq!(together.get(package), Some(features), "features of {package} with {others:?}");
        }
    }
}

fn git_files() -> Option<Vec<PathBuf>> {
    let output = Command::new("git").current_dir(workspace()).args(["ls-files", "-z"]).output().ok()?;
    let names = String::from_utf8(output.stdout).ok()?;
    let files: Vec<_> = names.split('\0').filter(|n| !n.is_empty()).map(|n| workspace().join(n)).collect();
    (output.status.success() && !files.is_empty()).then_some(files)
}

#[test]
fn nothing_generated_is_committed() {
    let Some(files) = git_files() else {
        skip("nothing_generated_is_committed", "not a git checkout");
        return;
    };
    let mut found = Vec::new();
    for path in files.iter().filter(|p| p.is_file()) {
        let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let binary = bytes.starts_with(b"\x7fELF") || bytes.starts_with(b"!<arch>") || bytes.contains(&0);
        if binary || bytes.len() as u64 > LARGEST_FILE {
            found.push(format!("{}: {} bytes", short(path), bytes.len()));
        }
    }
    none("generated or large files", &found);
}
