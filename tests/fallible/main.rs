//! Allocations whose size comes from a file or an input are fallible: what allocates infallibly (`vec![x; n]`,
//! `with_capacity`, `resize`, `repeat`, a range that is collected) has a size that is bounded by its form (`.len()` of what is in
//! memory, constants, their sums), or stands in `listed.txt` with the reason why it may.
//!
//! What is neither is to ask for its memory with `try_reserve`, as `room` and `filled` of `ipuc_formats::tensor` do.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use quote::ToTokens;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprMacro, ExprMethodCall, ImplItemFn, ItemFn, ItemMod, Token};

/// Sources of the program.
const FOLDERS: &[&str] = &["codes/src", "formats/src", "kernels/src", "pages/src", "passes/src", "runtime/src", "src"];

/// Names of files that only tests use.
const OF_TESTS: &[&str] = &["tests.rs", "testing.rs", "test_blocks.rs"];

/// Methods that give the size of what is in memory, or of axes, of which there are few.
const SIZES: &[&str] = &["len", "rank", "count"];

/// Macros of the standard library whose arguments are expressions.
const MACROS: &[&str] =
    &["assert", "assert_eq", "debug_assert", "debug_assert_eq", "format", "matches", "print", "write"];

fn text(expression: &impl ToTokens) -> String {
    expression.to_token_stream().to_string().replace(' ', "")
}

/// Whether a size is bounded by its form.
fn is_bounded(size: &Expr) -> bool {
    match size {
        Expr::Lit(_) => true,
        Expr::Paren(inner) => is_bounded(&inner.expr),
        Expr::Group(inner) => is_bounded(&inner.expr),
        Expr::Reference(inner) => is_bounded(&inner.expr),
        Expr::Cast(inner) => is_bounded(&inner.expr),
        Expr::Path(path) => {
            let name = path.path.segments.last().unwrap().ident.to_string();
            name == "rank" || name.chars().all(|letter| !letter.is_lowercase())
        }
        Expr::Call(call) => text(&call.func).contains("size_of"),
        Expr::Binary(binary) => {
            let (left, right) = (is_bounded(&binary.left), is_bounded(&binary.right));
            match binary.op {
                BinOp::Add(_) => left && right,
                BinOp::Sub(_) | BinOp::Div(_) | BinOp::Shr(_) => left,
                BinOp::Rem(_) => right,
                BinOp::Mul(_) => left && is_constant(&binary.right) || right && is_constant(&binary.left),
                _ => false,
            }
        }
        Expr::MethodCall(call) => {
            let name = call.method.to_string();
            let argument = call.args.first().is_some_and(is_bounded);
            match name.as_str() {
                "min" => is_bounded(&call.receiver) || argument,
                "max" => is_bounded(&call.receiver) && argument,
                "div_ceil" | "saturating_sub" => is_bounded(&call.receiver),
                "next_multiple_of" => is_bounded(&call.receiver) && argument,
                name => SIZES.contains(&name),
            }
        }
        _ => false,
    }
}

/// A number that stands in the source.
fn is_constant(size: &Expr) -> bool {
    match size {
        Expr::Lit(_) => true,
        Expr::Paren(inner) => is_constant(&inner.expr),
        Expr::Path(path) => {
            path.path.segments.last().unwrap().ident.to_string().chars().all(|letter| !letter.is_lowercase())
        }
        Expr::Call(call) => text(&call.func).contains("size_of"),
        Expr::Binary(binary) => is_constant(&binary.left) && is_constant(&binary.right),
        _ => false,
    }
}

/// The end of the range that an iterator begins with; a range without end has none.
fn range_end(iterator: &Expr) -> Option<&Expr> {
    match iterator {
        Expr::MethodCall(call)
            if ["take_while", "take", "zip", "filter"].contains(&call.method.to_string().as_str()) =>
        {
            None
        }
        Expr::MethodCall(call) => range_end(&call.receiver),
        Expr::Paren(inner) => range_end(&inner.expr),
        Expr::Range(range) => range.end.as_deref(),
        _ => None,
    }
}

/// The allocations of a file that are neither fallible nor bounded.
#[derive(Default)]
struct Found {
    file: String,
    functions: Vec<String>,
    /// What the function has asked for memory for.
    reserved: Vec<BTreeSet<String>>,
    sites: BTreeSet<String>,
}

impl Found {
    fn note(&mut self, size: &Expr) {
        if !is_bounded(size) {
            let function = self.functions.last().map_or("", String::as_str);
            self.sites.insert(format!("{} {function} {}", self.file, text(size)));
        }
    }

