//! Which file stands for which slot.

use portolan_base::TenantName;
use portolan_base::id::NameError;
use portolan_gateway::policies::PolicySlot;
use portolan_policy::{QuestionKind, Scope};
use std::path::{Path, PathBuf};

/// The folder of the platform's own policies. No tenant's name begins with an underscore.
const PLATFORM: &str = "_platform";

/// What a file in a scope's folder is, by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `QUESTION.wasm`.
    Component(QuestionKind),
    /// `QUESTION.json`.
    Config(QuestionKind),
    /// `QUESTION.wasm.sig`.
    Signature(QuestionKind),
    /// `NAME.wasm.error`, of the component `NAME.wasm`.
    Report(String),
    /// Ends in `.wasm`, `.wasm.sig` or `.json`, and names no question.
    Misnamed,
    /// Someone else's.
    Other,
}

/// Tells what a file is by its name.
pub(super) fn kind(name: &str) -> Kind {
    let question = |stem: &str| stem.parse::<QuestionKind>().ok();
    if name.starts_with('.') {
        return Kind::Other;
    }
    match name.rsplit_once('.') {
        Some((stem, "wasm")) => question(stem).map_or(Kind::Misnamed, Kind::Component),
        Some((stem, "json")) => question(stem).map_or(Kind::Misnamed, Kind::Config),
        Some((component, "sig")) if component.ends_with(".wasm") => {
            let stem = component.trim_end_matches(".wasm");
            question(stem).map_or(Kind::Misnamed, Kind::Signature)
        }
        Some((component, "error")) if component.ends_with(".wasm") => Kind::Report(component.to_owned()),
        _ => Kind::Other,
    }
}

/// Whose folder it is.
pub(super) fn scope(folder: &str) -> Result<Scope, NameError> {
    match folder {
        PLATFORM => Ok(Scope::Platform),
        name => TenantName::new(name).map(Scope::Tenant),
    }
}

/// The component of a slot, below `root`.
pub(super) fn component(root: &Path, slot: &PolicySlot) -> PathBuf {
    in_scope(root, slot).join(format!("{}.wasm", slot.question))
}

/// The configuration of a slot, below `root`.
pub(super) fn config(root: &Path, slot: &PolicySlot) -> PathBuf {
    in_scope(root, slot).join(format!("{}.json", slot.question))
}

/// The signatures of a slot's component, below `root`.
pub(super) fn signature(root: &Path, slot: &PolicySlot) -> PathBuf {
    in_scope(root, slot).join(format!("{}.wasm.sig", slot.question))
}

/// Where a component that was refused is told so.
pub(super) fn report(component: &Path) -> PathBuf {
    let mut path = component.as_os_str().to_owned();
    path.push(".error");
    path.into()
}

fn in_scope(root: &Path, slot: &PolicySlot) -> PathBuf {
    match &slot.scope {
        Scope::Platform => root.join(PLATFORM),
        Scope::Tenant(name) => root.join(name.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_is() {
        assert_eq!(kind("routing.wasm"), Kind::Component(QuestionKind::Routing));
        assert_eq!(kind("cost.json"), Kind::Config(QuestionKind::Cost));
        assert_eq!(kind("routing.wasm.error"), Kind::Report("routing.wasm".into()));
        for odd in [
            "rooting.wasm",
            "Routing.wasm",
            "routing.v2.wasm",
            "package.json",
            " routing.wasm",
        ] {
            assert_eq!(kind(odd), Kind::Misnamed, "{odd}");
        }
        for other in [
            "README",
            ".routing.wasm",
            "routing.wasm~",
            "routing.wasm.part",
            "x.error",
            "",
            ".",
        ] {
            assert_eq!(kind(other), Kind::Other, "{other}");
        }
    }

    #[test]
    fn a_folder_is_a_tenant_or_the_platform_and_paths_stay_below_the_root() {
        assert_eq!(scope("_platform"), Ok(Scope::Platform));
        for bad in ["..", "_other", "Acme", ".git", ""] {
            assert!(scope(bad).is_err(), "{bad}");
        }
        let slot = PolicySlot::new(scope("acme").unwrap(), QuestionKind::Cost);
        assert_eq!(component(Path::new("p"), &slot), Path::new("p/acme/cost.wasm"));
        assert_eq!(config(Path::new("p"), &slot), Path::new("p/acme/cost.json"));
        assert_eq!(
            report(Path::new("p/acme/cost.wasm")),
            Path::new("p/acme/cost.wasm.error")
        );
    }
}
