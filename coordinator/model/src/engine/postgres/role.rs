//! A login role of a cluster. In: a message, and the other roles. Out: a typed spec, violations, and what guests are told. Roles are resources of
//! their own, so that a password can be rotated without a change of the cluster; they go with it.

use serde::{Deserialize, Serialize};
use shardplane_proto::{
    ids::{ClusterId, ResourceId},
    v1,
};

use super::moment;
use crate::{
    engine::EngineKind,
    refusal::Violation,
    resource::{Kind, Resource},
    state::{Sealed, State},
    time::Timestamp,
    validate::fields::id_field,
};

/// A role as the user wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleSpec {
    /// The cluster it belongs to.
    pub cluster: ResourceId,
    /// Its name in the database.
    pub name: String,
    /// Sealed with the role's id; empty when it has none.
    pub password: Sealed,
    /// Whether it may log in.
    pub login: bool,
    /// Whether it may create databases.
    pub create_db: bool,
    /// Most connections at once; -1 is no limit.
    pub connection_limit: i32,
    /// Its password is not accepted after that.
    pub valid_until: Option<Timestamp>,
    /// Roles whose rights it has.
    pub member_of: Vec<String>,
    /// Who gets what it owns when it is deleted.
    pub reassign_owned_to: Option<String>,
}

/// Names that the engine and the platform use.
const RESERVED: [&str; 6] = ["postgres", "public", "none", "current_user", "session_user", "user"];
const RESERVED_BEGINNINGS: [&str; 3] = ["pg_", "citus", "shardplane"];
/// Longest name, bytes: PostgreSQL cuts what is longer.
const LONGEST_NAME: usize = 63;
/// Longest password in bytes.
const LONGEST_PASSWORD: usize = 512;
/// Most roles that one is a member of.
const MOST_MEMBERSHIPS: usize = 64;

fn check_name(path: &str, name: &str, wrong: &mut Vec<Violation>) {
    let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
    let rest = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if name.is_empty() || name.len() > LONGEST_NAME || !first || !rest {
        let text = format!(
            "is {name:?}; a role's name has 1 to {LONGEST_NAME} of a-z, 0-9 and underscore, and begins with a letter or underscore"
        );
        wrong.push(Violation::new(path, text));
    } else if RESERVED.contains(&name) || RESERVED_BEGINNINGS.iter().any(|begin| name.starts_with(begin)) {
        let text = format!("is {name:?}, which is reserved; choose another name");
        wrong.push(Violation::new(path, text));
    }
}

fn check_password(password: &str, wrong: &mut Vec<Violation>) {
    let path = "spec.password";
    if password.is_empty() || password.len() > LONGEST_PASSWORD {
        wrong.push(Violation::new(
            path,
            format!("has {} bytes; it has 1 to {LONGEST_PASSWORD}", password.len()),
        ));
    }
    if password.chars().any(char::is_control) {
        wrong.push(Violation::new(
            path,
            "holds a line break or another control character; those are not allowed",
        ));
    }
}

impl RoleSpec {
    /// Reads the message, collecting every violation. `given_name` is the resource's own name, which the role has when its spec names none.
    /// The password stays outside: it is sealed before it is stored.
    pub fn parse(
        given: &v1::PostgreSqlRoleSpec,
        given_name: &str,
        wrong: &mut Vec<Violation>,
    ) -> (Self, Option<String>) {
        let nil = ResourceId::from_u128(0);
        let cluster = id_field("spec.postgreSqlId", Some(&given.postgre_sql_id), wrong).unwrap_or(nil);
        let named = given.name.clone().filter(|name| !name.is_empty());
        let name = named.unwrap_or_else(|| given_name.to_owned());
        check_name("spec.name", &name, wrong);
        let password = given.password.clone();
        if let Some(password) = &password {
            check_password(password, wrong);
        }
        let connection_limit = given.connection_limit.unwrap_or(-1);
        if connection_limit < -1 {
            let text = format!("is {connection_limit}; it is -1 for no limit, or 0 and more");
            wrong.push(Violation::new("spec.connectionLimit", text));
        }
        let until = given.valid_until.as_ref().filter(|text| !text.is_empty());
        let valid_until = until.and_then(|text| match moment::parse(text) {
            Ok(at) => Some(at),
            Err(why) => {
                wrong.push(Violation::new("spec.validUntil", why));
                None
            }
        });
        if given.member_of.len() > MOST_MEMBERSHIPS {
            let text =
                format!("has {} entries; at most {MOST_MEMBERSHIPS} are allowed", given.member_of.len());
            wrong.push(Violation::new("spec.memberOf", text));
        }
        let mut member_of: Vec<String> = given.member_of.iter().take(MOST_MEMBERSHIPS).cloned().collect();
        member_of.sort_unstable();
        member_of.dedup();
        let spec = Self {
            cluster,
            name,
            password: Sealed(Vec::new()),
            login: given.login.unwrap_or(true),
            create_db: given.create_db.unwrap_or(false),
            connection_limit,
            valid_until,
            member_of,
            reassign_owned_to: given.reassign_owned_to.clone().filter(|name| !name.is_empty()),
        };
        (spec, password)
    }

