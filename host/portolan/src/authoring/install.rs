//! What has to be installed before a new project can be built.

use super::Language;
use super::build::{CARGO, CLANG, LLD, NPM, PY, PYTHON, QJS, has_rust_target};
use super::toolchain::Tool;
use std::path::Path;

/// The command lines that bring what a project in `dir` lacks; none when its toolchain is complete.
pub fn to_install(language: Language, dir: &Path) -> Option<&'static str> {
    let has_target = || has_rust_target(dir).unwrap_or_default();
    lacking(language, |tool| tool.find(dir).is_ok(), has_target)
}

fn lacking(
    language: Language,
    has: impl Fn(Tool) -> bool,
    has_rust_target: impl Fn() -> bool,
) -> Option<&'static str> {
    // What brings the builder, when the program that fetches it is there; else all of it.
    let fetched = |builder: Tool, fetcher: Tool| match (has(builder), has(fetcher)) {
        (true, _) => None,
        (false, true) => Some(language.install()),
        (false, false) => Some(builder.install),
    };
    match language {
        Language::Rust if !has(CARGO) => Some(CARGO.install),
        Language::Rust => (!has_rust_target()).then_some(language.install()),
        Language::Js => fetched(QJS, NPM),
        Language::Python => fetched(PY, PYTHON),
        Language::C => (!(has(CLANG) && has(LLD))).then_some(language.install()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(language: Language, programs: &[&str], has_rust_target: bool) -> Option<&'static str> {
        lacking(
            language,
            |tool| programs.contains(&tool.program),
            || has_rust_target,
        )
    }

    #[test]
    fn nothing_is_to_be_installed_when_the_toolchain_is_there() {
        let all = ["cargo", "componentize-qjs", "componentize-py", "clang", "wasm-ld"];
        for language in Language::ALL {
            assert_eq!(with(language, &all, true), None, "{language}");
        }
    }

    #[test]
    fn only_what_is_missing_is_to_be_installed() {
        use Language::{C, Js, Python, Rust};
        assert_eq!(with(C, &["clang"], true), Some("apt-get install clang lld"));
        assert_eq!(
            with(Rust, &["cargo"], false),
            Some("rustup target add wasm32-unknown-unknown")
        );
        assert_eq!(with(Js, &["npm"], true), Some("npm install"));
        let venv = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt";
        assert_eq!(with(Python, &["python3"], true), Some(venv));
        for (language, first) in [(Rust, "curl"), (Js, "apt-get"), (Python, "apt-get")] {
            let said = with(language, &[], false).unwrap();
            assert!(said.starts_with(first) && said.lines().count() > 1, "{said}");
        }
    }
}
