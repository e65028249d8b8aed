//! What a component has from WASI, and where.

use super::FixError;
use super::stubs::Stub;
use std::collections::{BTreeMap, BTreeSet};
use wasmparser::types::TypesRef;
use wasmparser::{
    CanonicalFunction, CanonicalOption, ComponentAlias, ComponentExternalKind, ComponentTypeRef,
    ExternalKind, Parser, Payload,
};

/// The namespace of what is stubbed, and that of the contract, which stays.
pub(super) const WASI: &str = "wasi:";
const CONTRACT: &str = "portolan:policy/";

/// The root component's use of WASI. Indices are the component's own.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Interface of each instance that is imported from WASI.
    pub(super) instances: BTreeMap<u32, String>,
    /// The types of those instances.
    pub(super) types: BTreeSet<u32>,
    /// A stub for each lowered function, in the order they are lowered.
    pub(super) stubs: Vec<Stub>,
    /// Imports that are neither of WASI nor of the contract.
    pub(super) unknown: Vec<String>,
    /// The stub of each core function.
    pub(super) lowered: BTreeMap<u32, usize>,
}

/// Counts the index spaces of the root component, as far as they matter.
#[derive(Default)]
struct Counts {
    instances: u32,
    functions: u32,
    core_functions: u32,
}

/// Whether the component itself imports anything of WASI.
pub(super) fn imports_wasi(component: &[u8]) -> Result<bool, FixError> {
    for payload in super::rewrite::root(Parser::new(0), component) {
        if let Payload::ComponentImportSection(imports) = payload? {
            for import in imports {
                if import?.name.name.starts_with(WASI) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

impl Survey {
    pub(super) fn of(component: &[u8], types: TypesRef<'_>) -> Result<Self, FixError> {
        let mut survey = Self::default();
        let mut counts = Counts::default();
        let mut functions = BTreeMap::new();
        for payload in super::rewrite::root(Parser::new(0), component) {
            match payload? {
                Payload::ComponentImportSection(imports) => {
                    for import in imports {
                        let import = import?;
                        let name = import.name.name;
                        match import.ty {
                            ComponentTypeRef::Instance(ty) => {
                                if name.starts_with(WASI) {
                                    survey.instances.insert(counts.instances, name.to_owned());
                                    survey.types.insert(ty);
                                }
                                counts.instances += 1;
                            }
                            ComponentTypeRef::Func(_) => counts.functions += 1,
                            _ => {}
                        }
                        if !name.starts_with(WASI) && !name.starts_with(CONTRACT) {
                            survey.unknown.push(name.to_owned());
                        }
                    }
                }
                Payload::ComponentAliasSection(aliases) => {
                    for alias in aliases {
                        survey.note_alias(&alias?, &mut counts, &mut functions);
                    }
                }
                Payload::ComponentCanonicalSection(canonical) => {
                    for function in canonical {
                        survey.note_canonical(&function?, &mut counts, &functions, types)?;
                    }
                }
                Payload::ComponentInstanceSection(instances) => counts.instances += instances.count(),
                Payload::ComponentExportSection(exports) => {
                    for export in exports {
                        counts.note_export(export?.kind);
                    }
                }
                _ => {}
            }
        }
        Ok(survey)
    }

    fn note_alias(
        &self,
        alias: &ComponentAlias<'_>,
        counts: &mut Counts,
        functions: &mut BTreeMap<u32, String>,
    ) {
        match alias {
            ComponentAlias::InstanceExport {
                kind,
                instance_index,
                name,
            } => {
                if let (ComponentExternalKind::Func, Some(interface)) =
                    (kind, self.instances.get(instance_index))
                {
                    functions.insert(counts.functions, format!("{interface}#{name}"));
                }
                counts.note_export(*kind);
            }
            ComponentAlias::CoreInstanceExport {
                kind: ExternalKind::Func,
                ..
            } => counts.core_functions += 1,
            _ => {}
        }
    }

    fn note_canonical(
        &mut self,
        function: &CanonicalFunction,
        counts: &mut Counts,
        functions: &BTreeMap<u32, String>,
        types: TypesRef<'_>,
    ) -> Result<(), FixError> {
        if matches!(function, CanonicalFunction::Lift { .. }) {
            counts.functions += 1;
            return Ok(());
        }
        let index = counts.core_functions;
        counts.core_functions += 1;
        let CanonicalFunction::Lower { func_index, options } = function else {
            return Ok(());
        };
        if let Some(name) = functions.get(func_index) {
            let memory = options.iter().find_map(|option| match option {
                CanonicalOption::Memory(memory) => Some(*memory),
                _ => None,
            });
            let signature = types[types.core_function_at(index)].unwrap_func();
            self.lowered.insert(index, self.stubs.len());
            self.stubs.push(Stub::new(name.clone(), signature, memory)?);
        }
        Ok(())
    }
}

impl Counts {
    /// An export, and an alias of one, adds to the space of its kind.
    fn note_export(&mut self, kind: ComponentExternalKind) {
        match kind {
            ComponentExternalKind::Instance => self.instances += 1,
            ComponentExternalKind::Func => self.functions += 1,
            _ => {}
        }
    }
}
