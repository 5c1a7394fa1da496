//! Login roles, brought to what is wanted by the leader of the coordinator's group. In: the wanted list. Out: what could not be done, in the engine's
//! words. Each role is changed in one transaction, so none is ever half changed; a leader that took over meanwhile does it again.

use hkdf::Hkdf;
use postgres_protocol::password;
use sha2::Sha256;
use shardplane_proto::v1::{PostgresData, PostgresRefusal, PostgresRoleDropped, PostgresRoleWanted};
use tokio_postgres::Client;

use super::sql::{connect, engine_error, identifier, literal};
use crate::engine::EngineError;

/// Begins the comment of a role that is ours; what follows tells whether it is as it shall be.
const MARK: &str = "managed by the platform ";

/// What a leader works with.
pub struct Roles<'a> {
    /// Of the database `postgres`.
    pub client: &'a Client,
    /// The superuser's.
    pub password: &'a str,
}

/// A role as the engine has it.
#[derive(Debug, Default, PartialEq)]
struct Known {
    login: bool,
    create_db: bool,
    limit: i32,
    /// Superuser, replication, bypassrls or createrole: nobody but the platform.
    too_mighty: bool,
    comment: String,
}

/// Which wanted state a role was brought to. Keyed by a secret: a comment is for everybody to read.
fn fingerprint(key: &str, role: &PostgresRoleWanted) -> String {
    let state = format!(
        "{:?}",
        (&role.name, &role.password, role.login, role.create_db, role.connection_limit, &role.valid_until)
    );
    let mut bytes = [0; 16];
    // As short as this it always succeeds; should it not, the role is only written once more than needed.
    let _ = Hkdf::<Sha256>::new(Some(key.as_bytes()), state.as_bytes()).expand(b"role", &mut bytes);
    format!("{MARK}{}", hex::encode(bytes))
}

fn attributes(role: &PostgresRoleWanted) -> String {
    let flag = |on: bool, name: &str| if on { name.to_owned() } else { format!("NO{name}") };
    let password = if role.password.is_empty() {
        "NULL".to_owned()
    } else {
        literal(&password::scram_sha_256(role.password.as_bytes()))
    };
    let until = if role.valid_until.is_empty() { "infinity" } else { &role.valid_until };
    format!(
        "{} {} NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT {} VALID UNTIL {} PASSWORD {password}",
        flag(role.login, "LOGIN"),
        flag(role.create_db, "CREATEDB"),
        role.connection_limit,
        literal(until),
    )
}

