//! The walk over schemas: one change at a time of the models that have an operator.

use super::change::{
    Imported, graph, imported, input, node, of_wrong_type, retype, type_of, values, with_attribute, with_node,
};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Type;
use ipuc_formats::onnx::schema::ModelProto;
use prost::Message as _;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// What the walk found.
pub struct Report {
    /// A line an operator and version.
    pub table: String,
    /// Parts that are neither honoured nor refused by name.
    pub passed_over: BTreeSet<String>,
    /// Attributes, inputs, outputs and types that were looked at.
    pub parts: usize,
    /// Operators, with their version, of which no model is imported.
    pub without_model: BTreeSet<String>,
    /// Attributes of `com.microsoft` that no checked-in case has.
    pub without_case: BTreeSet<String>,
    /// Attributes, inputs and outputs that are refused: operator, and name.
    pub refused: BTreeSet<(String, String)>,
    /// Operators that are in no table.
    pub not_imported: BTreeSet<String>,
    /// Types of each variable that are honoured, by operator.
    pub types: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

/// A model of one node, and what it becomes.
struct Base {
    model: ModelProto,
    imported: Imported,
}

/// What became of the parts of one kind of an operator.
#[derive(Default)]
struct Tally {
    honoured: usize,
    refused: BTreeSet<String>,
    passed_over: BTreeSet<String>,
}

enum Outcome {
    Honoured,
    Refused,
    PassedOver,
}

impl Tally {
    fn add(&mut self, part: &str, outcome: &Outcome) {
        match outcome {
            Outcome::Honoured => self.honoured += 1,
            Outcome::Refused => drop(self.refused.insert(part.to_string())),
            Outcome::PassedOver => drop(self.passed_over.insert(part.to_string())),
        }
    }

    fn count(&self) -> usize {
        self.honoured + self.refused.len() + self.passed_over.len()
    }

    fn text(&self) -> String {
        let refused: Vec<&str> = self.refused.iter().map(String::as_str).collect();
        match refused.len() {
            0 => self.honoured.to_string(),
            count => format!("{}, refused {count} ({})", self.honoured, refused.join(" ")),
        }
    }
}

pub fn walk(written: &Path, contrib: &Path) -> Report {
    let schemas: Json = serde_json::from_slice(&std::fs::read(written.join("schemas.json")).unwrap()).unwrap();
    let models = models(&[&written.join("models"), contrib]);
    let mut report = Report {
        table: String::from("operator | attributes | inputs | outputs | types\n"),
        passed_over: BTreeSet::new(),
        parts: 0,
        without_model: BTreeSet::new(),
        without_case: without_case(&schemas, contrib),
        refused: BTreeSet::new(),
        not_imported: BTreeSet::new(),
        types: BTreeMap::new(),
    };
    let known: BTreeSet<(&str, &str)> = ipuc_passes::import::rows().iter().map(|row| (row.domain, row.name)).collect();
    for schema in schemas.as_array().unwrap() {
        let (domain, name) = (text(schema, "domain"), text(schema, "name"));
        let since = schema["since"].as_i64().unwrap();
        let dot = if domain.is_empty() { "" } else { "." };
        let operator = format!("{domain}{dot}{name}-{since}");
        if !known.contains(&(domain, name)) {
            writeln!(report.table, "{operator} | refused: it is in no table").unwrap();
            report.not_imported.insert(format!("{domain}{dot}{name}"));
            continue;
        }
        let models = models.get(&(domain.to_string(), name.to_string())).map_or(&[][..], Vec::as_slice);
        let bases = bases(models, domain, since);
        if bases.is_empty() {
            writeln!(report.table, "{operator} | no model of this version is imported").unwrap();
            report.without_model.insert(operator);
            continue;
        }
        let tallies = [
            attributes(schema, &bases),
            optional_inputs(schema, &bases),
            optional_outputs(schema, &bases),
            types(schema, &bases, report.types.entry(format!("{domain}{dot}{name}")).or_default()),
        ];
        let texts: Vec<String> = tallies.iter().map(Tally::text).collect();
        writeln!(report.table, "{operator} | {}", texts.join(" | ")).unwrap();
        for tally in tallies {
            report.parts += tally.count();
            let named = tally.refused.iter().filter(|part| !part.starts_with("type ") && *part != "one more input");
            let names = named.filter_map(|part| part.split(' ').nth(1));
            report.refused.extend(names.map(|part| (format!("{domain}{dot}{name}"), part.to_string())));
            report.passed_over.extend(tally.passed_over.iter().map(|part| format!("{domain}{dot}{name} {part}")));
        }
    }
    report
}

/// Attributes of operators of `com.microsoft` that are imported and that no case of one node has.
fn without_case(schemas: &Json, contrib: &Path) -> BTreeSet<String> {
    let mut given: BTreeSet<(String, String)> = BTreeSet::new();
    for ((domain, name), models) in models(&[contrib]) {
        for mut model in models {
            let attributes = node(&mut model).attribute.iter();
            given.extend(attributes.map(|attribute| (format!("{domain}.{name}"), attribute.name().to_string())));
        }
    }
    let known: BTreeSet<(&str, &str)> = ipuc_passes::import::rows().iter().map(|row| (row.domain, row.name)).collect();
    let mut missing = BTreeSet::new();
    for schema in schemas.as_array().unwrap() {
        let (domain, name) = (text(schema, "domain"), text(schema, "name"));
        if domain != "com.microsoft" || !known.contains(&(domain, name)) {
            continue;
        }
        for attribute in list(schema, "attributes") {
            let part = (format!("{domain}.{name}"), text(attribute, "name").to_string());
            if !given.contains(&part) {
                missing.insert(format!("{} attribute {}", part.0, part.1));
            }
        }
    }
    missing
}

fn text<'a>(json: &'a Json, field: &str) -> &'a str {
    json[field].as_str().unwrap()
}