    /// The message again. `password` when the reader may see it.
    pub fn to_message(&self, password: Option<&str>) -> v1::PostgreSqlRoleSpec {
        v1::PostgreSqlRoleSpec {
            postgre_sql_id: self.cluster.to_string(),
            name: Some(self.name.clone()),
            password: password.map(str::to_owned),
            login: Some(self.login),
            create_db: Some(self.create_db),
            connection_limit: Some(self.connection_limit),
            valid_until: self.valid_until.map(|at| at.to_string()),
            member_of: self.member_of.clone(),
            reassign_owned_to: self.reassign_owned_to.clone(),
        }
    }

    /// The resources it names, with path and type.
    pub fn references(&self) -> Vec<(String, Kind, ResourceId)> {
        vec![("spec.postgreSqlId".to_owned(), Kind::Cluster(EngineKind::Postgres), self.cluster)]
    }

    /// What guests are told. `password` in clear.
    pub fn wanted(&self, password: String) -> v1::PostgresRoleWanted {
        v1::PostgresRoleWanted {
            name: self.name.clone(),
            password,
            login: self.login,
            create_db: self.create_db,
            connection_limit: self.connection_limit,
            valid_until: self.valid_until.map(|at| at.to_string()).unwrap_or_default(),
            member_of: self.member_of.clone(),
        }
    }
}

/// The roles of a cluster, those that are being deleted too.
pub fn of_cluster(state: &State, cluster: ResourceId) -> impl Iterator<Item = (&Resource, &RoleSpec)> {
    let known = state.clusters.get(&ClusterId::from(cluster));
    let dropped = || known.into_iter().flat_map(|known| known.roles.dropped.iter().map(|role| role.resource));
    let members = known.into_iter().flat_map(|known| known.roles.members.iter().copied());
    members.chain(dropped()).filter_map(|id| {
        let resource = state.resources.get(&id)?;
        Some((resource, resource.role()?))
    })
}

/// Rules that need the cluster's other roles, and what this one was before. `password` says whether one is given or kept.
pub fn check(
    state: &State,
    id: ResourceId,
    new: &RoleSpec,
    old: Option<&RoleSpec>,
    password: bool,
) -> Vec<Violation> {
    let mut wrong = Vec::new();
    if let Some(old) = old {
        if old.cluster != new.cluster {
            let text = "cannot change after creation; create another role in the other cluster";
            wrong.push(Violation::new("spec.postgreSqlId", text));
        }
        if old.name != new.name {
            let text = format!(
                "is {:?}; the name of a role cannot change, and this one is {:?}",
                new.name, old.name
            );
            wrong.push(Violation::new("spec.name", text));
        }
    }
    if new.login && !password {
        let text = "is required for a role that may log in; set spec.login to false for one that may not";
        wrong.push(Violation::new("spec.password", text));
    }
    let others: Vec<&RoleSpec> = of_cluster(state, new.cluster)
        .filter(|(resource, _)| resource.id != id)
        .map(|(_, role)| role)
        .collect();
    if others.iter().any(|other| other.name == new.name) {
        let text = format!("is {:?}, which another role of this cluster has", new.name);
        wrong.push(Violation::new("spec.name", text));
    }
    let there = |name: &String| {
        of_cluster(state, new.cluster)
            .any(|(resource, role)| resource.id != id && !resource.deleting() && role.name == *name)
    };
    for of in new.member_of.iter().filter(|of| !there(of)) {
        let text = format!("names {of:?}, which is no other role of this cluster; create it first");
        wrong.push(Violation::new("spec.memberOf", text));
    }
    if let Some(name) = new.reassign_owned_to.as_ref().filter(|name| !there(name)) {
        let text = format!("is {name:?}, which is no other role of this cluster");
        wrong.push(Violation::new("spec.reassignOwnedTo", text));
    }
    if leads_back(&others, new) {
        let text = "leads back to this role: roles cannot be members of each other in a ring";
        wrong.push(Violation::new("spec.memberOf", text));
    }
    wrong
}

fn leads_back(others: &[&RoleSpec], new: &RoleSpec) -> bool {
    let mut next: Vec<&String> = new.member_of.iter().collect();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(name) = next.pop() {
        if *name == new.name {
            return true;
        }
        if seen.insert(name) {
            let of = others.iter().filter(|other| other.name == *name);
            next.extend(of.flat_map(|other| &other.member_of));
        }
    }
    false
}

/// Roles that name this one, so that it cannot be deleted yet.
pub fn needed_by(state: &State, id: ResourceId, role: &RoleSpec) -> Vec<String> {
    let names = |other: &RoleSpec| {
        other.member_of.contains(&role.name) || other.reassign_owned_to.as_ref() == Some(&role.name)
    };
    of_cluster(state, role.cluster)
        .filter(|(resource, other)| resource.id != id && !resource.deleting() && names(other))
        .map(|(resource, other)| format!("{} {} ({})", resource.kind(), other.name, resource.id))
        .collect()
}
