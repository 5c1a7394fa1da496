//! The words for types. In: a word of a command. Out: a public type or a type of the operator's. Used by every verb.

use shardplane_model::{engine::EngineKind, resource::Kind};

use super::answer::Failure;

/// What a word stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A public resource type.
    Public(Kind),
    /// A type of the operator's.
    Operator(OperatorType),
}

/// The operator's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorType {
    /// Hosts.
    Host,
    /// What hosts can hold.
    Capacity,
    /// Members of groups.
    Instance,
    /// Chains of tasks.
    Operation,
    /// What happened.
    Event,
    /// What can be ordered.
    Catalogue,
    /// What callers sign in with.
    Token,
}

impl OperatorType {
    /// Every one, in the order a list of them shows.
    pub const ALL: [OperatorType; 7] = [
        OperatorType::Host,
        OperatorType::Capacity,
        OperatorType::Instance,
        OperatorType::Operation,
        OperatorType::Event,
        OperatorType::Catalogue,
        OperatorType::Token,
    ];

    /// The words for it, the main one first.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            OperatorType::Host => &["host", "hosts"],
            OperatorType::Capacity => &["capacity"],
            OperatorType::Instance => &["instance", "instances"],
            OperatorType::Operation => &["operation", "operations", "op"],
            OperatorType::Event => &["event", "events"],
            OperatorType::Catalogue => &["catalogue", "catalog", "offer", "offers"],
            OperatorType::Token => &["token", "tokens"],
        }
    }

    /// The verbs that it has.
    pub fn verbs(self) -> &'static str {
        match self {
            OperatorType::Host | OperatorType::Token => "get,describe,delete",
            OperatorType::Operation => "get,describe,wait,cancel",
            OperatorType::Instance
            | OperatorType::Capacity
            | OperatorType::Event
            | OperatorType::Catalogue => "get,describe",
        }
    }
}

/// The short words for a public type.
pub fn aliases(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Folder => &["folder", "folders"],
        Kind::HostingProvider => &["provider"],
        Kind::Vpc => &["vpc"],
        Kind::VpcSubnet => &["subnet"],
        Kind::Cluster(EngineKind::Valkey) => &["valkey", "vk"],
        Kind::ParametersSet(EngineKind::Valkey) => &["valkey-paramset", "vk-paramset"],
        Kind::Cluster(EngineKind::Postgres) => &["pg", "postgresql"],
        Kind::ParametersSet(EngineKind::Postgres) => &["pg-paramset"],
        Kind::Role(EngineKind::Postgres) => &["pg-role"],
        Kind::Role(EngineKind::Valkey) => &[],
    }
}

/// The product a type belongs to; `<product>-all` stands for all its types.
pub fn product(kind: Kind) -> &'static str {
    match kind {
        Kind::Folder | Kind::HostingProvider => "core",
        Kind::Vpc | Kind::VpcSubnet => "network",
        Kind::Cluster(engine) | Kind::ParametersSet(engine) | Kind::Role(engine) => engine.name(),
    }
}

/// The type a word stands for. Case does not matter, and a plural s is heard.
pub fn of(word: &str) -> Option<Type> {
    let word = word.to_ascii_lowercase();
    let is = |name: &str| {
        let name = name.to_ascii_lowercase();
        word == name || word.strip_suffix('s') == Some(name.as_str())
    };
    let public = Kind::all()
        .into_iter()
        .find(|kind| is(kind.path()) || is(kind.name()) || aliases(*kind).iter().any(|alias| is(alias)));
    let operator = || OperatorType::ALL.into_iter().find(|kind| kind.words().contains(&word.as_str()));
    public.map(Type::Public).or_else(|| operator().map(Type::Operator))
}

/// The types of a list of words with commas in between: `vpc,subnet`, `all`, `network-all`.
///
/// # Errors
/// Names the word that stands for no type.
pub fn list(words: &str) -> Result<Vec<Type>, Failure> {
    let mut types = Vec::new();
    for word in words.split(',').filter(|word| !word.is_empty()) {
        let group = word.strip_suffix("-all").unwrap_or_default();
        let whole: Vec<Type> = Kind::all()
            .into_iter()
            .filter(|kind| word == "all" || product(*kind) == group)
            .map(Type::Public)
            .collect();
        if whole.is_empty() {
            types.push(of(word).ok_or_else(|| unknown(word))?);
        } else {
            types.extend(whole);
        }
    }
    if types.is_empty() { Err(unknown(words)) } else { Ok(types) }
}

/// The one public type a word stands for.
///
/// # Errors
/// Names the word.
pub fn public(word: &str) -> Result<Kind, Failure> {
    match of(word) {
        Some(Type::Public(kind)) => Ok(kind),
        Some(Type::Operator(_)) => Err(Failure::Text(format!("{word} can be read with kc get, not changed"))),
        None => Err(unknown(word)),
    }
}

fn unknown(word: &str) -> Failure {
    Failure::Text(format!("there is no resource type {word:?}; kc api-resources lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_contract_is_understood() {
        for (word, path) in [
            ("valkey", "valkey"),
            ("vk", "valkey"),
            ("Valkey", "valkey"),
            ("vk-paramset", "valkey-parameters-set"),
            ("valkey-paramset", "valkey-parameters-set"),
            ("valkeyparametersset", "valkey-parameters-set"),
            ("ValkeyParametersSet", "valkey-parameters-set"),
            ("pg", "postgresql"),
            ("PostgreSql", "postgresql"),
            ("pg-paramset", "postgresql-parameters-set"),
            ("PostgreSqlParametersSet", "postgresql-parameters-set"),
            ("pg-role", "postgresql-role"),
            ("postgresqlrole", "postgresql-role"),
            ("vpc", "vpc"),
            ("vpcs", "vpc"),
            ("subnet", "vpc-subnet"),
            ("vpc-subnet", "vpc-subnet"),
            ("VpcSubnet", "vpc-subnet"),
            ("folders", "folder"),
            ("provider", "hosting-provider"),
        ] {
            assert_eq!(
                of(word).map(|t| matches!(t, Type::Public(k) if k.path() == path)),
                Some(true),
                "{word}"
            );
        }
        assert_eq!(of("hosts"), Some(Type::Operator(OperatorType::Host)));
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn groups_stand_for_their_types() {
        assert_eq!(list("network-all").unwrap(), [Type::Public(Kind::Vpc), Type::Public(Kind::VpcSubnet)]);
        assert_eq!(list("all").unwrap().len(), Kind::all().len());
        assert!(list("vpc,nothing").is_err());
    }
}
