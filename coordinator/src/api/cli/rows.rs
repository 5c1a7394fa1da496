//! The rows of the operator's types. In: messages of the Operator service. Out: for each list its columns, and for each item a row, an id
//! and a node for JSON and YAML. Used by [`super::operator`].

use serde::Serialize;
use shardplane_model::{
    state::{Footprint, State},
    time::Timestamp,
};
use shardplane_proto::{ids::OperationId, v1};

use super::{
    super::{json, json::Node},
    host,
    table::{self, Rows},
};

/// Rows and nodes of one list.
pub struct List {
    /// Columns.
    pub header: Vec<&'static str>,
    /// More columns, with `-o wide`.
    pub wide: Vec<&'static str>,
    /// The items in order.
    pub items: Vec<Item>,
}

/// One item of a list.
pub struct Item {
    /// Its id; an event's is its number.
    pub id: String,
    /// What people call it; an event's is its subject.
    pub name: String,
    /// A cell for each column.
    pub row: Vec<String>,
    /// A cell for each further column.
    pub wide: Vec<String>,
    /// For JSON and YAML.
    pub node: Node,
}

impl List {
    /// As a table.
    pub fn rows(self, wide: bool) -> Rows {
        let header = self.header.into_iter().chain(self.wide.into_iter().filter(|_| wide)).collect();
        let row = |item: Item| {
            (item.id, item.row.into_iter().chain(item.wide.into_iter().filter(|_| wide)).collect())
        };
        Rows { header, rows: self.items.into_iter().map(row).collect() }
    }
}

fn node<M: Serialize>(name: &str, message: &M) -> Node {
    json::message(name, message)
}

