//! Writes a component anew, with stubs where it called WASI.
//!
//! Index spaces that lose members (instances and functions of WASI) or gain some (the stubs' modules and instances) are
//! renumbered; the others keep their numbers, since each member is replaced in its place: a lowered function by the
//! alias of a stub, an alias of a WASI type by a resource of which nobody ever has a handle.

use super::stubs::{self, Stub};
use super::survey::{Survey, WASI};
use super::{FixError, Fixed, Stubbed};
use std::collections::BTreeMap;
use std::convert::Infallible;
use wasm_encoder::reencode::{Error, Reencode, ReencodeComponent};
use wasm_encoder::{
    Alias, CanonicalFunctionSection, Component, ComponentAliasSection, ComponentExportSection,
    ComponentImportSection, ComponentInstanceSection, ComponentSectionId, ComponentTypeSection, ExportKind,
    InstanceSection, InstanceType, ModuleArg, ModuleSection, RawSection, ValType,
};
use wasmparser::{
    BinaryReaderError, CanonicalFunction, ComponentAlias, ComponentExternalKind, ComponentInstance,
    ComponentTypeRef, ExternalKind, Parser, Payload,
};

/// The sections of the root component; what lies nested is skipped.
pub(super) fn root(
    parser: Parser,
    component: &[u8],
) -> impl Iterator<Item = Result<Payload<'_>, BinaryReaderError>> {
    let mut depth = 0_usize;
    parser.parse_all(component).filter(move |payload| {
        let was = depth;
        match payload {
            Ok(Payload::ModuleSection { .. } | Payload::ComponentSection { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth = depth.saturating_sub(1),
            _ => {}
        }
        was == 0
    })
}

/// The component without its imports from WASI.
pub(super) fn without_wasi(component: &[u8], survey: &Survey) -> Result<Fixed, FixError> {
    let mut rewriter = Rewriter::new(survey);
    for payload in root(Parser::new(0), component) {
        rewriter.section(&payload?, component)?;
    }
    match rewriter.numbers.handed_on {
        Some(interface) => Err(FixError::HandedOn(interface)),
        None => Ok(Fixed {
            component: rewriter.out.finish(),
            stubs: rewriter.stubbed,
        }),
    }
}

/// New numbers of what is renumbered; none for what is gone.
#[derive(Default)]
struct Numbers {
    modules_ahead: u32,
    /// How deep inside types, where indices are other ones.
    depth: u32,
    core_instances: Vec<u32>,
    next_core_instance: u32,
    instances: Vec<Result<u32, String>>,
    functions: Vec<Result<u32, String>>,
    /// An interface that is used otherwise than by calling its functions.
    handed_on: Option<String>,
}

impl Numbers {
    fn look_up(handed_on: &mut Option<String>, numbers: &[Result<u32, String>], index: u32) -> u32 {
        match numbers.get(index as usize) {
            Some(Ok(number)) => *number,
            Some(Err(interface)) => {
                handed_on.get_or_insert_with(|| interface.clone());
                0
            }
            None => index,
        }
    }

    fn add(numbers: &mut Vec<Result<u32, String>>) {
        let kept = numbers.iter().filter(|number| number.is_ok()).count();
        numbers.push(Ok(u32::try_from(kept).unwrap_or(u32::MAX)));
    }

    fn add_core_instance(&mut self) {
        self.core_instances.push(self.next_core_instance);
        self.next_core_instance += 1;
    }

    /// An export, or an alias of one, adds to the space of its kind.
    fn add_external(&mut self, kind: ComponentExternalKind) {
        match kind {
            ComponentExternalKind::Instance => Self::add(&mut self.instances),
            ComponentExternalKind::Func => Self::add(&mut self.functions),
            _ => {}
        }
    }
}

impl Reencode for Numbers {
    type Error = Infallible;
}

impl ReencodeComponent for Numbers {
    fn push_depth(&mut self) {
        self.depth += 1;
    }

    fn pop_depth(&mut self) {
        self.depth -= 1;
    }

    fn module_index(&mut self, module: u32) -> u32 {
        match self.depth {
            0 => module + self.modules_ahead,
            _ => module,
        }
    }

    fn instance_index(&mut self, instance: u32) -> u32 {
        self.core_instances
            .get(instance as usize)
            .copied()
            .unwrap_or(instance)
    }

    fn component_instance_index(&mut self, instance: u32) -> u32 {
        match self.depth {
            0 => Self::look_up(&mut self.handed_on, &self.instances, instance),
            _ => instance,
        }
    }

    fn component_func_index(&mut self, function: u32) -> u32 {
        Self::look_up(&mut self.handed_on, &self.functions, function)
    }
}

struct Rewriter<'a> {
    survey: &'a Survey,
    numbers: Numbers,
    /// Members of these spaces so far.
    types: u32,
    core_functions: u32,
    trapping: Option<u32>,
    answering: BTreeMap<u32, u32>,
    /// The modules of stubs: those that trap, and those that answer.
    modules: [Option<u32>; 2],
    /// Whether each component inside was fixed.
    components: Vec<bool>,
    stubbed: Vec<Stubbed>,
    out: Component,
}