    fn inside(&mut self, name: String, body: impl FnOnce(&mut Found)) {
        self.functions.push(name);
        self.reserved.push(BTreeSet::new());
        body(self);
        self.reserved.pop();
        self.functions.pop();
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let attribute = text(attribute);
        attribute.contains("cfg(test)") || attribute.contains("cfg(all(test") || attribute == "#[test]"
    })
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_test(&function.attrs) {
            self.inside(function.sig.ident.to_string(), |found| visit::visit_item_fn(found, function));
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_test(&function.attrs) {
            self.inside(function.sig.ident.to_string(), |found| visit::visit_impl_item_fn(found, function));
        }
    }

    fn visit_expr_macro(&mut self, call: &'ast ExprMacro) {
        self.visit_macro(&call.mac);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let name = call.path.segments.last().unwrap().ident.to_string();
        if name == "vec" {
            let repeated = |input: syn::parse::ParseStream<'_>| {
                let element: Expr = input.parse()?;
                input.parse::<Token![;]>()?;
                Ok((element, input.parse::<Expr>()?))
            };
            if let Ok((element, size)) = call.parse_body_with(repeated) {
                self.note(&size);
                // The syntax tree of a macro lives no longer than this.
                let mut inner =
                    Found { file: self.file.clone(), functions: self.functions.clone(), ..Found::default() };
                inner.reserved.push(BTreeSet::new());
                inner.visit_expr(&element);
                self.sites.append(&mut inner.sites);
                return;
            }
        }
        if (name == "vec" || MACROS.contains(&name.as_str()))
            && let Ok(arguments) = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated)
        {
            let mut inner = Found { file: self.file.clone(), functions: self.functions.clone(), ..Found::default() };
            inner.reserved.push(BTreeSet::new());
            arguments.iter().for_each(|argument| inner.visit_expr(argument));
            self.sites.append(&mut inner.sites);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            let value = text(&init.expr);
            if ["room(", "listed("].iter().any(|fallible| value.contains(fallible)) {
                self.reserved.last_mut().unwrap().insert(name.ident.to_string());
            }
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let function = text(&call.func);
        if function.ends_with("::with_capacity") {
            call.args.iter().for_each(|size| self.note(size));
        }
        if function.ends_with("repeat_n") {
            call.args.iter().skip(1).for_each(|size| self.note(size));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let receiver = text(&call.receiver);
        match call.method.to_string().as_str() {
            "try_reserve" | "try_reserve_exact" => {
                self.reserved.last_mut().unwrap().insert(receiver);
            }
            "resize" | "resize_with" if call.args.len() == 2 && !self.reserved.last().unwrap().contains(&receiver) => {
                self.note(&call.args[0]);
            }
            "reserve" | "reserve_exact" | "repeat" if call.args.len() == 1 => self.note(&call.args[0]),
            "collect" => {
                if let Some(end) = range_end(&call.receiver) {
                    self.note(end);
                }
            }
            _ => {}
        }
        visit::visit_expr_method_call(self, call);
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && !OF_TESTS.contains(&name.as_str()) {
            found.push(path);
        }
    }
}

fn sites() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    let mut all = BTreeSet::new();
    for file in files {
        let syntax = syn::parse_file(&std::fs::read_to_string(&file).unwrap()).unwrap();
        if is_test(&syntax.attrs) {
            continue;
        }
        let file = file.strip_prefix(root).unwrap().to_str().unwrap().to_string();
        let mut found = Found { file, ..Found::default() };
        found.reserved.push(BTreeSet::new());
        found.visit_file(&syntax);
        all.append(&mut found.sites);
    }
    all
}

#[test]
fn sizes_from_files_and_inputs_are_asked_for() {
    let list =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fallible/listed.txt")).unwrap();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let listed: BTreeSet<String> = lines.map(|line| line.split_once("  ").unwrap().0.to_string()).collect();
    let found = sites();
    let new: Vec<&String> = found.difference(&listed).collect();
    assert!(new.is_empty(), "{} allocations are neither fallible nor bounded by their form: {new:#?}", new.len());
    let gone: Vec<&String> = listed.difference(&found).collect();
    assert!(gone.is_empty(), "these are no more and must leave the list: {gone:#?}");
}

#[test]
fn what_is_found() {
    let sizes = |body: &str| {
        let syntax = syn::parse_file(&format!("fn f() {{ {body} }}")).unwrap();
        let mut found = Found { reserved: vec![BTreeSet::new()], ..Found::default() };
        found.visit_file(&syntax);
        found.sites.into_iter().map(|site| site.trim().to_string()).collect::<Vec<String>>()
    };
    assert_eq!(sizes("let a = vec![0; count];"), ["f count"]);
    assert_eq!(sizes("let a = vec![vec![0; inner]; data.len()];"), ["f inner"]);
    assert_eq!(sizes("let a = Some(Vec::with_capacity(a * b));"), ["f a*b"]);
    assert_eq!(sizes("a.resize(n, 0);"), ["f n"]);
    assert_eq!(sizes("a.try_reserve_exact(n)?; a.resize(n, 0);"), [""; 0]);
    assert_eq!(sizes("let a: Vec<u8> = (0..n).map(|_| 0).collect();"), ["f n"]);
    assert_eq!(sizes("let a = vec![0; x.len() * 2 + LANES]; let b: Vec<_> = (0..x.len()).collect();"), [""; 0]);
}
