//! The modules of a crate and the names that their files use, read with a parser of Rust.
//!
//! Paths count wherever they stand: in `use` of any nesting, in code, in macros, from `crate`, `super` or `self`. A name
//! that a module hands on (`pub use`) counts as a use of the file that defines it. Code for tests does not count.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use syn::visit::{self, Visit};

type ModulePath = Vec<String>;

/// One module: a file, or a module within one.
#[derive(Default)]
struct Module {
    /// Path of the file below the crate's sources.
    file: String,
    /// Names that are defined here.
    items: BTreeSet<String>,
    /// Names that `use` brings here, with what they stand for; handed on or not, modules below see them.
    imports: HashMap<String, Vec<String>>,
    /// What `use ..::*` brings here.
    globs: Vec<Vec<String>>,
    /// Paths as written, with `crate`, `super` and `self`.
    paths: BTreeSet<Vec<String>>,
}

/// The modules of one crate.
pub struct Crate {
    modules: BTreeMap<ModulePath, Module>,
    /// Files of macros that are exported to the root.
    macros: HashMap<String, String>,
}

/// One file's use of another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The file that uses, below the crate's sources.
    pub file: String,
    /// The top-level module that it names.
    pub module: Option<String>,
    /// The file that defines what it names.
    pub defined_in: String,
}

impl Crate {
    /// Read the modules that this file, `lib.rs` or `main.rs`, declares, and those that they declare.
    pub fn read(sources: &Path, root: &str) -> Crate {
        let mut read = Crate { modules: BTreeMap::new(), macros: HashMap::new() };
        let mut pending = vec![(Vec::new(), PathBuf::from(root))];
        while let Some((module, file)) = pending.pop() {
            let text = std::fs::read_to_string(sources.join(&file)).unwrap();
            let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let mut reader = Reader { krate: &mut read, module: module.clone(), file: &file, declared: Vec::new() };
            reader.enter(&[]);
            reader.visit_file(&syntax);
            let declared = reader.declared;
            let is_folder = file.file_name().unwrap() == "mod.rs" || module.is_empty();
            let folder = if is_folder { file.parent().unwrap().to_owned() } else { file.with_extension("") };
            for path in declared {
                let mut below = folder.clone();
                below.extend(&path[module.len()..]);
                let flat = below.with_extension("rs");
                let nested = below.join("mod.rs");
                pending.push((path, if sources.join(&flat).is_file() { flat } else { nested }));
            }
        }
        read
    }

    /// What files use of other files of the crate.
    pub fn uses(&self) -> BTreeSet<Use> {
        let mut uses = BTreeSet::new();
        for (place, module) in &self.modules {
            for path in &module.paths {
                let Some(path) = self.absolute(place, path, 0) else { continue };
                let defined_in = self.defining_file(&path, 0);
                let named = path.first().filter(|first| self.modules.contains_key(std::slice::from_ref(*first)));
                if defined_in != module.file {
                    uses.insert(Use { file: module.file.clone(), module: named.cloned(), defined_in });
                }
            }
        }
        uses
    }

    /// The path from the root of the crate; `None` for paths of other crates and of local names.
    fn absolute(&self, place: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        // Names that are brought from each other in a circle do not compile.
        assert!(depth < 32, "{place:?} brings {path:?} from itself");
        let join = |base: &[String], rest: &[String]| Some([base, rest].concat());
        match path.first()?.as_str() {
            "crate" => join(&[], &path[1..]),
            "self" if path.len() > 1 => self.absolute(place, &path[1..], depth + 1).or_else(|| join(place, &path[1..])),
            "self" => join(place, &[]),
            "super" => {
                let mut parent = place.split_last()?.1;
                let mut rest = &path[1..];
                while rest.first().is_some_and(|segment| segment == "super") {
                    (parent, rest) = (parent.split_last()?.1, &rest[1..]);
                }
                join(parent, rest)
            }
            first => {
                let child = [place, &[first.to_string()]].concat();
                if self.modules.contains_key(&child) {
                    return join(&child, &path[1..]);
                }
                let import = self.modules.get(place)?.imports.get(first)?;
                let base = if import == path { return None } else { self.absolute(place, import, depth + 1)? };
                join(&base, &path[1..])
            }
        }
    }