impl<'a> Rewriter<'a> {
    /// Begins with the modules of the stubs.
    fn new(survey: &'a Survey) -> Self {
        let mut rewriter = Self {
            survey,
            numbers: Numbers::default(),
            types: 0,
            core_functions: 0,
            trapping: None,
            answering: BTreeMap::new(),
            modules: [None; 2],
            components: Vec::new(),
            stubbed: survey.stubs.iter().map(Stub::told).collect(),
            out: Component::new(),
        };
        for has_memory in [false, true] {
            let stubs = rewriter.stubs(has_memory);
            if stubs.clone().next().is_some() {
                let module = stubs::module(stubs, has_memory);
                rewriter.out.section(&ModuleSection(&module));
                rewriter.modules[usize::from(has_memory)] = Some(rewriter.numbers.modules_ahead);
                rewriter.numbers.modules_ahead += 1;
            }
        }
        rewriter
    }

    fn stubs(&self, has_memory: bool) -> impl Iterator<Item = &'a Stub> + Clone + use<'a> {
        let stubs = self.survey.stubs.iter();
        stubs.filter(move |stub| stub.memory.is_some() == has_memory)
    }

    fn section(&mut self, payload: &Payload<'_>, component: &[u8]) -> Result<(), FixError> {
        match payload {
            Payload::ComponentTypeSection(types) => self.type_section(types.clone()),
            Payload::ComponentImportSection(imports) => self.import_section(imports.clone()),
            Payload::ComponentAliasSection(aliases) => self.alias_section(aliases.clone()),
            Payload::ComponentCanonicalSection(functions) => self.canonical_section(functions.clone()),
            Payload::InstanceSection(instances) => {
                for instance in instances.clone() {
                    let mut section = InstanceSection::new();
                    self.numbers.parse_instance(&mut section, instance?)?;
                    self.out.section(&section);
                    self.numbers.add_core_instance();
                }
                Ok(())
            }
            Payload::ComponentInstanceSection(instances) => {
                for instance in instances.clone() {
                    let mut section = ComponentInstanceSection::new();
                    let instance = self.without_wasi_arguments(instance?);
                    self.numbers.parse_component_instance(&mut section, instance)?;
                    self.out.section(&section);
                    Numbers::add(&mut self.numbers.instances);
                }
                Ok(())
            }
            Payload::ComponentExportSection(exports) => {
                for export in exports.clone() {
                    let export = export?;
                    let kind = export.kind;
                    let mut section = ComponentExportSection::new();
                    self.numbers.parse_component_export(&mut section, export)?;
                    self.out.section(&section);
                    self.note_external(kind);
                }
                Ok(())
            }
            Payload::ComponentStartSection { .. } => Err(FixError::Unsupported(
                "it has a start function of the component model".to_owned(),
            )),
            // Names of the index spaces, which are other ones then.
            Payload::CustomSection(custom) if custom.name() == "component-name" => Ok(()),
            Payload::ComponentSection { unchecked_range, .. } => {
                let nested = slice(component, unchecked_range).unwrap_or_default();
                self.nested(nested)
            }
            _ => {
                self.copy(payload, component);
                Ok(())
            }
        }
    }

    /// A section as it is.
    fn copy(&mut self, payload: &Payload<'_>, component: &[u8]) {
        if let Some((id, range)) = payload.as_section()
            && let Some(data) = slice(component, &range)
        {
            self.out.section(&RawSection { id, data });
        }
    }

