//! The coordinator's configuration. In: a TOML file. Out: checked settings; a key that is not known is an error. Called by the
//! coordinator's commands.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, de};
use shardplane_model::{
    state::{Settings, SlotMoves, VmOffer, VolumeOffer},
    time::Millis,
};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not TOML, or not ours.
    #[error("the configuration {path} is not valid")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value that breaks a rule.
    #[error("the configuration {path} is not valid: {rule}")]
    Rule {
        /// The file.
        path: PathBuf,
        /// Which rule, what was given.
        rule: String,
    },
}

/// The configuration of one member.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Log, snapshot and identity of this member.
    pub data_dir: PathBuf,
    /// Where REST, gRPC and the other members' calls are served.
    pub listen: SocketAddr,
    /// `host:port` at which the other members and the hosts reach this member.
    pub advertise: String,
    /// The cluster key: 32 bytes, mode 0600, the same file on every member, outside `data_dir`.
    pub key_file: PathBuf,
    /// Without contact for that long, a host is declared lost.
    #[serde(deserialize_with = "span")]
    pub lost_after: Millis,
    /// How long a primary serves without a word of the coordinator when not all its replicas follow it.
    #[serde(default = "usual_lease", deserialize_with = "span")]
    pub lease: Millis,
    /// How fast slots move when a shard is added or taken away.
    #[serde(default)]
    pub slot_moves: SlotMovesConfig,
    /// By engine: the version of a cluster that names none.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// Compute offers.
    #[serde(default, rename = "vm_offer")]
    pub vm_offers: Vec<VmOfferConfig>,
    /// Disk offers.
    #[serde(default, rename = "volume_offer")]
    pub volume_offers: Vec<VolumeOfferConfig>,
}

/// How fast slots move.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlotMovesConfig {
    /// Keys a second and cluster; 0 is no limit.
    keys_per_second: u32,
}

/// A compute offer: `g<generation>-<vcpus>c<memory in GiB>-<share in percent>`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmOfferConfig {
    id: String,
    generation: u32,
    vcpus: u32,
    memory_mib: u64,
    vcpu_share: u32,
    price_hour: f64,
}

/// A disk offer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeOfferConfig {
    id: String,
    iops: u32,
    max_size_gib: u32,
    price_gib_hour: f64,
}

/// Seconds as a number, or a text: `"30s"`, `"5m"`, `"1h"`, `"500ms"`.
fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Millis, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Seconds(u64),
        Text(String),
    }
    let refused = |given: &str| {
        de::Error::custom(format!(
            "{given:?} is not a span: write seconds as a number, or \"30s\", \"5m\", \"1h\", \"500ms\""
        ))
    };
    let (number, unit) = match Given::deserialize(deserializer)? {
        Given::Seconds(seconds) => (Some(seconds), 1_000),
        Given::Text(text) => {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            let unit = match &text[digits..] {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                _ => return Err(refused(&text)),
            };
            (Some(text[..digits].parse().map_err(|_| refused(&text))?), unit)
        }
    };
    let millis = number.and_then(|number: u64| number.checked_mul(unit));
    millis.map(Millis).ok_or_else(|| de::Error::custom("the span is too long"))
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// When the file cannot be read, has an unknown key, or breaks a rule.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text =
            fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config: Self = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.check().map_err(|rule| ConfigError::Rule { path: path.to_owned(), rule })?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        if self.key_file.starts_with(&self.data_dir) {
            return Err(format!(
                "key_file {} lies in data_dir: whoever copies the data would have the key; keep it elsewhere",
                self.key_file.display()
            ));
        }
        let port = self
            .advertise
            .rsplit_once(':')
            .and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?);
        if port.is_none_or(|port| port == 0) {
            return Err(format!("advertise {:?} is not host:port", self.advertise));
        }
        if self.lost_after < Millis::seconds(5) {
            return Err("lost_after is shorter than 5 s: a slow network would cost healthy hosts".to_owned());
        }
        if !(Millis::seconds(4)..=Millis::seconds(3600)).contains(&self.lease) {
            return Err("lease is not from 4 s to 1 h: shorter, a busy network would cut healthy primaries; longer, a lost one could not be replaced".to_owned());
        }
        for offer in &self.vm_offers {
            if offer.vcpus == 0 || offer.memory_mib < 256 || !(1..=100).contains(&offer.vcpu_share) {
                return Err(format!(
                    "vm_offer {:?} needs vcpus from 1, memory_mib from 256 and a vcpu_share of 1 to 100",
                    offer.id
                ));
            }
        }
        for offer in &self.volume_offers {
            if offer.iops == 0 || offer.max_size_gib == 0 {
                return Err(format!("volume_offer {:?} needs iops and max_size_gib from 1", offer.id));
            }
        }
        let prices = self.vm_offers.iter().map(|offer| (&offer.id, offer.price_hour));
        for (id, price) in
            prices.chain(self.volume_offers.iter().map(|offer| (&offer.id, offer.price_gib_hour)))
        {
            if !price.is_finite() || price < 0.0 {
                return Err(format!("the price of {id:?} is not a number from 0"));
            }
        }
        unique("vm_offer", self.vm_offers.iter().map(|offer| &offer.id))?;
        unique("volume_offer", self.volume_offers.iter().map(|offer| &offer.id))
    }

    /// The part that all members must agree on, for the log.
    pub fn settings(&self) -> Settings {
        let vm_offers = self.vm_offers.iter().map(|offer| {
            let VmOfferConfig { id, generation, vcpus, memory_mib, vcpu_share, price_hour } = offer.clone();
            (id, VmOffer { generation, vcpus, memory_mib, vcpu_share, price_hour })
        });
        let volume_offers = self.volume_offers.iter().map(|offer| {
            let VolumeOfferConfig { id, iops, max_size_gib, price_gib_hour } = offer.clone();
            (id, VolumeOffer { iops, max_size_gib, price_gib_hour })
        });
        Settings {
            vm_offers: vm_offers.collect::<BTreeMap<_, _>>(),
            volume_offers: volume_offers.collect::<BTreeMap<_, _>>(),
            lost_after: self.lost_after,
            lease: self.lease,
            slot_moves: SlotMoves { keys_per_second: self.slot_moves.keys_per_second },
            versions: self.versions.clone(),
        }
    }
}