fn list<'a>(json: &'a Json, field: &str) -> &'a [Json] {
    json[field].as_array().unwrap()
}

/// The models of one node in these folders, by operator.
fn models(folders: &[&Path]) -> BTreeMap<(String, String), Vec<ModelProto>> {
    let mut models: BTreeMap<_, Vec<ModelProto>> = BTreeMap::new();
    for folder in folders {
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "onnx"));
        paths.sort();
        for path in paths {
            let mut model = ModelProto::decode(&std::fs::read(path).unwrap()[..]).unwrap();
            if graph(&mut model).node.len() == 1 {
                let node = node(&mut model);
                let domain = if node.domain() == "ai.onnx" { "" } else { node.domain() };
                let key = (domain.to_string(), node.op_type().to_string());
                models.entry(key).or_default().push(model);
            }
        }
    }
    models
}

/// Those models that are imported with the operator in this version.
fn bases(models: &[ModelProto], domain: &str, since: i64) -> Vec<Base> {
    let at_version = |model: &ModelProto| {
        let mut model = model.clone();
        let imports = model.opset_import.iter_mut().filter(|import| import.domain() == domain);
        imports.for_each(|import| import.version = Some(since));
        imported(&model).ok().map(|imported| Base { model, imported })
    };
    models.iter().filter_map(at_version).collect()
}

/// Attributes: of a wrong type they are refused by name, and some value changes the graph or is refused.
fn attributes(schema: &Json, bases: &[Base]) -> Tally {
    let mut tally = Tally::default();
    for attribute in list(schema, "attributes") {
        let (name, kind) = (text(attribute, "name"), text(attribute, "type"));
        // It allows a runtime to overwrite operands, and changes no result.
        if name == "consumed_inputs" {
            continue;
        }
        let quoted = format!("`{name}`");
        let wrong = of_wrong_type(name, kind);
        let seen = bases.iter().any(|base| match imported(&with_attribute(&base.model, &wrong)) {
            Ok(_) => false,
            Err(error) => error.contains(&quoted),
        });
        // A value for which a model is refused that is imported without it counts: it is looked at.
        let texts: Vec<&str> = list(attribute, "texts").iter().filter_map(Json::as_str).collect();
        let values = values(name, kind, &texts);
        let (mut changes, mut refused) = (values.is_empty(), false);
        for (base, value) in bases.iter().flat_map(|base| values.iter().map(move |value| (base, value))) {
            if changes {
                break;
            }
            match imported(&with_attribute(&base.model, value)) {
                Ok(found) => changes |= found != base.imported,
                Err(error) => {
                    refused |= error.contains(&quoted);
                    changes |= !refused;
                }
            }
        }
        let outcome = match (seen, changes, refused) {
            (true, true, _) => Outcome::Honoured,
            (true, false, true) => Outcome::Refused,
            _ => Outcome::PassedOver,
        };
        tally.add(&format!("attribute {name}"), &outcome);
        for text in texts {
            tally.add(&format!("attribute {name} {text}"), &worded(bases, name, text));
        }
    }
    tally
}

