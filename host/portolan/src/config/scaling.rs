//! Whom a host tells how many instances its load asks for.

use super::{Config, ConfigError};
use portolan_fleet::Conversion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Scaling signals beside the metrics page.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScalingConfig {
    /// Called when the wanted instances change; none: only the metrics page says.
    #[schemars(with = "Option<String>")]
    pub webhook: Option<WebhookUrl>,
    /// Least seconds between two calls.
    pub every_s: u64,
    /// Whether instances of role `both` are divided between prefill and decode as the plan says.
    pub convert_roles: bool,
}

impl Default for ScalingConfig {
    fn default() -> Self {
        Self {
            webhook: None,
            every_s: 60,
            convert_roles: false,
        }
    }
}

/// An address that is called. Its path and query may hold a secret and are never shown.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct WebhookUrl {
    url: String,
    shown: String,
}

/// Why an address cannot be called.
#[derive(Debug, thiserror::Error)]
#[error("a webhook is an http:// or https:// address with a host")]
pub struct NoWebhook;

impl TryFrom<String> for WebhookUrl {
    type Error = NoWebhook;

    fn try_from(url: String) -> Result<Self, NoWebhook> {
        let parsed: ureq::http::Uri = url.parse().map_err(|_| NoWebhook)?;
        let scheme = parsed
            .scheme_str()
            .filter(|scheme| ["http", "https"].contains(scheme));
        let (Some(scheme), Some(host)) = (scheme, parsed.host().filter(|host| !host.is_empty())) else {
            return Err(NoWebhook);
        };
        let port = parsed
            .port_u16()
            .map(|port| format!(":{port}"))
            .unwrap_or_default();
        let shown = format!("{scheme}://{host}{port}");
        Ok(Self { url, shown })
    }
}

impl From<WebhookUrl> for String {
    fn from(webhook: WebhookUrl) -> Self {
        webhook.url
    }
}

impl WebhookUrl {
    /// All of it.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/…")
    }
}

impl ScalingConfig {
    /// How a site's instances of role `both` are divided.
    pub const fn conversion(&self) -> Conversion {
        if self.convert_roles {
            Conversion::ByPlan
        } else {
            Conversion::Never
        }
    }
    /// Least time between two calls.
    pub fn every(&self) -> Duration {
        Duration::from_secs(self.every_s)
    }
}

impl Config {
    pub(super) fn check_scaling(&self) -> Result<(), ConfigError> {
        if self.scaling.every_s == 0 {
            return Err(ConfigError::value("scaling.every_s", "at least 1 is needed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(scaling: &str) -> Result<ScalingConfig, ConfigError> {
        let text = format!(
            "{{data_dir: data, operator_keys: [op], models: [], scaling: {scaling},
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]}}"
        );
        Config::parse(&text).map(|config| config.scaling)
    }

    #[test]
    fn a_webhook_is_called_and_not_shown() {
        let scaling =
            parse("{webhook: 'https://user:pw@scaler.example:8443/hook/s3cret?k=s3cret', every_s: 30}")
                .unwrap();
        assert_eq!(scaling.every(), Duration::from_secs(30));
        let hook = scaling.webhook.clone().unwrap();
        assert!(hook.url().ends_with("k=s3cret"));
        for shown in [hook.to_string(), format!("{scaling:?}")] {
            assert!(shown.contains("https://scaler.example:8443"), "{shown}");
            assert!(!shown.contains("s3cret") && !shown.contains("pw"), "{shown}");
        }
        let usual = parse("{}").unwrap();
        assert_eq!(
            (usual.webhook.clone(), usual.conversion()),
            (None, Conversion::Never)
        );
        assert_eq!(
            parse("{convert_roles: true}").unwrap().conversion(),
            Conversion::ByPlan
        );
    }

    #[test]
    fn what_cannot_be_called_is_refused() {
        for (scaling, named) in [
            ("{webhook: scaler.example}", "http://"),
            ("{webhook: 'ftp://scaler.example/x'}", "http://"),
            ("{webhook: 'https:///x'}", "http://"),
            ("{every_s: 0}", "scaling.every_s"),
            ("{hook: 'https://x.example'}", "webhook"),
        ] {
            let refused = parse(scaling).unwrap_err().to_string();
            assert!(refused.contains(named), "{scaling}: {refused}");
        }
    }
}
