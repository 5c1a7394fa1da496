//! What the installation offers, from the coordinator's configuration. In: changed by `Command::Configure` alone. Out: read by
//! validation, placement and prices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::time::Millis;

/// Offers and timings of the installation, from the coordinator's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Compute offers by id.
    pub vm_offers: BTreeMap<String, VmOffer>,
    /// Disk offers by id.
    pub volume_offers: BTreeMap<String, VolumeOffer>,
    /// Without contact for that long, a host is declared lost.
    pub lost_after: Millis,
    /// How long a primary serves without a word of the coordinator when not all its replicas follow it.
    #[serde(default = "Settings::usual_lease", skip_serializing_if = "Settings::is_usual_lease")]
    pub lease: Millis,
    /// How fast slots move.
    #[serde(default, skip_serializing_if = "SlotMoves::is_default")]
    pub slot_moves: SlotMoves,
    /// By engine: the version of a cluster that names none, where its user may leave it out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            vm_offers: BTreeMap::new(),
            volume_offers: BTreeMap::new(),
            lost_after: Millis::default(),
            lease: Self::LEASE,
            slot_moves: SlotMoves::default(),
            versions: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// The lease of an installation that names none.
    pub const LEASE: Millis = Millis::seconds(30);

    fn usual_lease() -> Millis {
        Self::LEASE
    }

    fn is_usual_lease(lease: &Millis) -> bool {
        *lease == Self::LEASE
    }
}

/// How fast slots move between shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotMoves {
    /// Keys a second and cluster; 0 is no limit.
    #[serde(default)]
    pub keys_per_second: u32,
}

impl SlotMoves {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A compute offer, for example `g3-1c1-100`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmOffer {
    /// Hardware generation.
    pub generation: u32,
    /// Virtual processors.
    pub vcpus: u32,
    /// MiB.
    pub memory_mib: u64,
    /// Percent of each vCPU that is promised.
    pub vcpu_share: u32,
    /// Per instance.
    pub price_hour: f64,
}

/// A disk offer, for example `gp3-750`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeOffer {
    /// I/O operations a second.
    pub iops: u32,
    /// Largest volume, GiB.
    pub max_size_gib: u32,
    /// Per GiB.
    pub price_gib_hour: f64,
}
