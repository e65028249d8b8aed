//! Reads a component's outside (imports, exports) and its measures, without compiling it.

use super::{Remark, kind};
use crate::host::OFFERED;
use crate::limits::{Limits, SizeClass};
use portolan_policy::QuestionKind;
use wasmparser::{CanonicalOption, ComponentTypeRef, Parser, Payload, Validator, WasmFeatures};

/// The contract's version that this host serves: any patch release of it.
const SERVED: &str = "0.1";
/// As [`SERVED`], in full, for messages.
const SERVED_FULL: &str = "portolan:policy@0.1.0";
const NAMESPACE: &str = "portolan:policy/";
/// The system interface, of which policies have nothing.
const WASI: &str = "wasi:";

/// Instances of components within a component, and such components. Validation makes all types of an instance anew: 900
/// instances of one that imports a thousand functions took two gigabytes. QuickJS with its stubs has 25 of each, what
/// Rust and C are built to has two.
const INNER_MAX: usize = 128;

/// Characters of a name that a remark shows: the longest name of an interface of WASI has 40.
const NAME_SHOWN: usize = 100;

/// Names that a remark lists: as many interfaces as a standard library brings.
const NAMES_SHOWN: usize = 24;

/// Imports of which each has a remark of its own.
const REMARKS_MAX: usize = 24;

/// What a component looks like from outside, and how large its parts are.
#[derive(Debug, Default)]
pub(crate) struct Structure {
    imports: Vec<(String, bool)>,
    exports: Vec<String>,
    bytes: usize,
    memories: usize,
    tables: usize,
    core_instances: usize,
    functions: usize,
    components: usize,
    largest_function: usize,
    other_strings: bool,
}

/// The features a policy may use, for validation before compiling.
fn features() -> WasmFeatures {
    WasmFeatures::WASM2
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::COMPONENT_MODEL
}

/// Validates and reads a component.
pub(crate) fn read(component: &[u8]) -> Result<Structure, Remark> {
    let invalid = |error: &wasmparser::BinaryReaderError| {
        if error.message().contains("unexpected end") {
            return kind::truncated(component.len());
        }
        Remark::new(
            "invalid",
            format!(
                "the component is not valid at byte {}: {}",
                error.offset(),
                error.message()
            ),
            "policies may use WebAssembly 2.0 and tail calls; rebuild without newer or experimental features",
        )
    };
    let inner = inner_parts(component).map_err(|e| invalid(&e))?;
    if inner > INNER_MAX {
        return Err(Remark::new(
            "too-many-components",
            format!(
                "the component holds {inner} components and instances of them, at most {INNER_MAX} are read"
            ),
            "link the policy into one core module",
        ));
    }
    Validator::new_with_features(features())
        .validate_all(component)
        .map_err(|e| invalid(&e))?;
    let mut structure = Structure {
        bytes: component.len(),
        ..Structure::default()
    };
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        let payload = payload.map_err(|e| invalid(&e))?;
        match &payload {
            Payload::ModuleSection { .. } => depth += 1,
            Payload::ComponentSection { .. } => {
                depth += 1;
                structure.components += 1;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            _ => structure.note(&payload, depth).map_err(|e| invalid(&e))?,
        }
    }
    Ok(structure)
}

/// Counts components within a component and their instances, in one pass that makes no types.
fn inner_parts(component: &[u8]) -> wasmparser::Result<usize> {
    let mut found = 0;
    for payload in Parser::new(0).parse_all(component) {
        found += match payload? {
            Payload::ComponentSection { .. } => 1,
            Payload::ComponentInstanceSection(instances) => instances.count() as usize,
            _ => 0,
        };
    }
    Ok(found)
}