    fn defining_file(&self, path: &[String], depth: usize) -> String {
        let mut length = path.len();
        while !self.modules.contains_key(&path[..length]) {
            length -= 1;
        }
        let module = &self.modules[&path[..length]];
        let defined = path.get(length).and_then(|name| self.definition(&path[..length], name, depth));
        defined.unwrap_or_else(|| module.file.clone())
    }

    /// The file that defines a name of a module, also where the module only hands it on.
    fn definition(&self, place: &[String], name: &str, depth: usize) -> Option<String> {
        let module = self.modules.get(place)?;
        if depth > 16 {
            return None;
        }
        if module.items.contains(name) {
            return Some(module.file.clone());
        }
        if let Some(import) = module.imports.get(name) {
            let path = self.absolute(place, import, 0)?;
            return Some(self.defining_file(&path, depth + 1));
        }
        let globs = module.globs.iter().filter_map(|glob| self.absolute(place, glob, 0));
        let found = globs.filter_map(|glob| self.definition(&glob, name, depth + 1)).next();
        found.or_else(|| self.macros.get(name).filter(|_| place.is_empty()).cloned())
    }
}

/// A path in the tokens of a macro.
static PATH: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(?:crate|super|self)(?:\s*::\s*\w+)+").unwrap());
/// A definition in the tokens of a macro.
static ITEM: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b(?:struct|enum|trait|fn|const|static|type|union)\s+(\w+)").unwrap());

/// Reads one file.
struct Reader<'a> {
    krate: &'a mut Crate,
    module: ModulePath,
    file: &'a Path,
    /// Modules that have files of their own.
    declared: Vec<ModulePath>,
}

impl Reader<'_> {
    fn enter(&mut self, below: &[String]) {
        self.module.extend_from_slice(below);
        let file = self.file.to_string_lossy().into_owned();
        self.krate.modules.insert(self.module.clone(), Module { file, ..Module::default() });
    }

    fn current(&mut self) -> &mut Module {
        self.krate.modules.get_mut(&self.module).unwrap()
    }

    fn read_use(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.read_use(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_use(tree, before)),
            syn::UseTree::Name(name) => self.import(before, &name.ident.to_string(), None),
            syn::UseTree::Rename(rename) => {
                self.import(before, &rename.ident.to_string(), Some(rename.rename.to_string()));
            }
            syn::UseTree::Glob(_) => {
                self.current().globs.push(before.clone());
                self.current().paths.insert(before.clone());
            }
        }
    }

    fn import(&mut self, before: &[String], name: &str, rename: Option<String>) {
        let mut path = before.to_vec();
        let known = if name == "self" { before.last().cloned().unwrap_or_default() } else { name.to_string() };
        if name != "self" {
            path.push(name.to_string());
        }
        self.current().imports.insert(rename.unwrap_or(known), path.clone());
        self.current().paths.insert(path);
    }

    /// Macros are not expanded: what looks like a path or a definition in them is one.
    fn read_tokens(&mut self, tokens: &str) {
        for found in PATH.find_iter(tokens) {
            let path = found.as_str().split("::").map(|segment| segment.trim().to_string()).collect();
            self.current().paths.insert(path);
        }
        for found in ITEM.captures_iter(tokens) {
            self.current().items.insert(found[1].to_string());
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string() == "test",
        syn::Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<&syn::Ident> {
    match item {
        syn::Item::Const(item) => Some(&item.ident),
        syn::Item::Enum(item) => Some(&item.ident),
        syn::Item::Fn(item) => Some(&item.sig.ident),
        syn::Item::Macro(item) => item.ident.as_ref(),
        syn::Item::Static(item) => Some(&item.ident),
        syn::Item::Struct(item) => Some(&item.ident),
        syn::Item::Trait(item) => Some(&item.ident),
        syn::Item::Type(item) => Some(&item.ident),
        syn::Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes_of(item)) {
            return;
        }
        if let Some(name) = name_of(item) {
            self.current().items.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        if item.content.is_none() {
            self.declared.push([self.module.as_slice(), &[name]].concat());
            return;
        }
        self.enter(&[name]);
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.read_use(&item.tree, &mut Vec::new());
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if let (Some(name), true) = (&item.ident, item.attrs.iter().any(|one| one.path().is_ident("macro_export"))) {
            let file = self.file.to_string_lossy().into_owned();
            self.krate.macros.insert(name.to_string(), file);
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.current().paths.insert(segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.read_tokens(&call.tokens.to_string());
        visit::visit_macro(self, call);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(in super::x)` and `pub(crate)` are no uses.
    }
}