/// A text that an attribute may be: some model has it, or it is refused by name.
fn worded(bases: &[Base], name: &str, text: &str) -> Outcome {
    let mut refused = false;
    for base in bases {
        match imported(&with_attribute(&base.model, &super::change::worded(name, text))) {
            Ok(_) => return Outcome::Honoured,
            Err(error) => refused |= error.contains(&format!("`{name}`")),
        }
    }
    if refused { Outcome::Refused } else { Outcome::PassedOver }
}

/// Optional inputs, and one more than there may be: read or refused.
fn optional_inputs(schema: &Json, bases: &[Base]) -> Tally {
    let mut tally = Tally::default();
    let inputs = list(schema, "inputs");
    for (index, port) in inputs.iter().enumerate().filter(|(_, port)| text(port, "option") == "Optional") {
        let types: Vec<&str> = list(port, "types").iter().filter_map(Json::as_str).collect();
        tally.add(&format!("input {}", text(port, "name")), &given(bases, index, text(port, "name"), &types));
    }
    if inputs.last().is_none_or(|port| text(port, "option") != "Variadic") {
        tally.add("one more input", &given(bases, inputs.len(), "one more", &["tensor(float)"]));
    }
    tally
}

/// What becomes of a model with an input in place of any there.
fn given(bases: &[Base], index: usize, name: &str, types: &[&str]) -> Outcome {
    let mut refused = false;
    for base in bases {
        let mut removed = base.model.clone();
        let operands = &mut node(&mut removed).input;
        if operands.get(index).is_some_and(|operand| !operand.is_empty()) {
            operands[index].clear();
            match imported(&removed) {
                Ok(found) if found == base.imported => return Outcome::PassedOver,
                // A model that needs the input, with its other operands and attributes, looks at it.
                Ok(_) | Err(_) => return Outcome::Honoured,
            }
        }
        for kind in types.iter().filter_map(|kind| type_of(kind)) {
            let mut model = base.model.clone();
            let operands = &mut node(&mut model).input;
            operands.resize(operands.len().max(index + 1), String::new());
            operands[index] = "given".to_string();
            graph(&mut model).input.push(input("given", kind));
            match imported(&model) {
                Ok(found) if found.steps == base.imported.steps => return Outcome::PassedOver,
                Ok(_) => return Outcome::Honoured,
                Err(error) => {
                    let named = [format!("`{name}`"), format!("operand {index} "), format!("input {index} ")];
                    refused |= named.iter().any(|named| error.contains(named)) || error.contains("operands, found");
                }
            }
        }
    }
    if refused { Outcome::Refused } else { Outcome::PassedOver }
}

/// Optional outputs: there, or refused.
fn optional_outputs(schema: &Json, bases: &[Base]) -> Tally {
    let mut tally = Tally::default();
    let outputs = list(schema, "outputs").iter().enumerate();
    for (index, port) in outputs.filter(|(_, port)| text(port, "option") == "Optional") {
        let name = text(port, "name");
        let mut outcome = Outcome::PassedOver;
        for base in bases {
            let model = with_node(&base.model, |node| {
                node.output.resize(node.output.len().max(index + 1), String::new());
                if node.output[index].is_empty() {
                    node.output[index] = "given".to_string();
                }
            });
            match imported(&model) {
                Ok(_) => {
                    outcome = Outcome::Honoured;
                    break;
                }
                Err(error) if error.contains(&format!("`{name}`")) || error.contains(&format!("output {index} (")) => {
                    outcome = Outcome::Refused;
                }
                Err(_) => {}
            }
        }
        tally.add(&format!("output {name}"), &outcome);
    }
    tally
}

