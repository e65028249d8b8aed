//! How KV is made smaller on a link, and whose KV never loses anything by it.

use super::{Config, ConfigError};
use portolan_base::kv::KvQuant;
use portolan_gateway::site::ExactKv;
use portolan_transport::{Coding, Compression};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What `links[].compression` may say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkCompression {
    /// Never.
    None,
    /// Lossless, where it saves time.
    #[default]
    Auto,
    /// Every chunk by LZ4.
    Lz4,
    /// Every chunk by Zstandard.
    Zstd,
    /// Attention KV in eight bits, where the request need not be exact; otherwise as `auto`.
    Int8,
    /// The same in four bits.
    Int4,
}

impl LinkCompression {
    /// How values are changed, if they are.
    pub fn quant(self) -> Option<KvQuant> {
        match self {
            Self::Int8 => Some(KvQuant::Int8),
            Self::Int4 => Some(KvQuant::Int4),
            Self::None | Self::Auto | Self::Lz4 | Self::Zstd => None,
        }
    }
}

impl From<LinkCompression> for Compression {
    fn from(said: LinkCompression) -> Self {
        match said {
            LinkCompression::None => Self::Off,
            LinkCompression::Auto => Self::WhenItPays,
            LinkCompression::Lz4 => Self::Always(Coding::Lz4),
            LinkCompression::Zstd => Self::Always(Coding::Zstd),
            LinkCompression::Int8 => Self::Always(Coding::Int8),
            LinkCompression::Int4 => Self::Always(Coding::Int4),
        }
    }
}

impl Config {
    /// Whose KV never crosses quantised.
    pub fn exact_kv(&self) -> ExactKv {
        let exact = self.tenants.iter().filter(|tenant| tenant.exact_kv);
        ExactKv {
            tenants: exact.map(|tenant| tenant.name.clone()).collect(),
            user_classes: self.exact_kv_classes.iter().cloned().collect(),
        }
    }

    pub(super) fn check_exact_classes(&self) -> Result<(), ConfigError> {
        let unknown = |class: &&String| !self.user_classes.contains(class);
        match self.exact_kv_classes.iter().find(unknown) {
            None => Ok(()),
            Some(class) => {
                let known = self.user_classes.join(", ");
                let problem = format!("{class:?} is not among user_classes: {known}");
                Err(ConfigError::value("exact_kv_classes", problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantName;
    use portolan_ports::Fidelity;
    use std::net::SocketAddr;

    const FILE: &str = "
data_dir: data
operator_keys: [op]
user_classes: [standard, sensitive]
exact_kv_classes: [sensitive]
models: []
sites:
  - {name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}
  - {name: virginia, jurisdiction: us, listen: '127.0.0.1:0', instances: []}
links: [{from: virginia, to: paris, capacity_mbps: 1000, compression: int4}, {from: paris, to: virginia, capacity_mbps: 9}]
tenants: [{name: acme, keys: [k1], exact_kv: true}, {name: globex, keys: [k2]}]
";

    #[test]
    fn a_link_quantises_at_both_ends_or_not_at_all() {
        let config = Config::parse(FILE).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let ends = |link: usize| {
            let link = &config.links[link];
            (link.egress().compression, link.way(address).quantised)
        };
        let int4 = Compression::Always(Coding::Int4);
        assert_eq!(ends(0), (Some(int4), Some(KvQuant::Int4)));
        assert_eq!(ends(1), (Some(Compression::WhenItPays), None), "never by itself");
    }

    #[test]
    fn a_tenant_or_a_class_can_forbid_it() {
        let exact = Config::parse(FILE).unwrap().exact_kv();
        let of = |tenant: &str, class| exact.fidelity(&TenantName::new(tenant).unwrap(), class);
        assert_eq!(of("globex", "standard"), Fidelity::Quantised);
        assert_eq!(of("globex", "sensitive"), Fidelity::Exact);
        assert_eq!(of("acme", "standard"), Fidelity::Exact);
    }
}
