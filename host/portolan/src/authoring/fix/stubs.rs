//! The core functions that stand where WASI was.

use super::{Deed, FixError, Stubbed};
use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection, MemoryType,
    Module, NameMap, NameSection, TypeSection, ValType,
};
use wasmparser::FuncType;

/// Functions for which "nothing there" is a true answer, with the bytes of their result, of which all are zero then:
/// an empty list or no option, written to where the last parameter points. A seed of hash tables may be constant, says
/// its contract, and has to be where decisions are replayed.
const NOTHING_THERE: [(&str, &str, i32); 9] = [
    ("wasi:cli/environment", "get-environment", 8),
    ("wasi:cli/environment", "get-arguments", 8),
    ("wasi:cli/environment", "initial-cwd", 12),
    ("wasi:cli/terminal-stdin", "get-terminal-stdin", 8),
    ("wasi:cli/terminal-stdout", "get-terminal-stdout", 8),
    ("wasi:cli/terminal-stderr", "get-terminal-stderr", 8),
    ("wasi:filesystem/preopens", "get-directories", 8),
    ("wasi:random/insecure-seed", "insecure-seed", 16),
    ("wasi:random/insecure-seed", "get-insecure-seed", 16),
];

/// A function of WASI as the component calls it.
#[derive(Debug)]
pub(super) struct Stub {
    /// As `interface#function`.
    pub(super) name: String,
    /// The memory to answer into, where the stub answers.
    pub(super) memory: Option<u32>,
    parameters: Vec<ValType>,
    results: Vec<ValType>,
    answer_bytes: Option<i32>,
}

impl Stub {
    pub(super) fn new(name: String, signature: &FuncType, memory: Option<u32>) -> Result<Self, FixError> {
        let convert = |types: &[wasmparser::ValType]| -> Result<Vec<ValType>, FixError> {
            let unknown = |_| FixError::Unsupported(format!("{name} has values of an unknown type"));
            types
                .iter()
                .map(|ty| ValType::try_from(*ty).map_err(unknown))
                .collect()
        };
        let (parameters, results) = (convert(signature.params())?, convert(signature.results())?);
        // One parameter, where to put the result: anything else is another function of the same name.
        let answers = parameters == [ValType::I32] && results.is_empty() && memory.is_some();
        let answer_bytes = nothing_bytes(&name).filter(|_| answers);
        Ok(Self {
            memory: memory.filter(|_| answer_bytes.is_some()),
            name,
            parameters,
            results,
            answer_bytes,
        })
    }

    /// As it is told to people.
    pub(super) fn told(&self) -> Stubbed {
        Stubbed {
            name: self.name.clone(),
            does: match self.answer_bytes {
                Some(_) => Deed::AnswersNothing,
                None => Deed::Traps,
            },
        }
    }

    fn body(&self) -> Function {
        let mut body = Function::new([]);
        let mut code = body.instructions();
        match self.answer_bytes {
            None => code.unreachable(),
            Some(bytes) => code.local_get(0).i32_const(0).i32_const(bytes).memory_fill(0),
        };
        code.end();
        body
    }
}

fn nothing_bytes(name: &str) -> Option<i32> {
    let (interface, function) = name.split_once('#')?;
    let interface = interface.split('@').next()?;
    let known = NOTHING_THERE
        .iter()
        .find(|(i, f, _)| (*i, *f) == (interface, function));
    known.map(|(_, _, bytes)| *bytes)
}

/// Module and field that a module of answering stubs has its memory from.
pub(super) const MEMORY: (&str, &str) = ("caller", "memory");

/// A module of stubs; each is exported by its name. Traps show the name that the name section gives.
pub(super) fn module<'a>(stubs: impl Iterator<Item = &'a Stub> + Clone, has_memory: bool) -> Module {
    let (mut types, mut functions, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    let (mut exports, mut names) = (ExportSection::new(), NameMap::new());
    for (index, stub) in (0..).zip(stubs) {
        types
            .ty()
            .function(stub.parameters.iter().copied(), stub.results.iter().copied());
        functions.function(index);
        exports.export(&export_name(index), ExportKind::Func, index);
        code.function(&stub.body());
        names.append(index, &format!("{} (stubbed by policy fix)", stub.name));
    }
    let mut module = Module::new();
    module.section(&types);
    if has_memory {
        let mut imports = ImportSection::new();
        let any = MemoryType {
            minimum: 0,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        };
        imports.import(MEMORY.0, MEMORY.1, EntityType::Memory(any));
        module.section(&imports);
    }
    module.section(&functions).section(&exports).section(&code);
    let mut section = NameSection::new();
    section.functions(&names);
    module.section(&section);
    module
}

/// Names of exports are for the rewriting alone.
pub(super) fn export_name(index: u32) -> String {
    index.to_string()
}