fn usual_lease() -> Millis {
    Settings::LEASE
}

fn unique<'a>(kind: &str, ids: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut ids: Vec<&String> = ids.collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{kind} {:?} is there twice", pair[0])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../deploy/samples/coordinator.toml");

    fn load(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("coordinator.toml");
        fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    #[test]
    fn the_sample_is_valid() {
        let config = load(SAMPLE).unwrap();
        assert_eq!(config.lost_after, Millis::seconds(30));
        assert_eq!(config.lease, Millis::seconds(30));
        assert_eq!(load(&SAMPLE.replace("lease = \"30s\"", "")).unwrap().lease, Millis::seconds(30));
        let settings = config.settings();
        assert_eq!(settings.vm_offers["g3-1c1-20"].vcpu_share, 20);
        assert_eq!(settings.volume_offers["gp3-750"].iops, 750);
        assert_eq!(settings.slot_moves.keys_per_second, 0);
        let slower = load(&SAMPLE.replace("keys_per_second = 0", "keys_per_second = 5000")).unwrap();
        assert_eq!(slower.settings().slot_moves.keys_per_second, 5000);
        let without = SAMPLE.replace("[slot_moves]", "").replace("keys_per_second = 0", "");
        assert_eq!(load(&without).unwrap().settings().slot_moves.keys_per_second, 0);
    }

    #[test]
    fn a_span_is_seconds_or_a_text() {
        for (given, millis) in
            [("45", 45_000), ("\"45s\"", 45_000), ("\"2m\"", 120_000), ("\"5500ms\"", 5_500)]
        {
            let text = SAMPLE.replace("lost_after = \"30s\"", &format!("lost_after = {given}"));
            assert_eq!(load(&text).unwrap().lost_after, Millis(millis), "{given}");
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_and_named() {
        for (from, to, named) in [
            ("lost_after", "lost_aftr", "lost_aftr"),
            ("lost_after = \"30s\"", "lost_after = \"30 parsecs\"", "parsecs"),
            ("lost_after = \"30s\"", "lost_after = \"1s\"", "lost_after"),
            ("lease = \"30s\"", "lease = \"1s\"", "lease"),
            ("/etc/shardplane/cluster.key", "/var/lib/shardplane/coordinator/cluster.key", "key_file"),
            ("g3-1c1-20", "g3-1c1-100", "twice"),
            ("advertise = \"", "advertise = \"x", "advertise"),
            ("iops = 750", "iops = 0", "gp3-750"),
        ] {
            let text =
                SAMPLE.replace(from, to).replace("advertise = \"x10.0.0.1:7710", "advertise = \"10.0.0.1");
            let error = load(&text).map(drop).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(format!("{error} {source}").contains(named), "{from}: {error} {source}");
        }
    }
}
