//! The contract's text, `wit/policy.wit`, for checks against its types.

use portolan_policy::QuestionKind;
use std::sync::LazyLock;
use wit_parser::{PackageId, Resolve};

/// The contract as guests are built against it.
pub const POLICY_WIT: &str = include_str!("../../../wit/policy.wit");

static CONTRACT: LazyLock<(Resolve, PackageId)> = LazyLock::new(|| {
    let mut resolve = Resolve::default();
    let package = resolve
        .push_str("policy.wit", POLICY_WIT)
        .expect("the contract is valid WIT: a test parses it");
    (resolve, package)
});

/// Compares a component's types with the world of `question`. The error names the first difference.
pub(crate) fn fits(question: QuestionKind, component: &[u8]) -> Result<(), String> {
    let (resolve, package) = &*CONTRACT;
    let world = resolve.packages[*package]
        .worlds
        .get(question.as_str())
        .expect("the contract has a world for each question: a test compares the names");
    wit_component::targets(resolve, *world, component, true).map_err(|e| e.root_cause().to_string())
}
