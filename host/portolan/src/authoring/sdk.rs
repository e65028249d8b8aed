//! The Rust SDK as it lies in a project's `portolan-sdk` folder: sources of this very version.

/// Path in the repository and text of every file the SDK is built from.
const SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/sdk_sources.rs"));

/// The folder in a project.
pub(super) const FOLDER: &str = "portolan-sdk";

/// The members of the two workspaces that a project needs; the repository's have more.
const MEMBERS: [(&str, &str); 2] = [
    ("Cargo.toml", "\"host/base\", \"host/policy\""),
    ("plugins/Cargo.toml", "\"sdk\", \"sdk/worlds/*\""),
];

/// Path in the project and text of every file.
pub(super) fn files() -> Vec<(String, String)> {
    SOURCES
        .iter()
        .map(|(path, text)| {
            let members = MEMBERS.iter().find(|(manifest, _)| manifest == path);
            let text = members.map_or_else(|| (*text).to_owned(), |(_, members)| with_members(text, members));
            (format!("{FOLDER}/{path}"), text)
        })
        .collect()
}

/// A workspace's manifest with another list of members.
fn with_members(manifest: &str, members: &str) -> String {
    let Some((before, rest)) = manifest.split_once("members = [") else {
        return manifest.to_owned();
    };
    let after = rest.split_once(']').map_or("", |(_, after)| after);
    format!("{before}members = [{members}]{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sdk_is_whole_and_its_workspaces_name_only_what_is_there() {
        let files = files();
        let text = |wanted: &str| {
            let path = format!("{FOLDER}/{wanted}");
            let found = files.iter().find(|(name, _)| *name == path);
            &found.unwrap_or_else(|| panic!("{path} is missing")).1
        };
        assert!(text("plugins/sdk/src/lib.rs").contains("Write a Portolan policy in Rust"));
        assert!(text("host/policy/src/column.rs").contains("RouteColumn"));
        assert!(text("wit/policy.wit").contains("package portolan:policy"));
        assert!(text("Cargo.toml").contains("members = [\"host/base\", \"host/policy\"]"));
        assert!(text("plugins/Cargo.toml").contains("members = [\"sdk\", \"sdk/worlds/*\"]"));
        assert!(!text("Cargo.toml").contains("\"host/gateway\","));
    }
}