impl Structure {
    fn note(&mut self, payload: &Payload<'_>, depth: usize) -> wasmparser::Result<()> {
        match payload {
            Payload::ComponentImportSection(imports) if depth == 0 => {
                for import in imports.clone() {
                    let import = import?;
                    let is_instance = matches!(import.ty, ComponentTypeRef::Instance(_));
                    self.imports.push((import.name.name.to_owned(), is_instance));
                }
            }
            Payload::ComponentExportSection(exports) if depth == 0 => {
                for export in exports.clone() {
                    self.exports.push(export?.name.name.to_owned());
                }
            }
            Payload::MemorySection(memories) => self.memories += memories.count() as usize,
            Payload::FunctionSection(functions) => self.functions += functions.count() as usize,
            Payload::TableSection(tables) => self.tables += tables.count() as usize,
            Payload::InstanceSection(instances) => self.count_instances(instances.clone())?,
            Payload::CodeSectionEntry(body) => {
                let range = body.range();
                let bytes = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                self.largest_function = self.largest_function.max(bytes);
            }
            Payload::ComponentCanonicalSection(functions) => {
                for function in functions.clone() {
                    self.note_strings(&function?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn count_instances(
        &mut self,
        instances: wasmparser::InstanceSectionReader<'_>,
    ) -> wasmparser::Result<()> {
        for instance in instances {
            if matches!(instance?, wasmparser::Instance::Instantiate { .. }) {
                self.core_instances += 1;
            }
        }
        Ok(())
    }

    fn note_strings(&mut self, function: &wasmparser::CanonicalFunction) {
        let options = match function {
            wasmparser::CanonicalFunction::Lift { options, .. }
            | wasmparser::CanonicalFunction::Lower { options, .. } => options,
            _ => return,
        };
        let other = |o: &CanonicalOption| matches!(o, CanonicalOption::UTF16 | CanonicalOption::CompactUTF16);
        self.other_strings |= options.iter().any(other);
    }

    /// Every reason why this cannot be a policy.
    pub(crate) fn objections(&self, asked: Option<QuestionKind>, limits: &Limits) -> Vec<Remark> {
        let imports = self
            .imports
            .iter()
            .filter_map(|(name, is_instance)| import_remark(name, *is_instance));
        imports
            .take(REMARKS_MAX)
            .chain(self.wasi_remark())
            .chain(self.export_remark(asked))
            .chain(self.measure_remarks(limits))
            .collect()
    }

    /// One remark for all of WASI: a standard library brings a dozen interfaces at once.
    fn wasi_remark(&self) -> Option<Remark> {
        let names: Vec<&str> = self
            .imports
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| name.starts_with(WASI))
            .collect();
        (!names.is_empty()).then(|| {
            Remark::new(
                "wasi-import",
                format!(
                    "the component imports {}; policies have no WASI: no files, clocks, randomness or sockets",
                    listed(&names)
                ),
                "Rust: build for wasm32-unknown-unknown instead of wasm32-wasip2; JavaScript: componentize-qjs \
                 --stub-wasi --sync; Python: componentize-py --stub-wasi; what cannot be built anew: `portolan policy \
                 fix policy.wasm -o fixed.wasm`",
            )
        })
    }

    /// The question it answers: the one asked for if it is among them, or the only one.
    pub(crate) fn question(&self, asked: Option<QuestionKind>) -> Option<QuestionKind> {
        let answered = self.answered();
        match asked {
            Some(asked) => answered
                .contains(&asked)
                .then_some(asked)
                .or_else(|| answered.first().copied()),
            None => answered.first().copied(),
        }
    }

    fn answered(&self) -> Vec<QuestionKind> {
        let exported = |q: &QuestionKind| self.served(&format!("{q}-policy"));
        QuestionKind::ALL.into_iter().filter(exported).collect()
    }

    fn served(&self, interface: &str) -> bool {
        self.exports
            .iter()
            .any(|name| matches!(contract(name), Some((i, v)) if i == interface && serves(v)))
    }

    fn export_remark(&self, asked: Option<QuestionKind>) -> Vec<Remark> {
        if let Some(other) = self
            .exports
            .iter()
            .find(|n| matches!(contract(n), Some((_, v)) if !serves(v)))
        {
            return vec![wit_version("exports", other)];
        }
        let answered = self.answered();
        let mut remarks = Vec::new();
        match (answered.as_slice(), asked) {
            ([], _) => remarks.push(self.no_question()),
            ([_, _, ..], None) => remarks.push(Remark::new(
                "several-questions",
                format!(
                    "the component answers {}; which is meant was not said",
                    list(&answered)
                ),
                "name the question, or build one component for each",
            )),
            (_, Some(asked)) if !answered.contains(&asked) => remarks.push(Remark::new(
                "other-question",
                format!("the component answers {}, but {asked} is wanted", list(&answered)),
                format!(
                    "bind it as {}, or build it for the world `{asked}` of {SERVED_FULL}",
                    list(&answered)
                ),
            )),
            _ => {}
        }
        if !answered.is_empty() && !self.served("lifecycle") {
            remarks.push(Remark::new(
                "no-lifecycle",
                "the component does not export portolan:policy/lifecycle@0.1.0, through which it is configured",
                "build it for one of the contract's worlds; the SDK's macro exports lifecycle by itself",
            ));
        }
        remarks
    }

    fn no_question(&self) -> Remark {
        let found = if self.exports.is_empty() {
            "nothing".to_owned()
        } else {
            listed(&self.exports)
        };
        Remark::new(
            "no-question",
            format!("the component answers none of the four questions; it exports {found}"),
            format!("build it for the world residency, cost, routing or invalidation of {SERVED_FULL}"),
        )
    }

    fn measure_remarks(&self, limits: &Limits) -> Vec<Remark> {
        let class = SizeClass::of(self.bytes);
        let measures = [
            (
                "too-many-memories",
                "memories",
                self.memories,
                limits.memories_for(class),
            ),
            ("too-many-tables", "tables", self.tables, limits.tables as usize),
            (
                "too-many-instances",
                "core instances",
                self.core_instances,
                limits.core_instances_for(class),
            ),
            (
                "too-many-functions",
                "functions",
                self.functions,
                limits.functions as usize,
            ),
            (
                "too-many-components",
                "components within it",
                self.components,
                limits.nested_components as usize,
            ),
        ];
        let mut remarks: Vec<_> = measures
            .into_iter()
            .filter(|(_, _, found, most)| found > most)
            .map(|(code, what, found, most)| {
                Remark::new(
                    code,
                    format!("the component has {found} {what}, at most {most} are allowed"),
                    "link the policy into one core module",
                )
            })
            .collect();
        if self.largest_function > limits.function_bytes {
            remarks.push(Remark::new(
                "function-too-large",
                format!(
                    "one function has {} bytes, at most {} are compiled",
                    self.largest_function, limits.function_bytes
                ),
                "lower the inlining (opt-level \"s\"), or move large tables from code into data",
            ));
        }
        if self.other_strings {
            remarks.push(Remark::new(
                "string-encoding",
                "the component passes strings as UTF-16 or Latin-1",
                "build it with UTF-8 strings; only these are taken",
            ));
        }
        remarks
    }
}

/// Interface and version of a name in this contract's package.
fn contract(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix(NAMESPACE)?;
    Some(rest.split_once('@').unwrap_or((rest, "")))
}

fn serves(version: &str) -> bool {
    version
        .strip_prefix(SERVED)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn import_remark(name: &str, is_instance: bool) -> Option<Remark> {
    let interface = name.split('@').next().unwrap_or(name);
    if OFFERED.contains(&interface) && is_instance {
        let (_, version) = contract(name)?;
        return (!serves(version)).then(|| wit_version("imports", name));
    }
    if name.starts_with(WASI) {
        return None;
    }
    Some(Remark::new(
        "unknown-import",
        format!(
            "the component imports {}, which the host does not offer",
            shortened(name)
        ),
        "a policy may import portolan:policy/host, state, labels and types, and nothing else",
    ))
}

fn wit_version(does: &str, name: &str) -> Remark {
    Remark::new(
        "wit-version",
        format!(
            "the component {does} {}; this host serves {SERVED_FULL}",
            shortened(name)
        ),
        "build it anew with the wit/policy.wit of this host's release, which `portolan policy new --lang rust --question \
         routing my-policy` lays into a project, or ask for a host of the other release",
    )
}

/// A name that somebody else chose, short enough for a sentence.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", &name[..end], name.len()),
        None => name.to_owned(),
    }
}

/// The first of such names, and how many there are beside.
fn listed(names: &[impl AsRef<str>]) -> String {
    let shown = names
        .iter()
        .take(NAMES_SHOWN)
        .map(|name| shortened(name.as_ref()));
    let mut shown = shown.collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(NAMES_SHOWN).filter(|more| *more > 0) {
        shown.push_str(&format!(" and {more} more"));
    }
    shown
}

fn list(questions: &[QuestionKind]) -> String {
    questions
        .iter()
        .map(|q| q.as_str())
        .collect::<Vec<_>>()
        .join(" and ")
}
