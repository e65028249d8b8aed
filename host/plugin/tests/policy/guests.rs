//! Guests from WebAssembly text: a core module by hand, its metadata from the contract, a component by the encoder.

use portolan_plugin::{POLICY_WIT, componentize};
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::{Resolve, WorldId};

/// The parts of a guest that tests vary. Everything else is a bump allocator and a `configure` that says yes.
pub(crate) struct Guest {
    /// World of the contract.
    pub(crate) world: &'static str,
    /// Export and signature of the question's function.
    pub(crate) function: &'static str,
    /// Its body.
    pub(crate) body: String,
    /// Body of `configure`; parameters 0 and 1 are the configuration's address and length.
    pub(crate) configure: String,
    /// Imports, in text.
    pub(crate) imports: &'static str,
    /// Anything else in the module.
    pub(crate) extra: &'static str,
    /// Initial memory in pages of 64 KiB.
    pub(crate) pages: u32,
    /// Run at the beginning of `cabi_realloc`.
    pub(crate) realloc: &'static str,
}

pub(crate) const CONFIGURED: &str = "(i32.const 1024)";

pub(crate) const LOG: &str = r#"(import "portolan:policy/host@0.1.0" "log" (func $log (param i32 i32 i32)))"#;
pub(crate) const STATE_ADD: &str =
    r#"(import "portolan:policy/state@0.1.0" "add" (func $add (param i32 i32 i64) (result i64)))"#;
pub(crate) const LABEL_GET: &str =
    r#"(import "portolan:policy/labels@0.1.0" "get" (func $label (param i32 i32 i32)))"#;

const DECIDE: &str = r#"(export "portolan:policy/routing-policy@0.1.0#decide")
    (param $request i32) (param $request_len i32) (param $stride i32) (param $routes i32) (param $routes_len i32)
    (param $cost_stride i32) (param $costs i32) (param $costs_len i32) (result i32)
    (local $i i32) (local $n i32) (local $out i32)"#;

const ESTIMATE: &str = r#"(export "portolan:policy/cost-policy@0.1.0#estimate")
    (param $request i32) (param $request_len i32) (param $stride i32) (param $routes i32) (param $routes_len i32)
    (result i32) (local $i i32) (local $n i32) (local $out i32)"#;

const PARTITION: &str = r#"(export "portolan:policy/residency-policy@0.1.0#partition")
    (param $purpose i32) (param $jurisdiction i32) (param $class i32) (param $stored i32) (param $from i32)
    (param $request i32) (param $request_len i32) (result i32)"#;

const REACT: &str = r#"(export "portolan:policy/invalidation-policy@0.1.0#react")
    (param $event i32) (param $a i64) (param $b i64) (param $c i64)
    (param $stride i32) (param $groups i32) (param $groups_len i32) (result i32)"#;

