//! The files of a project, from the templates in `templates/`.

use super::{Language, accessors, lock, sdk};
use portolan_policy::QuestionKind;

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("templates/", $path))
    };
}

/// Files of a new project: path in its folder, text.
pub(super) fn files(name: &str, question: QuestionKind, language: Language) -> Vec<(String, String)> {
    let mut files = vec![
        file("policy.yaml", template!("policy.yaml.template")),
        file("README.md", template!("README.md.template")),
        file(".gitignore", template!("gitignore.template")),
        file("wit/policy.wit", portolan_plugin::POLICY_WIT),
        file(language.source(), source(question, language)),
        file(&format!("{name}.cases.yaml"), cases(question)),
    ];
    match language {
        Language::Rust => {
            files.push(file("Cargo.toml", template!("rust/Cargo.toml.template")));
            files.push(("Cargo.lock".to_owned(), lock::of(name)));
            files.extend(sdk::files());
        }
        Language::Js => {
            files.push(file("package.json", template!("js/package.json")));
            files.push(file("portolan.js", template!("js/portolan.js")));
        }
        Language::Python => {
            files.push(file("requirements.txt", template!("python/requirements.txt")));
            files.push(file("portolan.py", template!("python/portolan.py")));
        }
        Language::C => {
            files.push(file("portolan.h", template!("c/portolan.h")));
            files.push(file("portolan.c", template!("c/portolan.c")));
        }
    }
    for (path, text) in &mut files {
        if !path.starts_with(sdk::FOLDER) {
            *text = fill(text, path, name, question, language);
        }
    }
    files
}

fn file(path: &str, text: &str) -> (String, String) {
    (path.to_owned(), text.to_owned())
}

fn fill(text: &str, path: &str, name: &str, question: QuestionKind, language: Language) -> String {
    let word = match path {
        "policy.yaml" => language.as_str(),
        _ => language.title(),
    };
    accessors::fill(language, text)
        .replace("@NAME@", name)
        .replace("@QUESTION@", question.as_str())
        .replace("@LANGUAGE@", word)
        .replace("@SOURCE@", language.source())
        .replace("@INSTALL@", language.install())
        .replace("@CONFIG@", sample_config(question))
        .replace("@FILES@", helpers(language))
}

fn source(question: QuestionKind, language: Language) -> &'static str {
    use Language::{C, Js, Python, Rust};
    use QuestionKind::{Cost, Invalidation, Residency, Routing};
    match (language, question) {
        (Rust, Residency) => template!("rust/residency.rs"),
        (Rust, Cost) => template!("rust/cost.rs"),
        (Rust, Routing) => template!("rust/routing.rs"),
        (Rust, Invalidation) => template!("rust/invalidation.rs"),
        (Js, Residency) => template!("js/residency.js"),
        (Js, Cost) => template!("js/cost.js"),
        (Js, Routing) => template!("js/routing.js"),
        (Js, Invalidation) => template!("js/invalidation.js"),
        (Python, Residency) => template!("python/residency.py"),
        (Python, Cost) => template!("python/cost.py"),
        (Python, Routing) => template!("python/routing.py"),
        (Python, Invalidation) => template!("python/invalidation.py"),
        (C, Residency) => template!("c/residency.c"),
        (C, Cost) => template!("c/cost.c"),
        (C, Routing) => template!("c/routing.c"),
        (C, Invalidation) => template!("c/invalidation.c"),
    }
}

/// What `policy test` asks the template of `question`, in any language.
const fn cases(question: QuestionKind) -> &'static str {
    match question {
        QuestionKind::Residency => template!("cases/residency.yaml"),
        QuestionKind::Cost => template!("cases/cost.yaml"),
        QuestionKind::Routing => template!("cases/routing.yaml"),
        QuestionKind::Invalidation => template!("cases/invalidation.yaml"),
    }
}

/// A configuration that the template of `question` takes, in any language.
const fn sample_config(question: QuestionKind) -> &'static str {
    match question {
        QuestionKind::Residency => r#"{"compute_also_in": "us"}"#,
        QuestionKind::Cost => r#"{"us_per_price_micro": 5}"#,
        QuestionKind::Routing => r#"{"near_below_tokens": 512}"#,
        QuestionKind::Invalidation => r#"{"max_idle_ms": 60000}"#,
    }
}

/// Rows of the README's table of files.
const fn helpers(language: Language) -> &'static str {
    match language {
        Language::Rust => {
            "| `portolan-sdk/` | the SDK's sources: typed views, traits, one macro a question |\n\
             | `Cargo.lock` | the versions that were built and tested with this release; keep it with the sources |"
        }
        Language::Js => "| `portolan.js` | typed views of rows, settings, and the exports of each question |",
        Language::Python => "| `portolan.py` | typed views of rows, settings, and helpers for the answers |",
        Language::C => {
            "| `portolan.h` | typed rows, settings, answers, the host's functions |\n\
             | `portolan.c` | memory and the component's exports; nothing there needs to change |"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_filled() {
        for language in Language::ALL {
            for question in QuestionKind::ALL {
                for (path, text) in files("near-first", question, language) {
                    if path.starts_with(sdk::FOLDER) {
                        continue;
                    }
                    let left = text.split_whitespace().find(|word| {
                        let marker = word.trim_matches(|c: char| c != '@' && !c.is_ascii_uppercase());
                        marker.len() > 2 && marker.starts_with('@') && marker.ends_with('@')
                    });
                    assert_eq!(left, None, "{language} {question}: {path}");
                    assert!(!text.is_empty(), "{path}");
                }
            }
        }
    }
}
