//! Whom policies may come from, and who must agree to a change: the keys `policies`, `tenants[].signing_keys` and
//! `operator_keys`.

use super::{Config, ConfigError, QuotaConfig};
use crate::signing::{self, KeyBook, PublicKey, Trust, TrustedKey};
use portolan_base::OperatorName;
use portolan_gateway::policies::FourEyes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// A key of the platform's operator.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum OperatorKey {
    /// The key alone.
    Plain(String),
    /// The key and who holds it.
    Named {
        /// Who holds it: what tells two operators apart.
        #[schemars(with = "super::schema::Name")]
        name: OperatorName,
        /// The key.
        key: String,
    },
}

impl OperatorKey {
    /// The key.
    pub fn key(&self) -> &str {
        match self {
            Self::Plain(key) | Self::Named { key, .. } => key,
        }
    }

    /// Who holds it.
    pub const fn holder(&self) -> Option<&OperatorName> {
        match self {
            Self::Plain(_) => None,
            Self::Named { name, .. } => Some(name),
        }
    }
}

/// A public key whose signatures are trusted.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum SigningKey {
    /// The key alone, `ed25519:HEX`.
    Plain(String),
    /// The key and its last day.
    Dated {
        /// The key, `ed25519:HEX`.
        key: String,
        /// The last day, `YYYY-MM-DD` in UTC, on which what it signed can be made active.
        not_after: String,
    },
}

/// Rules for the platform's policies.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoliciesConfig {
    /// Platform policies must be [signed](policies.md#signing) by one of `signing_keys`.
    #[serde(default)]
    pub require_signature: bool,
    /// Whose signatures count for platform policies; `not_after` is a day, `2027-01-31`, in UTC, the last on which they
    /// do.
    #[serde(default)]
    pub signing_keys: Vec<SigningKey>,
    /// A change of a platform policy waits for a [second operator](policies.md#approval); every operator key then needs
    /// a name, and two different ones.
    #[serde(default)]
    pub four_eyes: bool,
    /// How long it can be approved.
    #[serde(default = "a_day")]
    pub proposal_hours: u32,
    /// Quotas of every tenant that names none of its own.
    #[serde(default)]
    pub quotas: QuotaConfig,
}

impl Default for PoliciesConfig {
    fn default() -> Self {
        Self {
            require_signature: false,
            signing_keys: Vec::new(),
            four_eyes: false,
            proposal_hours: a_day(),
            quotas: QuotaConfig::default(),
        }
    }
}

/// Long enough for a colleague in another time zone, short enough that nobody approves what was meant for last week.
fn a_day() -> u32 {
    24
}

impl Config {
    /// The book of keys it describes.
    pub fn key_book(&self) -> Result<KeyBook, ConfigError> {
        let tenants = self.tenants.iter().map(|tenant| {
            let place = format!("tenants.{}", tenant.name);
            let trust = trust(tenant.require_signature, &tenant.signing_keys, &place)?;
            Ok((tenant.name.clone(), trust))
        });
        Ok(KeyBook {
            platform: trust(
                self.policies.require_signature,
                &self.policies.signing_keys,
                "policies",
            )?,
            tenants: tenants.collect::<Result<_, ConfigError>>()?,
        })
    }

    /// Whether and how changes of the platform's policies wait for a second operator.
    pub fn four_eyes(&self) -> Option<FourEyes> {
        let expiry = Duration::from_secs(3600 * u64::from(self.policies.proposal_hours));
        self.policies.four_eyes.then_some(FourEyes { expiry })
    }

    /// Checks the keys, and that there are two operators where two must agree.
    pub(super) fn check_trust(&self) -> Result<(), ConfigError> {
        self.key_book()?;
        if !self.policies.four_eyes {
            return Ok(());
        }
        if self.policies.proposal_hours == 0 {
            return Err(ConfigError::value(
                "policies.proposal_hours",
                "at least 1 is needed",
            ));
        }
        let holders: BTreeSet<_> = self
            .operator_keys
            .iter()
            .filter_map(OperatorKey::holder)
            .collect();
        let unnamed = self.operator_keys.iter().any(|key| key.holder().is_none());
        if unnamed || holders.len() < 2 {
            let problem = "policies.four_eyes needs keys of at least two operators, each written {name: NAME, key: KEY}";
            return Err(ConfigError::value("operator_keys", problem));
        }
        Ok(())
    }
}