/// Scores each route by the first column of its costs.
const ECHO: &str = "
    (local.set $n (i32.div_u (local.get $costs_len) (local.get $cost_stride)))
    (local.set $out (call $alloc (i32.mul (local.get $n) (i32.const 4))))
    (block $done (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
        (i32.store
            (i32.add (local.get $out) (i32.mul (local.get $i) (i32.const 4)))
            (i32.load (i32.add (local.get $costs)
                (i32.mul (i32.mul (local.get $i) (local.get $cost_stride)) (i32.const 4)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (i32.store8 (i32.const 1040) (i32.const 0))
    (i32.store (i32.const 1044) (local.get $out))
    (i32.store (i32.const 1048) (local.get $n))
    (i32.const 1040)";

/// Costs each route by its prefill estimate, the eighth column.
const ESTIMATE_PREFILL: &str = "
    (local.set $n (i32.div_u (local.get $routes_len) (local.get $stride)))
    (local.set $out (call $alloc (i32.mul (local.get $n) (i32.const 24))))
    (block $done (loop $next
        (br_if $done (i32.ge_u (local.get $i) (local.get $n)))
        (i32.store
            (i32.add (local.get $out) (i32.mul (local.get $i) (i32.const 24)))
            (i32.load offset=28 (i32.add (local.get $routes)
                (i32.mul (i32.mul (local.get $i) (local.get $stride)) (i32.const 4)))))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br $next)))
    (i32.store (i32.const 1040) (local.get $out))
    (i32.store (i32.const 1044) (i32.mul (local.get $n) (i32.const 6)))
    (i32.const 1040)";

impl Guest {
    fn new(world: &'static str, function: &'static str, body: &str) -> Self {
        Self {
            world,
            function,
            body: body.into(),
            configure: CONFIGURED.into(),
            imports: "",
            extra: "",
            pages: 2,
            realloc: "",
        }
    }

    /// A router that scores each route by its cost.
    pub(crate) fn echo() -> Self {
        Self::new("routing", DECIDE, ECHO)
    }

    /// A router that misbehaves when the request's tenant column is 1, and echoes otherwise.
    pub(crate) fn hostile(deed: &str) -> Self {
        let body =
            format!("(if (i32.eq (i32.load (local.get $request)) (i32.const 1)) (then {deed}))\n{ECHO}");
        Self::new("routing", DECIDE, &body)
    }

    /// A router that always misbehaves first.
    pub(crate) fn always(deed: &str) -> Self {
        Self::new("routing", DECIDE, &format!("{deed}\n{ECHO}"))
    }

    /// A cost policy that knows one thing.
    pub(crate) fn cost() -> Self {
        Self::new("cost", ESTIMATE, ESTIMATE_PREFILL)
    }

    /// A residency policy that lets data compute on site 0, stay on site 1 and nowhere else (of three).
    pub(crate) fn residency() -> Self {
        let body = "(i32.store (i32.const 1060) (i32.const 0x00000201)) (i32.store (i32.const 1040) (i32.const 1060))
            (i32.store (i32.const 1044) (i32.const 3)) (i32.const 1040)";
        Self::new("residency", PARTITION, body)
    }

    /// An invalidation policy that answers an updated model with `below-version` of its new version.
    pub(crate) fn invalidation() -> Self {
        let body = "
            (i32.store (i32.const 1040) (i32.const 1064))
            (i32.store (i32.const 1044) (i32.eqz (local.get $event)))
            (i32.store8 (i32.const 1064) (i32.const 0))
            (i32.store (i32.const 1072) (i32.wrap_i64 (local.get $a)))
            (i64.store (i32.const 1080) (local.get $c))
            (i32.const 1040)";
        Self::new("invalidation", REACT, body)
    }

    /// The same with more in the module.
    pub(crate) fn with_extra(self, extra: &'static str) -> Self {
        Self { extra, ..self }
    }

    fn wat(&self) -> String {
        let Self {
            function,
            body,
            configure,
            imports,
            extra,
            pages,
            realloc,
            ..
        } = self;
        format!(
            r#"(module
                {imports}
                (memory (export "memory") {pages})
                (global $top (mut i32) (i32.const 8192))
                (func $alloc (param $size i32) (result i32)
                    (global.get $top)
                    (global.set $top (i32.and
                        (i32.add (i32.add (global.get $top) (local.get $size)) (i32.const 15)) (i32.const -16))))
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                    {realloc} (call $alloc (local.get 3)))
                (func (export "portolan:policy/lifecycle@0.1.0#configure")
                    (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
                    {configure})
                (func {function} {body})
                {extra})"#
        )
    }

    /// The core module with its metadata, as a guest toolchain leaves it.
    pub(crate) fn core_module(&self) -> Vec<u8> {
        let mut resolve = Resolve::default();
        let package = resolve.push_str("policy.wit", POLICY_WIT).unwrap();
        let world = resolve.packages[package].worlds[self.world];
        self.embed(&resolve, world)
    }

    /// The component with one export more than the contract asks for, as the QuickJS toolchain leaves it.
    pub(crate) fn component_with_init(self) -> Vec<u8> {
        let mut resolve = Resolve::default();
        resolve.push_str("policy.wit", POLICY_WIT).unwrap();
        let wider = format!(
            "package test:wider; world wider {{ include portolan:policy/{}@0.1.0; export init: func(); }}",
            self.world
        );
        let package = resolve.push_str("wider.wit", &wider).unwrap();
        let world = resolve.packages[package].worlds["wider"];
        let guest = self.with_extra(r#"(func (export "init"))"#);
        componentize(&guest.embed(&resolve, world)).unwrap()
    }

    fn embed(&self, resolve: &Resolve, world: WorldId) -> Vec<u8> {
        let mut module = wat::parse_str(self.wat()).unwrap();
        embed_component_metadata(&mut module, resolve, world, StringEncoding::UTF8, false).unwrap();
        module
    }

    pub(crate) fn component(&self) -> Vec<u8> {
        componentize(&self.core_module()).unwrap()
    }
}