impl Roles<'_> {
    /// Brings all roles to what is wanted.
    ///
    /// # Errors
    /// When the engine does not answer; what it refuses of one role keeps no other from being done.
    pub async fn ensure(&self, data: &PostgresData) -> Result<Vec<PostgresRefusal>, EngineError> {
        let mut refused = Vec::new();
        let mut note = |name: &str, done: Result<(), EngineError>| {
            if let Err(error) = done {
                refused.push(PostgresRefusal { name: name.to_owned(), error: error.to_string() });
            }
        };
        for role in &data.roles {
            note(&role.name, self.ensure_role(role).await);
        }
        // Members of each other: when all are there.
        for role in &data.roles {
            note(&role.name, self.ensure_membership(role).await);
        }
        for dropped in &data.dropped {
            note(&dropped.name, self.ensure_dropped(dropped).await);
        }
        self.client.simple_query("SELECT 1").await.map_err(engine_error)?;
        Ok(refused)
    }

    async fn known(&self, name: &str) -> Result<Option<Known>, EngineError> {
        let query = "SELECT rolcanlogin, rolcreatedb, rolconnlimit, \
            rolsuper OR rolreplication OR rolbypassrls OR rolcreaterole, \
            coalesce(shobj_description(oid, 'pg_authid'), '') FROM pg_roles WHERE rolname = $1";
        let row = self.client.query_opt(query, &[&name]).await.map_err(engine_error)?;
        Ok(row.map(|row| Known {
            login: row.get(0),
            create_db: row.get(1),
            limit: row.get(2),
            too_mighty: row.get(3),
            comment: row.get(4),
        }))
    }

    async fn ensure_role(&self, role: &PostgresRoleWanted) -> Result<(), EngineError> {
        let comment = fingerprint(self.password, role);
        let shall = Known {
            login: role.login,
            create_db: role.create_db,
            limit: role.connection_limit,
            too_mighty: false,
            comment: comment.clone(),
        };
        let known = self.known(&role.name).await?;
        if known.as_ref() == Some(&shall) {
            return Ok(());
        }
        if known.as_ref().is_some_and(|known| !known.comment.starts_with(MARK)) {
            let text = format!("a role {:?} exists that was made in the database", role.name);
            return Err(EngineError::Refused(text));
        }
        let name = identifier(&role.name);
        let make = if known.is_none() { format!("CREATE ROLE {name};") } else { String::new() };
        // Without these a role could log in and do nothing (PostgreSQL 15 and newer).
        let grants = format!(
            "GRANT CREATE, CONNECT, TEMPORARY ON DATABASE postgres TO {name}; GRANT ALL ON SCHEMA public TO {name};"
        );
        let text = format!(
            "BEGIN; {make} ALTER ROLE {name} WITH {}; COMMENT ON ROLE {name} IS {}; {grants} COMMIT",
            attributes(role),
            literal(&comment)
        );
        self.batch(&text).await
    }

    /// Statements of one transaction; an error takes all of them back.
    async fn batch(&self, text: &str) -> Result<(), EngineError> {
        let done = self.client.batch_execute(text).await.map_err(engine_error);
        if done.is_err() {
            let _ = self.client.batch_execute("ROLLBACK").await;
        }
        done
    }

    async fn ensure_membership(&self, role: &PostgresRoleWanted) -> Result<(), EngineError> {
        let query = "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid \
            JOIN pg_roles u ON u.oid = m.member WHERE u.rolname = $1";
        let rows = self.client.query(query, &[&role.name]).await.map_err(engine_error)?;
        let has: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let name = identifier(&role.name);
        let grant = role.member_of.iter().filter(|of| !has.contains(of));
        let grant = grant.map(|of| format!("GRANT {} TO {name};", identifier(of)));
        let revoke = has.iter().filter(|of| !role.member_of.contains(of));
        let revoke = revoke.map(|of| format!("REVOKE {} FROM {name};", identifier(of)));
        let text: String = grant.chain(revoke).collect();
        if text.is_empty() { Ok(()) } else { self.batch(&format!("BEGIN; {text} COMMIT")).await }
    }

    /// What a role owns goes to another, or keeps it from being dropped.
    async fn ensure_dropped(&self, dropped: &PostgresRoleDropped) -> Result<(), EngineError> {
        let Some(known) = self.known(&dropped.name).await? else { return Ok(()) };
        if !known.comment.starts_with(MARK) {
            return Ok(());
        }
        let name = identifier(&dropped.name);
        if dropped.reassign_owned_to.is_empty() {
            let owns = self.owned(&dropped.name).await?;
            if owns > 0 {
                let text = format!(
                    "it owns {owns} objects; name a role that gets them in spec.reassignOwnedTo before you delete it"
                );
                return Err(EngineError::Refused(text));
            }
        }
        // Nobody comes in between.
        let closed = format!(
            "ALTER ROLE {name} NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {}",
            literal(&dropped.name)
        );
        self.batch(&closed).await?;
        let databases = "SELECT datname FROM pg_database WHERE datallowconn";
        let rows = self.client.query(databases, &[]).await.map_err(engine_error)?;
        for row in rows {
            let database: String = row.get(0);
            let client = connect(self.password, &database).await?;
            if !dropped.reassign_owned_to.is_empty() {
                let to = identifier(&dropped.reassign_owned_to);
                let text = format!("REASSIGN OWNED BY {name} TO {to}");
                client.batch_execute(&text).await.map_err(engine_error)?;
            }
            // Only rights are left.
            client.batch_execute(&format!("DROP OWNED BY {name}")).await.map_err(engine_error)?;
        }
        self.batch(&format!("DROP ROLE {name}")).await
    }

    async fn owned(&self, name: &str) -> Result<i64, EngineError> {
        let query = "SELECT count(*) FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid \
            WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype = 'o' AND r.rolname = $1";
        Ok(self.client.query_one(query, &[&name]).await.map_err(engine_error)?.get(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_told_apart_by_everything_it_has_and_shows_none_of_it() {
        let role = PostgresRoleWanted {
            name: "app".into(),
            password: "one".into(),
            login: true,
            ..Default::default()
        };
        let of = |role: &PostgresRoleWanted| fingerprint("key", role);
        assert_eq!(of(&role), of(&role.clone()));
        assert_ne!(of(&role), of(&PostgresRoleWanted { password: "two".into(), ..role.clone() }));
        assert_ne!(of(&role), of(&PostgresRoleWanted { create_db: true, ..role.clone() }));
        assert_ne!(of(&role), fingerprint("other", &role));
        assert!(!of(&role).contains("one"));
    }

    #[test]
    fn nobody_is_made_mighty_and_no_password_is_written_in_clear() {
        let role =
            PostgresRoleWanted { password: "hunter2".into(), connection_limit: -1, ..Default::default() };
        let text = attributes(&role);
        for no in ["NOSUPERUSER", "NOREPLICATION", "NOBYPASSRLS", "NOCREATEROLE", "NOLOGIN", "NOCREATEDB"] {
            assert!(text.contains(no), "{text}");
        }
        assert!(
            text.contains("SCRAM-SHA-256$") && !text.contains("hunter2") && text.contains("'infinity'"),
            "{text}"
        );
    }
}