fn trust(required: bool, keys: &[SigningKey], place: &str) -> Result<Trust, ConfigError> {
    if required && keys.is_empty() {
        let problem = "require_signature is set and no key is trusted: every policy would be refused";
        return Err(ConfigError::value(format!("{place}.signing_keys"), problem));
    }
    let keys = keys.iter().zip(0..).map(|(key, position)| {
        let place = format!("{place}.signing_keys[{position}]");
        let bad = |problem: String| ConfigError::value(place.clone(), problem);
        let (text, day) = match key {
            SigningKey::Plain(text) => (text, None),
            SigningKey::Dated { key, not_after } => (key, Some(not_after)),
        };
        let key: PublicKey = text.parse().map_err(|e: signing::BadKey| bad(e.to_string()))?;
        let not_after = day
            .map(|day| signing::end_of(day))
            .transpose()
            .map_err(|e| bad(e.to_string()))?;
        Ok(TrustedKey { key, not_after })
    });
    let keys = keys.collect::<Result<_, ConfigError>>()?;
    Ok(Trust { required, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn parse(operators: &str, policies: &str, acme: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [{operators}], policies: {{{policies}}}, models: [],
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}],
               tenants: [{{name: acme, keys: [k1]{acme}}}]}}"
        ))
    }

    const TWO: &str = "{name: alice, key: a}, {name: bob, key: b}";

    #[test]
    fn keys_and_their_days_are_read() {
        let acme = format!(
            ", require_signature: true, signing_keys: ['{KEY}', {{key: '{KEY}', not_after: 2027-01-31}}]"
        );
        let config = parse("plain", "", &acme).unwrap();
        let book = config.key_book().unwrap();
        let acme = book.tenants.values().next().unwrap();
        assert!(acme.required && !book.platform.required);
        assert_eq!(acme.keys[0].not_after, None);
        assert_eq!(
            acme.keys[1].not_after,
            Some(signing::end_of("2027-01-31").unwrap())
        );
        assert!(config.four_eyes().is_none());
        let config = parse(TWO, "four_eyes: true", "").unwrap();
        assert_eq!(config.four_eyes().unwrap().expiry, Duration::from_secs(86_400));
        assert_eq!(config.operator_keys[1].holder().unwrap().as_str(), "bob");
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let signed = ", require_signature: true";
        for (operators, policies, acme, expected) in [
            (
                "op",
                "",
                signed,
                "tenants.acme.signing_keys: require_signature is set",
            ),
            (
                "op",
                "require_signature: true",
                "",
                "policies.signing_keys: require_signature is set",
            ),
            (
                "op",
                "signing_keys: ['ed25519:12']",
                "",
                "policies.signing_keys[0]: a text of 10 bytes is no public key",
            ),
            (
                "op",
                "four_eyes: true",
                "",
                "operator_keys: policies.four_eyes needs keys of at least two",
            ),
            (
                "{name: alice, key: a}, {name: alice, key: b}",
                "four_eyes: true",
                "",
                "operator_keys",
            ),
            (
                "{name: alice, key: a}, {name: bob, key: b}, op",
                "four_eyes: true",
                "",
                "operator_keys",
            ),
            (
                TWO,
                "four_eyes: true, proposal_hours: 0",
                "",
                "policies.proposal_hours",
            ),
            ("{name: alice, key: a}, a", "", "", "operator_keys"),
        ] {
            let error = parse(operators, policies, acme).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let dated = format!("signing_keys: [{{key: '{KEY}', not_after: '2027-02-30'}}]");
        let error = parse("op", &dated, "").unwrap_err().to_string();
        assert!(
            error.contains("policies.signing_keys[0]") && error.contains("2027-02-30"),
            "{error}"
        );
    }
}
