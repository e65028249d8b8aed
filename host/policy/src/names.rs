//! The tables behind the indices: what `configure` hands to a policy once.

use serde::{Deserialize, Serialize};

/// A site as a policy knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteEntry {
    /// The operator's name.
    pub name: String,
    /// The region, free text.
    pub region: String,
    /// Index into [`NameTables::jurisdictions`].
    pub jurisdiction: u32,
}

/// Names of everything that rows hold as an index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameTables {
    /// The tenant the policy is bound to; empty for a platform policy.
    pub tenant: String,
    /// Every site, in index order.
    pub sites: Vec<SiteEntry>,
    /// Every jurisdiction; index 0 is `any`, "no restriction stated".
    pub jurisdictions: Vec<String>,
    /// Every model.
    pub models: Vec<String>,
    /// Every user class; index 0 is `standard`.
    pub user_classes: Vec<String>,
}

impl NameTables {
    /// The index of `name` among the jurisdictions.
    pub fn jurisdiction(&self, name: &str) -> Option<u32> {
        position(&self.jurisdictions, |j| j == name)
    }

    /// The index of `name` among the sites.
    pub fn site(&self, name: &str) -> Option<u32> {
        position(&self.sites, |s| s.name == name)
    }
}

fn position<T>(items: &[T], wanted: impl Fn(&T) -> bool) -> Option<u32> {
    items.iter().position(wanted).and_then(|i| u32::try_from(i).ok())
}