/// Hosts.
pub fn hosts(list: v1::HostList) -> List {
    let item = |host: v1::HostView| {
        let (has, promised) = (host.capacity.unwrap_or_default(), host.promised.unwrap_or_default());
        let free = host.free.unwrap_or_default();
        let images = host.images.iter().map(|image| format!("{}:{}", image.engine, image.version));
        let troubles = host
            .conditions
            .iter()
            .filter(|c| c.status != "True")
            .map(|c| format!("{}={}", c.r#type, c.status));
        Item {
            row: vec![
                host.name.clone(),
                host.id.clone(),
                host::state_of(&host),
                host.instances.to_string(),
                format!("{}/{}%", promised.vcpu_percent, has.vcpu_percent),
                format!("{}/{}Mi", promised.memory_mib, has.memory_mib),
                format!("{}/{}Gi", promised.disk_gib, has.disk_gib),
                format!("{}/{}", promised.iops, has.iops),
            ],
            wide: vec![
                host.rack.clone(),
                host.zone.clone(),
                host.underlay_ipv4.clone(),
                host.vmm.clone(),
                host.agent_version.clone(),
                images.collect::<Vec<_>>().join(","),
                troubles.collect::<Vec<_>>().join(","),
                format!("{}% {}Mi {}Gi {}", free.vcpu_percent, free.memory_mib, free.disk_gib, free.iops),
                host.last_report_time.clone(),
                host::maintenance(&host),
            ],
            node: node("HostView", &host),
            id: host.id,
            name: host.name,
        }
    };
    List {
        header: vec!["NAME", "ID", "STATE", "INSTANCES", "VCPU", "MEMORY", "DISK", "IOPS"],
        wide: vec![
            "RACK",
            "ZONE",
            "UNDERLAY",
            "VMM",
            "AGENT",
            "IMAGES",
            "CONDITIONS",
            "FREE",
            "LAST-REPORT",
            "CORDON",
        ],
        items: list.items.into_iter().map(item).collect(),
    }
}

/// Members of groups.
pub fn instances(list: v1::InstanceList) -> List {
    let item = |instance: v1::InstanceView| Item {
        row: vec![
            instance.id.clone(),
            instance.cluster_name.clone(),
            instance.shard_index.to_string(),
            instance.role.clone(),
            instance.host_name.clone(),
            instance.address.clone(),
            instance.machine.clone(),
            instance.engine_state.clone(),
            intent(&instance),
        ],
        wide: vec![instance.mac.clone(), instance.last_report_time.clone(), instance.message.clone()],
        node: node("InstanceView", &instance),
        id: instance.id.clone(),
        name: instance.id,
    };
    List {
        header: vec!["ID", "CLUSTER", "SHARD", "ROLE", "HOST", "ADDRESS", "MACHINE", "ENGINE", "INTENT"],
        wide: vec!["MAC", "LAST-REPORT", "MESSAGE"],
        items: list.items.into_iter().map(item).collect(),
    }
}

/// What the log wants of an instance: `wanted,fenced` while it must not serve, `wanted,fenced?` while its host has not confirmed that it
/// does not.
pub fn intent(instance: &v1::InstanceView) -> String {
    let fenced = instance.fence.as_ref().map(|fence| if fence.confirmed { ",fenced" } else { ",fenced?" });
    format!("{}{}", instance.intent, fenced.unwrap_or_default())
}

/// Chains of tasks.
pub fn operations(state: &State, now: Timestamp, list: v1::OperationList) -> List {
    let item = |operation: v1::OperationView| {
        let id: Option<OperationId> = operation.id.parse().ok();
        let begun = id.and_then(|id| state.operations.get(&id)).map(|operation| operation.created);
        let running =
            operation.steps.iter().filter(|step| step.phase == "running").map(|step| step.name.as_str());
        Item {
            row: vec![
                operation.id.clone(),
                operation.kind.clone(),
                if operation.cluster_name.is_empty() {
                    operation.cluster_id.clone()
                } else {
                    operation.cluster_name.clone()
                },
                operation.phase.clone(),
                format!("{}%", operation.progress),
                begun.map(|at| table::age(now, at)).unwrap_or_default(),
                operation.cause.clone(),
            ],
            wide: vec![
                done(&operation),
                left(&operation),
                if operation.cancellable { "yes" } else { "no" }.to_owned(),
                running.collect::<Vec<_>>().join(", "),
                operation.error.clone(),
                operation.notes.last().cloned().unwrap_or_default(),
            ],
            node: node("OperationView", &operation),
            id: operation.id.clone(),
            name: operation.id,
        }
    };
    List {
        header: vec!["ID", "KIND", "CLUSTER", "PHASE", "PROGRESS", "AGE", "CAUSE"],
        wide: vec!["DONE", "LEFT", "CANCELLABLE", "RUNNING", "ERROR", "NOTE"],
        items: list.items.into_iter().map(item).collect(),
    }
}

/// What was counted: `1200/4096 slots, 30000 keys`.
pub fn done(operation: &v1::OperationView) -> String {
    let goal = operation.goal.clone().unwrap_or_default();
    let mut counts = operation.counts.clone();
    let first = (goal.amount > 0)
        .then(|| format!("{}/{} {}", counts.remove(&goal.what).unwrap_or_default(), goal.amount, goal.what));
    let others = counts.into_iter().map(|(what, amount)| format!("{amount} {what}"));
    first.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// How long it may go on, where that is known.
pub fn left(operation: &v1::OperationView) -> String {
    operation
        .estimate_seconds
        .map(|seconds| format!("about {}", table::span(seconds.into())))
        .unwrap_or_default()
}

/// What happened.
pub fn events(state: &State, now: Timestamp, list: v1::EventList) -> List {
    let item = |event: v1::EventView| {
        let at = state.events.get(&u64::from(event.number)).map(|event| event.at);
        Item {
            row: vec![
                at.map(|at| table::age(now, at)).unwrap_or_default(),
                event.severity.clone(),
                event.reason.clone(),
                event.subject.clone(),
                event.message.clone(),
            ],
            wide: vec![event.time.clone()],
            node: node("EventView", &event),
            id: event.number.to_string(),
            name: event.subject,
        }
    };
    List {
        header: vec!["AGE", "SEVERITY", "REASON", "SUBJECT", "MESSAGE"],
        wide: vec!["TIME"],
        items: list.items.into_iter().map(item).collect(),
    }
}

/// What can be ordered.
pub fn catalogue(catalogue: v1::Catalogue) -> List {
    let vms = catalogue.vm_offers.into_iter().map(|offer| {
        let size = format!("{} vCPU at {}%, {} MiB", offer.vcpus, offer.vcpu_share, offer.memory_mib);
        let price = format!("{} per hour", offer.price_hour);
        let node = node("VmOffer", &offer);
        Item {
            row: vec![offer.id.clone(), "vm".to_owned(), size, price],
            wide: Vec::new(),
            node,
            id: offer.id.clone(),
            name: offer.id,
        }
    });
    let volumes = catalogue.volume_offers.into_iter().map(|offer| {
        let size = format!("{} IOPS, up to {} GiB", offer.iops, offer.max_size_gib);
        let price = format!("{} per GiB and hour", offer.price_gib_hour);
        let node = node("VolumeOffer", &offer);
        Item {
            row: vec![offer.id.clone(), "volume".to_owned(), size, price],
            wide: Vec::new(),
            node,
            id: offer.id.clone(),
            name: offer.id,
        }
    });
    List {
        header: vec!["ID", "KIND", "SIZE", "PRICE"],
        wide: Vec::new(),
        items: vms.chain(volumes).collect(),
    }
}

/// What callers sign in with.
pub fn tokens(list: v1::TokenList) -> List {
    let item = |token: v1::TokenView| Item {
        row: vec![token.name.clone(), token.id.clone(), token.scopes.join(","), token.create_time.clone()],
        wide: Vec::new(),
        node: node("TokenView", &token),
        id: token.id,
        name: token.name,
    };
    List {
        header: vec!["NAME", "ID", "SCOPES", "CREATED"],
        wide: Vec::new(),
        items: list.items.into_iter().map(item).collect(),
    }
}

/// What hosts can hold: a line a host, then their racks, zones and all together. What may be placed nowhere now is not free.
pub fn capacity(list: &v1::HostList) -> List {
    let mut hosts: Vec<&v1::HostView> = list.items.iter().collect();
    hosts.sort_by_key(|host| (&host.zone, &host.rack, &host.name));
    let mut items: Vec<Item> = hosts
        .iter()
        .map(|host| room([&host.zone, &host.rack, &host.name], &host::state_of(host), &[*host]))
        .collect();
    let mut racks: Vec<(&str, &str)> = hosts.iter().map(|h| (h.zone.as_str(), h.rack.as_str())).collect();
    racks.dedup();
    let mut zones: Vec<&str> = racks.iter().map(|(zone, _)| *zone).collect();
    zones.dedup();
    let within = |wanted: &dyn Fn(&v1::HostView) -> bool| {
        hosts.iter().copied().filter(|host| wanted(host)).collect::<Vec<_>>()
    };
    for (zone, rack) in &racks {
        let inside = within(&|host| host.zone == *zone && host.rack == *rack);
        items.push(room([zone, rack, "(rack)"], &table::count(inside.len(), "host"), &inside));
    }
    for zone in &zones {
        let inside = within(&|host| host.zone == *zone);
        items.push(room([zone, "(zone)", ""], &table::count(inside.len(), "host"), &inside));
    }
    if !hosts.is_empty() {
        items.push(room(["(all)", "", ""], &table::count(hosts.len(), "host"), &hosts));
    }
    List {
        header: vec!["ZONE", "RACK", "HOST", "STATE", "INSTANCES", "VCPU", "MEMORY", "DISK", "IOPS"],
        wide: Vec::new(),
        items,
    }
}

/// One line of [`capacity`]: `promised/capacity` and what is free.
fn room([zone, rack, host]: [&str; 3], state: &str, hosts: &[&v1::HostView]) -> Item {
    let sum = |of: &dyn Fn(&v1::HostView) -> Option<v1::Capacity>| {
        hosts.iter().filter_map(|host| of(host)).fold(Footprint::default(), |sum, c| {
            sum.plus(Footprint {
                vcpu_percent: c.vcpu_percent,
                memory_mib: c.memory_mib,
                disk_gib: c.disk_gib,
                iops: c.iops,
            })
        })
    };
    let has = sum(&|host| host.capacity);
    let promised = sum(&|host| host.promised);
    let free = sum(&|host| host.free.filter(|_| host::state_of(host) == "Ready"));
    let instances: u32 = hosts.iter().map(|host| host.instances).sum();
    let cell =
        |promised: u64, has: u64, free: u64, unit: &str| format!("{promised}/{has}{unit} ({free} free)");
    let footprint = |of: Footprint| {
        let members = [
            ("vcpuPercent", of.vcpu_percent),
            ("memoryMib", of.memory_mib),
            ("diskGib", of.disk_gib),
            ("iops", of.iops),
        ];
        Node::object(members.map(|(name, amount)| (name, Node::Integer(amount.into()))))
    };
    Item {
        id: [zone, rack, host].join("/"),
        name: host.to_owned(),
        row: vec![
            zone.to_owned(),
            rack.to_owned(),
            host.to_owned(),
            state.to_owned(),
            instances.to_string(),
            cell(promised.vcpu_percent, has.vcpu_percent, free.vcpu_percent, "%"),
            cell(promised.memory_mib, has.memory_mib, free.memory_mib, "Mi"),
            cell(promised.disk_gib, has.disk_gib, free.disk_gib, "Gi"),
            cell(promised.iops, has.iops, free.iops, ""),
        ],
        wide: Vec::new(),
        node: Node::object([
            ("zone", Node::from(zone)),
            ("rack", Node::from(rack)),
            ("host", Node::from(host)),
            ("state", Node::from(state)),
            ("instances", Node::Integer(instances.into())),
            ("capacity", footprint(has)),
            ("promised", footprint(promised)),
            ("free", footprint(free)),
        ]),
    }
}
