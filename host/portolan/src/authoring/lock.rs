//! `Cargo.lock` of a Rust project: the versions that the example in Rust was built and tested with, so that two authors
//! who build the same sources get the same component.

/// The example has what a project has: the SDK by its path, and serde.
const EXAMPLE: &str = include_str!("../../../../examples/01-routing-policy-rust/Cargo.lock");
const EXAMPLE_NAME: &str = "near-or-far";

/// What begins each package.
const PACKAGE: &str = "\n[[package]]\n";

/// The lock file of a project of this name. Cargo wants packages in the order of their names.
pub(super) fn of(project: &str) -> String {
    let mut parts = EXAMPLE.trim_end().split(PACKAGE);
    let head = parts.next().unwrap_or_default();
    let example = format!("name = \"{EXAMPLE_NAME}\"\n");
    let named = format!("name = \"{project}\"\n");
    let mut packages: Vec<String> = parts
        .map(|package| package.trim_end().replacen(&example, &named, 1))
        .collect();
    packages.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    let packages = packages.iter().map(|package| format!("{PACKAGE}{package}\n"));
    packages.fold(head.to_owned(), |lock, package| lock + &package)
}

/// The name that a package begins with.
fn name_of(package: &str) -> &str {
    package.split('"').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::sdk;
    use super::*;

    #[test]
    fn the_lock_names_the_project_in_its_place_and_is_otherwise_the_examples() {
        assert_eq!(of(EXAMPLE_NAME), EXAMPLE);
        for project in ["a-first", "zz-last"] {
            let lock = of(project);
            assert!(!lock.contains(EXAMPLE_NAME), "{lock}");
            let names: Vec<&str> = lock.split(PACKAGE).skip(1).map(name_of).collect();
            assert!(names.is_sorted(), "{names:?}");
            assert_eq!(names.iter().filter(|name| **name == project).count(), 1);
            assert_eq!(lock.lines().count(), EXAMPLE.lines().count());
        }
    }

    #[test]
    fn the_lock_has_whatever_the_sdk_depends_on() {
        for (path, manifest) in sdk::files()
            .iter()
            .filter(|(path, _)| path.ends_with("Cargo.toml"))
        {
            let mut wanted = false;
            for line in manifest.lines() {
                if line.starts_with('[') {
                    wanted = line.ends_with("dependencies]")
                        && !line.contains("dev-")
                        && !line.contains("workspace.");
                    continue;
                }
                let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
                if wanted && !name.is_empty() && !name.starts_with('#') {
                    let package = format!("{PACKAGE}name = \"{name}\"\n");
                    assert!(
                        EXAMPLE.contains(&package),
                        "{path} needs {name}: build the example, and commit its Cargo.lock"
                    );
                }
            }
        }
    }

    #[test]
    fn the_example_depends_on_what_a_project_depends_on() {
        let section = |manifest: &str| {
            let (_, rest) = manifest.split_once("[dependencies]\n").unwrap();
            let names = rest.lines().take_while(|line| !line.is_empty());
            let names = names.map(|line| line.split(' ').next().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        let example = include_str!("../../../../examples/01-routing-policy-rust/Cargo.toml");
        let project = include_str!("templates/rust/Cargo.toml.template");
        assert_eq!(section(example), section(project));
    }
}