/// Types of each variable: what is inferred is what the schema says, or the type is refused by its name.
fn types(schema: &Json, bases: &[Base], honoured: &mut BTreeMap<String, BTreeSet<String>>) -> Tally {
    let mut tally = Tally::default();
    // Bodies say themselves which types they take.
    if list(schema, "attributes").iter().any(|attribute| text(attribute, "type") == "GRAPH") {
        return tally;
    }
    let mut variables: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for port in list(schema, "inputs") {
        let types = list(port, "types").iter().filter_map(Json::as_str).collect();
        variables.insert(text(port, "variable"), types);
    }
    for (variable, types) in variables {
        for kind in types {
            let Some(outcome) = typed(schema, bases, variable, kind) else { continue };
            if matches!(outcome, Outcome::Honoured) {
                honoured.entry(variable.to_string()).or_default().insert(short(kind));
            }
            tally.add(&format!("type {variable} {kind}"), &outcome);
        }
    }
    tally
}

/// A type as this project writes it: `f32`, `seq(f32)`.
fn short(kind: &str) -> String {
    if let Some((around, inner)) = kind.split_once('(').filter(|(around, _)| *around != "tensor") {
        return format!("{around}({})", short(inner.strip_suffix(')').unwrap_or(inner)));
    }
    let element = kind.strip_prefix("tensor(").and_then(|kind| kind.strip_suffix(')')).unwrap_or(kind);
    let dtype = super::change::element_type(element).and_then(DType::from_onnx);
    dtype.map_or_else(|| element.to_string(), |dtype| dtype.name().to_string())
}

/// `None` where no model has an operand of the variable.
fn typed(schema: &Json, bases: &[Base], variable: &str, kind: &str) -> Option<Outcome> {
    let proto = type_of(kind)?;
    let element = kind.rsplit_once('(').map_or(kind, |(_, element)| element).trim_end_matches(')');
    let dtype = super::change::element_type(element).and_then(DType::from_onnx);
    let names = [dtype.map_or("", DType::name), element];
    let ports = list(schema, "inputs");
    let (mut walked, mut refused) = (false, false);
    for base in bases {
        let mut model = base.model.clone();
        let operands = node(&mut model).input.clone();
        let of_variable = |index: usize| ports.get(index).or(ports.last()).map(|port| text(port, "variable"));
        let bound: Vec<&String> = operands
            .iter()
            .enumerate()
            .filter(|(index, _)| of_variable(*index) == Some(variable))
            .map(|(_, name)| name)
            .collect();
        if bound.iter().all(|name| name.is_empty()) {
            continue;
        }
        walked = true;
        bound.iter().for_each(|name| retype(graph(&mut model), name, &proto));
        // What holds tensors binds them too: those of a sequence and what is inserted have one type.
        let held = format!("tensor({element})");
        if let Some(item) = type_of(&held).filter(|_| held != kind) {
            for (port, name) in ports.iter().zip(&operands).filter(|(port, _)| text(port, "variable") == "T") {
                if list(port, "types").iter().any(|kind| kind.as_str() == Some(&held)) {
                    retype(graph(&mut model), name, &item);
                }
            }
        }
        graph(&mut model).output.iter_mut().for_each(|output| output.r#type = None);
        match imported(&model) {
            Ok(found) => {
                let named = node(&mut model).output.clone();
                let ports = list(schema, "outputs").iter().zip(&named).filter(|(_, name)| !name.is_empty());
                let outputs = ports.map(|(port, _)| port).zip(&found.outputs);
                let mut of_variable = outputs.filter(|(port, _)| text(port, "variable") == variable);
                let fits = of_variable.all(|(_, found)| found.as_ref().is_none_or(|found| innermost(found) == dtype));
                return Some(if fits { Outcome::Honoured } else { Outcome::PassedOver });
            }
            Err(error) => refused |= names.iter().any(|name| !name.is_empty() && error.contains(name)),
        }
    }
    walked.then_some(if refused { Outcome::Refused } else { Outcome::PassedOver })
}

fn innermost(kind: &Type) -> Option<DType> {
    match kind {
        Type::Tensor { dtype, .. } => Some(*dtype),
        Type::Sequence(element) | Type::Optional(element) | Type::Map { element, .. } => innermost(element),
    }
}
