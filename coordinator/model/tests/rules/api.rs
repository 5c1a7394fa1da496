//! What the rules are asked through: a state that changes by its log alone, and messages that are right but for what a test changes.

use shardplane_model::{
    command::{Applied, Command, Decision, Delete, Entry},
    refusal::Refusal,
    resource::{Kind, User},
    state::{Sealed, Settings, State, VmOffer, VolumeOffer},
    time::{Millis, Timestamp},
    validate,
};
use shardplane_proto::{
    ids::{ClusterId, RequestId, ResourceId},
    v1::{self, resource::Body},
};

pub fn id(number: u128) -> ResourceId {
    ResourceId::from_u128(number)
}

pub fn metadata(of: ResourceId) -> Option<v1::Metadata> {
    Some(v1::Metadata { id: of.to_string(), name: "n".to_owned(), ..v1::Metadata::default() })
}

pub struct Api {
    pub state: State,
    pub index: u64,
}

impl Api {
    /// A VPC (1), a subnet (2) and a parameter set (3).
    pub fn new() -> Self {
        let mut api = Self { state: State::default(), index: 0 };
        let vm = VmOffer { generation: 3, vcpus: 1, memory_mib: 1024, vcpu_share: 100, price_hour: 0.01 };
        let volume = VolumeOffer { iops: 750, max_size_gib: 1000, price_gib_hour: 0.0 };
        let settings = Settings {
            vm_offers: [("g3-1c1-100".to_owned(), vm)].into(),
            volume_offers: [("gp3-750".to_owned(), volume)].into(),
            lost_after: Millis::seconds(30),
            ..Settings::default()
        };
        api.apply(Command::Configure(settings)).unwrap();
        api.put(Body::Vpc(v1::Vpc { metadata: metadata(id(1)), ..v1::Vpc::default() })).unwrap();
        api.put(subnet(2, 1, "10.20.0.0/24")).unwrap();
        api.put(parameters(&[("hz", "10")])).unwrap();
        api
    }

    pub fn apply(&mut self, command: Command) -> Result<Applied, Refusal> {
        self.index += 1;
        let entry = Entry { at: Timestamp(self.index * 1000), commands: vec![command] };
        self.state.apply(self.index, &entry).remove(0)
    }

    pub fn put(&mut self, body: Body) -> Result<Applied, Refusal> {
        let mut number = u128::from(self.index) << 32;
        let mut ids = || {
            number += 1;
            number
        };
        let submission = validate::put(&self.state, &v1::Resource { body: Some(body) }, &mut ids)?;
        let sealed = submission.secret.clone().map(|secret| Sealed(secret.into_bytes()));
        let user = User { id: "u".to_owned(), name: "u".to_owned() };
        let put = submission.into_put(RequestId::from_u128(u128::from(self.index) + 1), user, sealed);
        self.apply(Command::Put(put))
    }

    pub fn delete(&mut self, kind: Kind, number: u128) -> Result<Applied, Refusal> {
        let by = User { id: "u".to_owned(), name: "u".to_owned() };
        let request = RequestId::from_u128(u128::from(self.index) + 1);
        self.apply(Command::Delete(Delete { id: id(number), kind, request, by }))
    }
}

pub fn subnet(number: u128, vpc: u128, cidr: &str) -> Body {
    let spec = v1::VpcSubnetSpec { vpc_id: id(vpc).to_string(), ipv4_cidr: cidr.to_owned() };
    Body::VpcSubnet(v1::VpcSubnet {
        metadata: metadata(id(number)),
        spec: Some(spec),
        ..v1::VpcSubnet::default()
    })
}

pub fn parameters(pairs: &[(&str, &str)]) -> Body {
    let parameters = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Body::ValkeyParametersSet(v1::ValkeyParametersSet {
        metadata: metadata(id(3)),
        spec: Some(v1::ParametersSpec { parameters }),
        ..v1::ValkeyParametersSet::default()
    })
}

pub fn shards(count: u128) -> Vec<v1::ValkeyShardSpec> {
    (0..count)
        .map(|n| v1::ValkeyShardSpec { id: id(100 + n).to_string(), vpc_subnet_id: id(2).to_string() })
        .collect()
}

pub fn good() -> v1::ValkeySpec {
    v1::ValkeySpec {
        shards: shards(3),
        replicas_per_shard: Some(1),
        root_password: Some("secret".to_owned()),
        valkey_version: Some("8.1.1".to_owned()),
        vm_offer_id: Some("g3-1c1-100".to_owned()),
        volume_offer_id: Some("gp3-750".to_owned()),
        volume_size_gib: Some(10),
        ..v1::ValkeySpec::default()
    }
}

pub fn body(spec: v1::ValkeySpec) -> Body {
    Body::Valkey(v1::Valkey { metadata: metadata(id(10)), spec: Some(spec), ..v1::Valkey::default() })
}

pub type Change = Box<dyn Fn(&mut v1::ValkeySpec)>;

pub fn change(f: impl Fn(&mut v1::ValkeySpec) + 'static) -> Change {
    Box::new(f)
}

pub fn password(text: impl Into<String>) -> Change {
    let text = text.into();
    change(move |s| s.root_password = Some(text.clone()))
}

/// A cluster of `count` shards that is made.
pub fn made(count: u128) -> Api {
    made_of(v1::ValkeySpec { shards: shards(count), ..good() })
}

/// A cluster that was made by this spec.
pub fn made_of(spec: v1::ValkeySpec) -> Api {
    let mut api = Api::new();
    api.put(subnet(4, 1, "10.21.0.0/24")).unwrap();
    api.put(body(spec)).unwrap();
    let cluster = ClusterId::from(id(10));
    let request = api.state.resources[&ResourceId::from(cluster)].change.request;
    api.apply(Command::Decide(Decision::Satisfied { cluster, request })).unwrap();
    api
}

pub fn with_shards(shards: Vec<v1::ValkeyShardSpec>) -> Body {
    body(v1::ValkeySpec { shards, ..good() })
}
