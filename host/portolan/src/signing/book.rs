//! The book of keys: which are trusted for which scope, until when, and where a signature is demanded.

use super::PublicKey;
use portolan_base::{Moment, TenantName};
use portolan_policy::Scope;
use portolan_ports::{Finding, Severity, Signatures, Signed, VersionSignature};
use std::collections::BTreeMap;

/// A key that is trusted.
#[derive(Clone, Copy, Debug)]
pub struct TrustedKey {
    /// The key.
    pub key: PublicKey,
    /// Nothing it signed can be made active from this moment on.
    pub not_after: Option<Moment>,
}

/// Whom a scope trusts.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Whether a component without a good signature is refused.
    pub required: bool,
    /// Whose signatures are good; several while keys are rotated.
    pub keys: Vec<TrustedKey>,
}

/// Whom every scope trusts.
#[derive(Clone, Debug, Default)]
pub struct KeyBook {
    /// For the platform's policies.
    pub platform: Trust,
    /// For the tenants'.
    pub tenants: BTreeMap<TenantName, Trust>,
}

/// What a signature is worth, the best first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Good,
    Bad(String),
    Expired(String),
    Unknown(String),
}

impl Trust {
    fn worth(&self, signature: &VersionSignature, sha256: &str, at: Moment) -> Worth {
        let id = signature.key_id.clone();
        match self.keys.iter().find(|trusted| trusted.key.id() == id) {
            None => Worth::Unknown(id),
            Some(trusted) if !trusted.key.made(signature, sha256) => Worth::Bad(id),
            Some(trusted) if trusted.not_after.is_some_and(|end| at >= end) => Worth::Expired(id),
            Some(_) => Worth::Good,
        }
    }

    /// The ids of the keys, for messages.
    fn ids(&self) -> String {
        let ids: Vec<String> = self.keys.iter().map(|trusted| trusted.key.id()).collect();
        match ids.is_empty() {
            true => "none".to_owned(),
            false => ids.join(", "),
        }
    }
}

impl Signatures for KeyBook {
    fn judge(&self, signed: &Signed<'_>) -> Vec<Finding> {
        let nobody = Trust::default();
        let trust = match signed.scope {
            Scope::Platform => &self.platform,
            Scope::Tenant(name) => self.tenants.get(name).unwrap_or(&nobody),
        };
        let best = signed
            .signatures
            .iter()
            .map(|signature| trust.worth(signature, signed.sha256, signed.at))
            .min();
        let demanded = match trust.required {
            true => Severity::Error,
            false => Severity::Warning,
        };
        let ids = trust.ids();
        let scope = signed.scope;
        let found = match best {
            Some(Worth::Good) => return Vec::new(),
            None if !trust.required => return Vec::new(),
            None => finding(
                ("unsigned", demanded),
                format!("the component has no signature, and {scope} demands one"),
                format!("sign it: `portolan policy sign FILE --key KEY`; trusted keys: {ids}"),
            ),
            // Wrong whether or not a signature is demanded: bytes or signature were changed on the way.
            Some(Worth::Bad(id)) => finding(
                ("bad-signature", Severity::Error),
                format!("the signature by key {id} is not of these bytes"),
                "sign the component as it is now, and send the two together".to_owned(),
            ),
            Some(Worth::Expired(id)) => finding(
                ("expired-key", demanded),
                format!("key {id} signed it, and its not_after has passed"),
                format!("sign it with a key that is valid; trusted keys: {ids}"),
            ),
            Some(Worth::Unknown(id)) => finding(
                ("unknown-key", demanded),
                format!("key {id} signed it, which {scope} does not trust"),
                format!(
                    "sign it with a trusted key, or have the operator add this one to signing_keys; trusted keys: {ids}"
                ),
            ),
        };
        vec![found]
    }
}

fn finding((code, severity): (&str, Severity), message: String, help: String) -> Finding {
    Finding {
        code: code.to_owned(),
        severity,
        message,
        help,
    }
}
