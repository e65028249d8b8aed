//! How KV crosses between sites, as the file says it.

use super::{Config, ConfigError};
use portolan_base::Bytes;
use portolan_transport::TransportConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// KV between sites, the same on every link.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TransferConfig {
    /// Largest chunk, in KiB; of two sites the smaller value is used ([transport.md](transport.md)).
    pub chunk_kib: u64,
    /// Silence after which a transfer counts as broken, and time that a broken link has to be made again, in ms.
    pub timeout_ms: u64,
    /// The longest a transfer may take, its prefill included, in seconds.
    pub deadline_s: u64,
    /// How often a damaged chunk is sent again before the transfer fails.
    pub max_retry: u32,
    /// Every chunk is verified at both ends. It cannot be switched off: a token computed from damaged KV would be wrong
    /// without anyone noticing.
    pub checksum_enabled: bool,
    /// KV connections are marked with `dscp`, so that the network can queue them apart from requests.
    pub isolated_transport_queue: bool,
    /// The mark, 0 to 63, with `isolated_transport_queue`; 10 is AF11, high-throughput data.
    pub dscp: u8,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            chunk_kib: 1024,
            timeout_ms: 2000,
            deadline_s: 600,
            max_retry: 3,
            checksum_enabled: true,
            isolated_transport_queue: false,
            dscp: 10,
        }
    }
}

impl TransferConfig {
    /// The same transport, as the file wants it.
    pub fn over(&self, transport: TransportConfig) -> TransportConfig {
        TransportConfig {
            chunk: Bytes(self.chunk_kib << 10),
            stall: Duration::from_millis(self.timeout_ms),
            deadline: Duration::from_secs(self.deadline_s),
            max_resend: self.max_retry,
            dscp: self.isolated_transport_queue.then_some(self.dscp),
            ..transport
        }
    }
}

impl Config {
    pub(super) fn check_transfer(&self) -> Result<(), ConfigError> {
        let transfer = &self.transfer;
        let chunk_max = portolan_transport::CHUNK_MAX.0 >> 10;
        for (key, value, possible) in [
            ("chunk_kib", transfer.chunk_kib, 4..=chunk_max),
            ("timeout_ms", transfer.timeout_ms, 100..=600_000),
            ("deadline_s", transfer.deadline_s, 1..=86_400),
            ("max_retry", u64::from(transfer.max_retry), 0..=100),
            ("dscp", u64::from(transfer.dscp), 0..=63),
        ] {
            if !possible.contains(&value) {
                let problem = format!("{} to {} are possible", possible.start(), possible.end());
                return Err(ConfigError::value(format!("transfer.{key}"), problem));
            }
        }
        if !transfer.checksum_enabled {
            let problem = "checksums cannot be switched off: a token computed from damaged KV would be wrong without \
                           anyone noticing; leave it out, or say `true`";
            return Err(ConfigError::value("transfer.checksum_enabled", problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::SiteName;
    use portolan_transport::ClusterSecret;

    fn parse(transfer: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [], transfer: {transfer},
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}]}}"
        ))
    }

    fn transport(transfer: &str) -> TransportConfig {
        let plain = TransportConfig::new(
            SiteName::new("paris").unwrap(),
            ([127, 0, 0, 1], 0).into(),
            ClusterSecret::derive("s"),
        );
        parse(transfer).unwrap().transfer.over(plain)
    }

    #[test]
    fn what_is_left_out_is_the_transports_own_default() {
        let plain = TransportConfig::new(
            SiteName::new("paris").unwrap(),
            ([127, 0, 0, 1], 0).into(),
            ClusterSecret::derive("s"),
        );
        let usual = transport("{}");
        assert_eq!(
            (
                usual.chunk,
                usual.stall,
                usual.deadline,
                usual.max_resend,
                usual.dscp
            ),
            (plain.chunk, plain.stall, plain.deadline, plain.max_resend, None)
        );
    }

    #[test]
    fn every_key_reaches_the_transport() {
        let said = transport(
            "{chunk_kib: 4096, timeout_ms: 8000, deadline_s: 60, max_retry: 2, checksum_enabled: true, \
              isolated_transport_queue: true, dscp: 18}",
        );
        assert_eq!(
            (said.chunk, said.stall, said.deadline, said.max_resend, said.dscp),
            (
                Bytes(4 << 20),
                Duration::from_secs(8),
                Duration::from_secs(60),
                2,
                Some(18)
            )
        );
        assert_eq!(transport("{isolated_transport_queue: true}").dscp, Some(10));
    }

    #[test]
    fn what_cannot_be_is_refused_by_key() {
        for (transfer, key) in [
            ("{chunk_kib: 1}", "transfer.chunk_kib"),
            ("{timeout_ms: 1}", "transfer.timeout_ms"),
            ("{dscp: 64}", "transfer.dscp"),
            (
                "{checksum_enabled: false}",
                "transfer.checksum_enabled: checksums cannot",
            ),
        ] {
            let refused = parse(transfer).unwrap_err().to_string();
            assert!(refused.starts_with(key), "{refused}");
        }
    }
}
