//! What a signature at the root of `ipuc` names is there too: functions, methods, fields and variants of everything that
//! `src/lib.rs` exports are read as syntax.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::Visit;
use syn::{Fields, ImplItem, Item, ReturnType, Signature, TraitItem, UseTree, Visibility};

/// Names that no crate of this workspace defines, or that stand for another.
const FOREIGN: &[&str] = &[
    // Of `prost`, inside of an error.
    "DecodeError",
    "Arc",
    "AsRef",
    "BTreeMap",
    "BTreeSet",
    "Box",
    "Cow",
    "Deref",
    "Display",
    "Duration",
    "Error",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "Into",
    "IntoIterator",
    "Iterator",
    "Mutex",
    "Option",
    "Path",
    "PathBuf",
    "Range",
    "Read",
    "Result",
    "Self",
    "Send",
    "String",
    "Sync",
    "Vec",
    "Write",
    "bool",
    "char",
    "f32",
    "f64",
    "i128",
    "i32",
    "i64",
    "i8",
    "io",
    "std",
    "str",
    "u128",
    "u16",
    "u32",
    "u64",
    "u8",
    "usize",
];

/// What public items of one name in the sources of a crate name in their signatures. Several have one name where modules
/// keep them apart.
#[derive(Default)]
struct Named {
    /// In parameters and results of functions and methods.
    functions: BTreeSet<String>,
    /// In public fields of structs.
    fields: BTreeSet<String>,
    /// In variants of enums.
    variants: BTreeSet<String>,
}

/// All public items of a crate.
#[derive(Default)]
struct Sources {
    items: BTreeMap<String, Named>,
}