    fn nested(&mut self, nested: &[u8]) -> Result<(), FixError> {
        let fixed = super::fix_nested(nested)?;
        self.components.push(fixed.is_some());
        match fixed {
            Some(fixed) => {
                self.out.section(&RawSection {
                    id: ComponentSectionId::Component.into(),
                    data: &fixed.component,
                });
                self.stubbed.extend(fixed.stubs);
            }
            None => {
                refuse_outer_modules(nested)?;
                self.out.section(&RawSection {
                    id: ComponentSectionId::Component.into(),
                    data: nested,
                });
            }
        }
        Ok(())
    }

    /// A component that was fixed is not given WASI.
    fn without_wasi_arguments<'b>(&self, instance: ComponentInstance<'b>) -> ComponentInstance<'b> {
        match instance {
            ComponentInstance::Instantiate {
                component_index,
                args,
            } if self.components.get(component_index as usize) == Some(&true) => {
                let kept = args
                    .into_vec()
                    .into_iter()
                    .filter(|arg| !arg.name.starts_with(WASI));
                ComponentInstance::Instantiate {
                    component_index,
                    args: kept.collect(),
                }
            }
            other => other,
        }
    }

    /// The types of WASI's instances become empty: they speak of types that are gone.
    fn type_section(&mut self, types: wasmparser::ComponentTypeSectionReader<'_>) -> Result<(), FixError> {
        let mut section = ComponentTypeSection::new();
        for ty in types {
            let ty = ty?;
            if self.survey.types.contains(&self.types) {
                section.instance(&InstanceType::new());
            } else {
                self.numbers.parse_component_type(section.ty(), ty)?;
            }
            self.types += 1;
        }
        self.out.section(&section);
        Ok(())
    }

    fn import_section(
        &mut self,
        imports: wasmparser::ComponentImportSectionReader<'_>,
    ) -> Result<(), FixError> {
        let mut section = ComponentImportSection::new();
        for import in imports {
            let import = import?;
            let next = u32::try_from(self.numbers.instances.len()).unwrap_or(u32::MAX);
            let ty = import.ty;
            if let ComponentTypeRef::Instance(_) = ty
                && let Some(interface) = self.survey.instances.get(&next)
            {
                self.numbers.instances.push(Err(interface.clone()));
                continue;
            }
            let reference = self.numbers.component_type_ref(ty)?;
            section.import(import.name, reference);
            match ty {
                ComponentTypeRef::Instance(_) => Numbers::add(&mut self.numbers.instances),
                ComponentTypeRef::Func(_) => Numbers::add(&mut self.numbers.functions),
                ComponentTypeRef::Type(_) => self.types += 1,
                ComponentTypeRef::Component(_) => self.components.push(false),
                _ => {}
            }
        }
        self.out.section(&section);
        Ok(())
    }

    fn alias_section(
        &mut self,
        aliases: wasmparser::ComponentAliasSectionReader<'_>,
    ) -> Result<(), FixError> {
        for alias in aliases {
            let alias = alias?;
            if let ComponentAlias::InstanceExport {
                kind, instance_index, ..
            } = alias
                && let Some(interface) = self.survey.instances.get(&instance_index)
            {
                self.alias_of_wasi(kind, interface)?;
                continue;
            }
            match alias {
                ComponentAlias::InstanceExport { kind, .. } => {
                    self.write_alias(alias)?;
                    self.note_external(kind);
                }
                ComponentAlias::CoreInstanceExport { kind, .. } => {
                    self.write_alias(alias)?;
                    self.core_functions += u32::from(kind == ExternalKind::Func);
                }
                // Only a component inside has something outside, and it is not valid by itself then.
                ComponentAlias::Outer { .. } => {
                    return Err(FixError::Unsupported(
                        "it uses something outside of it".to_owned(),
                    ));
                }
            }
        }
        Ok(())
    }

    fn note_external(&mut self, kind: ComponentExternalKind) {
        self.numbers.add_external(kind);
        self.types += u32::from(kind == ComponentExternalKind::Type);
        if kind == ComponentExternalKind::Component {
            self.components.push(false);
        }
    }

    fn alias_of_wasi(&mut self, kind: ComponentExternalKind, interface: &str) -> Result<(), FixError> {
        match kind {
            ComponentExternalKind::Func => self.numbers.functions.push(Err(interface.to_owned())),
            ComponentExternalKind::Type => {
                let mut section = ComponentTypeSection::new();
                section.resource(ValType::I32, None);
                self.out.section(&section);
                self.types += 1;
            }
            _ => return Err(FixError::HandedOn(interface.to_owned())),
        }
        Ok(())
    }

    fn write_alias(&mut self, alias: ComponentAlias<'_>) -> Result<(), FixError> {
        let alias = self.numbers.component_alias(alias)?;
        self.out.section(ComponentAliasSection::new().alias(alias));
        Ok(())
    }

    fn canonical_section(
        &mut self,
        functions: wasmparser::ComponentCanonicalSectionReader<'_>,
    ) -> Result<(), FixError> {
        for function in functions {
            let function = function?;
            let is_lift = matches!(function, CanonicalFunction::Lift { .. });
            match self.survey.lowered.get(&self.core_functions).filter(|_| !is_lift) {
                Some(stub) => self.stub(*stub),
                None => {
                    let mut section = CanonicalFunctionSection::new();
                    self.numbers.parse_component_canonical(&mut section, function)?;
                    self.out.section(&section);
                }
            }
            match is_lift {
                true => Numbers::add(&mut self.numbers.functions),
                false => self.core_functions += 1,
            }
        }
        Ok(())
    }

    /// In place of a lowered function: the alias of its stub.
    fn stub(&mut self, position: usize) {
        let memory = self.survey.stubs[position].memory;
        let before = self.survey.stubs[..position].iter();
        let index = before
            .filter(|stub| stub.memory.is_some() == memory.is_some())
            .count();
        let instance = match memory {
            None => self.trapping_instance(),
            Some(memory) => self.answering_instance(memory),
        };
        let name = stubs::export_name(u32::try_from(index).unwrap_or(u32::MAX));
        self.out
            .section(ComponentAliasSection::new().alias(Alias::CoreInstanceExport {
                instance,
                kind: ExportKind::Func,
                name: &name,
            }));
    }

    fn trapping_instance(&mut self) -> u32 {
        if let Some(instance) = self.trapping {
            return instance;
        }
        let mut section = InstanceSection::new();
        section.instantiate::<_, &str>(self.modules[0].unwrap_or_default(), []);
        self.out.section(&section);
        *self.trapping.insert(self.numbers.take_core_instance())
    }

    /// One that answers into this memory.
    fn answering_instance(&mut self, memory: u32) -> u32 {
        if let Some(instance) = self.answering.get(&memory) {
            return *instance;
        }
        let caller = self.numbers.take_core_instance();
        let instance = self.numbers.take_core_instance();
        let mut section = InstanceSection::new();
        section.export_items([(stubs::MEMORY.1, ExportKind::Memory, memory)]);
        let module = self.modules[1].unwrap_or_default();
        section.instantiate(module, [(stubs::MEMORY.0, ModuleArg::Instance(caller))]);
        self.out.section(&section);
        self.answering.insert(memory, instance);
        instance
    }
}

impl Numbers {
    /// The number of an instance that the component did not have.
    fn take_core_instance(&mut self) -> u32 {
        self.next_core_instance += 1;
        self.next_core_instance - 1
    }
}

/// A component inside that uses a module of the root by its number, which is another one then.
fn refuse_outer_modules(nested: &[u8]) -> Result<(), FixError> {
    for payload in Parser::new(0).parse_all(nested) {
        if let Payload::ComponentAliasSection(aliases) = payload? {
            for alias in aliases {
                if let ComponentAlias::Outer {
                    kind: wasmparser::ComponentOuterAliasKind::CoreModule,
                    ..
                } = alias?
                {
                    return Err(FixError::Unsupported(
                        "a component inside it uses a module of the outer one".to_owned(),
                    ));
                }
            }
        }
    }
    Ok(())
}

fn slice<'a>(component: &'a [u8], range: &std::ops::Range<u64>) -> Option<&'a [u8]> {
    let (start, end) = (
        usize::try_from(range.start).ok()?,
        usize::try_from(range.end).ok()?,
    );
    component.get(start..end)
}

impl From<Error<Infallible>> for FixError {
    fn from(error: Error<Infallible>) -> Self {
        Self::Unsupported(error.to_string())
    }
}
