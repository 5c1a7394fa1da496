//! The packet filter of a VPC: a port speaks only with its own MAC and its own IPv4 address.
//!
//! In: the subnets of a VPC. Out: the name of the table they need and the script that puts it into force in one
//! transaction. The name carries a digest of the content, so that a look at the names alone tells whether the right
//! filter is in force: rulesets are never parsed back.

use std::{collections::BTreeSet, fmt::Write as _};

use sha2::{Digest as _, Sha256};

use super::{name, wanted::WantedVpc};

/// Every table of ours begins with it.
pub(super) const TABLE_PREFIX: &str = "shardplane_";

/// What the filter of a VPC is called and holds.
pub(super) struct Filter {
    /// Name of its table in family bridge.
    pub table: String,
    body: String,
}

impl Filter {
    /// The filter that the VPC needs.
    pub fn of(vpc: &WantedVpc) -> Self {
        let mut ports: Vec<_> = vpc.subnets.iter().flat_map(|subnet| &subnet.ports).collect();
        ports.sort_by_key(|port| port.instance);
        let bound = ports.iter().map(|p| format!("\"{}\" . {} . {}", name::port(p.instance), p.mac, p.ipv4));
        let local = ports.iter().map(|p| p.mac.to_string()).collect::<BTreeSet<_>>();
        let body = render(&elements(bound), &elements(local.into_iter()));
        // 96 bits of it: enough to tell filters apart, short enough for a name.
        let table = format!("{TABLE_PREFIX}{}", hex::encode(&Sha256::digest(body.as_bytes())[..12]));
        Self { table, body }
    }

    /// The script that makes this filter the only one of ours, when these tables exist; `None` when it is already.
    pub fn script(&self, existing: &BTreeSet<String>) -> Option<String> {
        let mut script = String::new();
        for old in existing.iter().filter(|old| **old != self.table) {
            // Writing into a String cannot fail.
            let _ = writeln!(script, "delete table bridge {old}");
        }
        if !existing.contains(&self.table) {
            let _ = writeln!(script, "table bridge {} {{\n{}}}", self.table, self.body);
        }
        (!script.is_empty()).then_some(script)
    }
}

fn elements(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() { String::new() } else { format!("elements = {{ {} }};", items.join(", ")) }
}

/// What a port sends is dropped unless it is IPv4 or ARP in the port's own name; a DHCP server is no use there. What
/// comes out of a tunnel may have any name but that of a machine on this host.
fn render(bound: &str, local: &str) -> String {
    format!(
        "  set bound {{ type ifname . ether_addr . ipv4_addr; {bound} }}
  set local {{ type ether_addr; {local} }}
  chain from_port {{
    ether type ip udp sport 67 drop
    ether type ip iifname . ether saddr . ip saddr @bound accept
    ether type arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 iifname . ether saddr . arp saddr ip @bound iifname . arp saddr ether . arp saddr ip @bound accept
    drop
  }}
  chain prerouting {{
    type filter hook prerouting priority -300; policy accept;
    iifname \"spp*\" goto from_port
    iifname \"spx*\" ether saddr @local drop
  }}
"
    )
}

#[cfg(test)]
mod tests {
    use shardplane_proto::ids::ResourceId;

    use super::*;

    #[test]
    fn a_filter_in_force_needs_no_script_and_others_are_replaced_with_it() {
        let filter = Filter::of(&WantedVpc { vpc: ResourceId::from_u128(1), subnets: Vec::new() });
        assert_eq!(filter.script(&BTreeSet::from([filter.table.clone()])), None);
        let script = filter.script(&BTreeSet::from(["shardplane_old".to_owned()])).unwrap();
        assert!(
            script.starts_with("delete table bridge shardplane_old\ntable bridge shardplane_"),
            "{script}"
        );
        assert!(!script.contains("elements"), "{script}");
    }
}
