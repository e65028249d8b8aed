//! Who is asking a registry: what was typed, else the environment, else what `docker login` left.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// User and password for a registry, encoded as HTTP wants them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(String);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    #[serde(default)]
    auth: String,
}

impl Credentials {
    /// A user with a password.
    pub fn new(user: &str, password: &str) -> Self {
        Self(STANDARD.encode(format!("{user}:{password}")))
    }

    /// What a `config.json` of docker holds for a host, in the file itself; helpers are not asked. A file that is
    /// missing or of another shape holds nothing.
    pub fn of_docker(config: &Path, host: &str) -> Option<Self> {
        let text = std::fs::read(config).ok()?;
        let config: DockerConfig = serde_json::from_slice(&text).ok()?;
        let found = config.auths.into_iter().find(|(key, _)| {
            let bare = key.trim_start_matches("https://").trim_start_matches("http://");
            bare.split('/').next() == Some(host)
        });
        let auth = found?.1.auth;
        STANDARD.decode(&auth).ok().filter(|text| text.contains(&b':'))?;
        Some(Self(auth))
    }

    /// The header's value.
    pub(super) fn header(&self) -> String {
        format!("Basic {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_docker_login_left_is_found_by_host() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let text = r#"{"auths": {"https://ghcr.io/v2/": {"auth": "dTpw"}, "127.0.0.1:5000": {}}, "credsStore": "x"}"#;
        std::fs::write(&path, text).unwrap();
        assert_eq!(
            Credentials::of_docker(&path, "ghcr.io"),
            Some(Credentials::new("u", "p"))
        );
        assert_eq!(Credentials::of_docker(&path, "127.0.0.1:5000"), None);
        assert_eq!(Credentials::of_docker(&path, "ghcr.io.example.com"), None);
        assert_eq!(
            Credentials::of_docker(&folder.path().join("none"), "ghcr.io"),
            None
        );
        assert!(!format!("{:?}", Credentials::new("u", "p")).contains("dTpw"));
    }
}