impl Sources {
    fn read(folder: &Path) -> Sources {
        let mut sources = Sources::default();
        let mut pending = vec![folder.to_owned()];
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                syn::parse_file(&text).unwrap().items.iter().for_each(|item| sources.add(item));
            }
        }
        sources
    }

    fn add(&mut self, item: &Item) {
        match item {
            Item::Struct(item) if is_public(&item.vis) => {
                let generics = parameters(&item.generics);
                let named = self.items.entry(item.ident.to_string()).or_default();
                fields(&item.fields, true, &generics, &mut named.fields);
            }
            Item::Enum(item) if is_public(&item.vis) => {
                let generics = parameters(&item.generics);
                let named = self.items.entry(item.ident.to_string()).or_default();
                item.variants.iter().for_each(|variant| fields(&variant.fields, false, &generics, &mut named.variants));
            }
            Item::Type(item) if is_public(&item.vis) => {
                let generics = parameters(&item.generics);
                let named = self.items.entry(item.ident.to_string()).or_default();
                named.functions.extend(names(&generics, |names| names.visit_type(&item.ty)));
            }
            Item::Trait(item) if is_public(&item.vis) => {
                let generics = parameters(&item.generics);
                let named = self.items.entry(item.ident.to_string()).or_default();
                for method in &item.items {
                    if let TraitItem::Fn(method) = method {
                        named.functions.extend(signature(&method.sig, &generics));
                    }
                }
            }
            Item::Fn(item) if is_public(&item.vis) => {
                let named = self.items.entry(item.sig.ident.to_string()).or_default();
                named.functions.extend(signature(&item.sig, &BTreeSet::new()));
            }
            Item::Impl(item) if item.trait_.is_none() => {
                let syn::Type::Path(of) = &*item.self_ty else { return };
                let generics = parameters(&item.generics);
                let named = self.items.entry(of.path.segments.last().unwrap().ident.to_string()).or_default();
                for method in &item.items {
                    if let ImplItem::Fn(method) = method
                        && is_public(&method.vis)
                    {
                        named.functions.extend(signature(&method.sig, &generics));
                    }
                }
            }
            _ => {}
        }
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn parameters(generics: &syn::Generics) -> BTreeSet<String> {
    let types = generics.type_params().map(|parameter| parameter.ident.to_string());
    types.chain(generics.const_params().map(|parameter| parameter.ident.to_string())).collect()
}

fn fields(all: &Fields, public_only: bool, generics: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    for field in all.iter().filter(|field| !public_only || is_public(&field.vis)) {
        found.extend(names(generics, |names| names.visit_type(&field.ty)));
    }
}

fn signature(signature: &Signature, generics: &BTreeSet<String>) -> BTreeSet<String> {
    let mut generics = generics.clone();
    generics.extend(parameters(&signature.generics));
    names(&generics, |names| {
        signature.inputs.iter().for_each(|input| names.visit_fn_arg(input));
        if let ReturnType::Type(_, kind) = &signature.output {
            names.visit_type(kind);
        }
        names.visit_generics(&signature.generics);
    })
}

/// Last names of paths to types.
struct Names(BTreeSet<String>);

impl<'ast> Visit<'ast> for Names {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        // `io::Error` and the like are of the standard library.
        let of_io = path.segments.len() > 1 && ["io", "std"].contains(&&*path.segments[0].ident.to_string());
        if let (false, Some(last)) = (of_io, path.segments.last()) {
            self.0.insert(last.ident.to_string());
        }
        syn::visit::visit_path(self, path);
    }

    /// Names of parameters are none of types.
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

fn names(generics: &BTreeSet<String>, visit: impl FnOnce(&mut Names)) -> BTreeSet<String> {
    let mut found = Names(BTreeSet::new());
    visit(&mut found);
    found.0.retain(|name| !generics.contains(name) && !FOREIGN.contains(&name.as_str()));
    found.0
}

/// Names that `pub use` brings, each with the first part of its path.
fn exported(tree: &UseTree, first: &str, found: &mut BTreeMap<String, String>) {
    match tree {
        UseTree::Path(path) if first.is_empty() => exported(&path.tree, &path.ident.to_string(), found),
        UseTree::Path(path) => exported(&path.tree, first, found),
        UseTree::Group(group) => group.items.iter().for_each(|tree| exported(tree, first, found)),
        UseTree::Name(name) => drop(found.insert(name.ident.to_string(), first.to_string())),
        UseTree::Rename(_) | UseTree::Glob(_) => {}
    }
}

/// What of each exported name's signatures is not exported.
fn missing(root: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let library = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let library = syn::parse_file(&library).unwrap();
    for item in &library.items {
        if let Item::Use(item) = item
            && is_public(&item.vis)
        {
            exported(&item.tree, "", &mut names);
        }
    }
    let [formats, runtime, own] = ["formats/src", "runtime/src", "src"].map(|folder| Sources::read(&root.join(folder)));
    let mut missing = BTreeMap::new();
    for (name, first) in &names {
        let (sources, of_contract) = match first.as_str() {
            "ipuc_formats" => (&formats, true),
            "ipuc_runtime" => (&runtime, false),
            // Passes have a face of their own.
            "ipuc_passes" => continue,
            _ => (&own, false),
        };
        let Some(named) = sources.items.get(name) else { continue };
        // Records of files are many, and all in `ipuc::formats::model`.
        let fields = named.fields.iter().filter(|_| !of_contract);
        // What the crate's own public modules hold is at hand already.
        let is_own = !matches!(first.as_str(), "ipuc_formats" | "ipuc_runtime");
        let own_modules = |used: &String| is_own && own.items.contains_key(used);
        let all = named
            .functions
            .iter()
            .chain(&named.variants)
            .chain(fields)
            .filter(|used| !names.contains_key(*used) && !own_modules(used));
        let all: BTreeSet<String> = all.cloned().collect();
        if !all.is_empty() {
            missing.insert(name.clone(), all);
        }
    }
    missing
}

#[test]
fn what_signatures_at_the_root_name_is_at_the_root() {
    let missing = missing(&PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    assert!(missing.is_empty(), "not exported, by who names it: {missing:#?}");
}
