//! Login roles, brought to what is wanted by the leader of the coordinator's group. In: the wanted list. Out: what could not be done, in the engine's
//! words. Each role is changed in one transaction, so none is ever half changed; a leader that took over meanwhile does it again.

use hkdf::Hkdf;
use postgres_protocol::password;
use sha2::{Digest as _, Sha256};
use shardplane_proto::v1::{PostgresData, PostgresRefusal, PostgresRoleDropped, PostgresRoleWanted};
use tokio_postgres::Client;

use super::sql::{Patience, SqlError, connect, identifier, literal};
use crate::engine::EngineError;

/// Begins the comment of a role that is ours; what follows tells whether it is as it shall be.
const MARK: &str = "managed by the platform ";
/// What a role may do with the database that every cluster has.
const DATABASE_RIGHTS: &str = "CREATE, CONNECT, TEMPORARY";

/// What a leader works with.
pub struct Roles<'a> {
    /// Of the database `postgres`.
    pub client: &'a Client,
    /// The superuser's.
    pub password: &'a str,
}

/// A role as the engine has it.
#[derive(Debug, Default)]
struct Known {
    login: bool,
    create_db: bool,
    limit: i32,
    /// Superuser, replication, bypassrls or createrole: nobody but the platform.
    too_mighty: bool,
    comment: String,
    /// Of its verifier, as [`of_verifier`] makes it.
    verifier: String,
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

/// A verifier told apart without showing it.
fn of_verifier(verifier: &str) -> String {
    hex::encode(Sha256::digest(verifier.as_bytes()))
}

fn attributes(role: &PostgresRoleWanted, verifier: &str) -> String {
    let flag = |on: bool, name: &str| if on { name.to_owned() } else { format!("NO{name}") };
    let password = if verifier.is_empty() { "NULL".to_owned() } else { literal(verifier) };
    let until = if role.valid_until.is_empty() { "infinity" } else { &role.valid_until };
    format!(
        "{} {} NOSUPERUSER NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT {} VALID UNTIL {} PASSWORD {password}",
        flag(role.login, "LOGIN"),
        flag(role.create_db, "CREATEDB"),
        role.connection_limit,
        literal(until),
    )
}

impl Known {
    /// Whether it is as wanted: by what it was brought to, and by nobody having changed it since.
    fn is(&self, role: &PostgresRoleWanted, fingerprint: &str) -> bool {
        self.login == role.login
            && self.create_db == role.create_db
            && self.limit == role.connection_limit
            && !self.too_mighty
            && self.comment == format!("{fingerprint} {}", self.verifier)
    }
}

impl Roles<'_> {
    /// Brings all roles to what is wanted.
    ///
    /// # Errors
    /// What passes: all is done again then. What the engine refuses of one role keeps no other from being done.
    pub async fn ensure(&self, data: &PostgresData) -> Result<Vec<PostgresRefusal>, EngineError> {
        let mut refused = Vec::new();
        for role in &data.roles {
            note(&role.name, self.ensure_role(role).await, &mut refused)?;
        }
        // Members of each other: when all are there.
        for role in &data.roles {
            note(&role.name, self.ensure_membership(role).await, &mut refused)?;
        }
        for dropped in &data.dropped {
            note(&dropped.name, self.ensure_dropped(dropped).await, &mut refused)?;
        }
        Ok(refused)
    }

    async fn known(&self, name: &str) -> Result<Option<Known>, SqlError> {
        let query = "SELECT rolcanlogin, rolcreatedb, rolconnlimit, \
            rolsuper OR rolreplication OR rolbypassrls OR rolcreaterole, \
            coalesce(shobj_description(oid, 'pg_authid'), ''), \
            encode(sha256(convert_to(coalesce(rolpassword, ''), 'UTF8')), 'hex') FROM pg_authid WHERE rolname = $1";
        let row = self.client.query_opt(query, &[&name]).await?;
        Ok(row.map(|row| Known {
            login: row.get(0),
            create_db: row.get(1),
            limit: row.get(2),
            too_mighty: row.get(3),
            comment: row.get(4),
            verifier: row.get(5),
        }))
    }

    async fn ensure_role(&self, role: &PostgresRoleWanted) -> Result<(), SqlError> {
        let fingerprint = fingerprint(self.password, role);
        let known = self.known(&role.name).await?;
        if known.as_ref().is_some_and(|known| known.is(role, &fingerprint)) {
            return Ok(());
        }
        if known.as_ref().is_some_and(|known| !known.comment.starts_with(MARK)) {
            let text = format!("a role {:?} exists that was made in the database", role.name);
            return Err(SqlError::Refused(text));
        }
        let verifier = match role.password.as_str() {
            "" => String::new(),
            password => password::scram_sha_256(password.as_bytes()),
        };
        let name = identifier(&role.name);
        let make = if known.is_none() { format!("CREATE ROLE {name};") } else { String::new() };
        // Without these a role could log in and do nothing (PostgreSQL 15 and newer).
        let grants = format!(
            "GRANT {DATABASE_RIGHTS} ON DATABASE postgres TO {name}; GRANT ALL ON SCHEMA public TO {name};"
        );
        let text = format!(
            "BEGIN; {make} ALTER ROLE {name} WITH {}; COMMENT ON ROLE {name} IS {}; {grants} COMMIT",
            attributes(role, &verifier),
            literal(&format!("{fingerprint} {}", of_verifier(&verifier)))
        );
        self.batch(&text).await
    }

    /// Statements of one transaction; an error takes all of them back.
    async fn batch(&self, text: &str) -> Result<(), SqlError> {
        let done = self.client.batch_execute(text).await;
        if done.is_err() {
            let _ = self.client.batch_execute("ROLLBACK").await;
        }
        Ok(done?)
    }

    async fn ensure_membership(&self, role: &PostgresRoleWanted) -> Result<(), SqlError> {
        let query = "SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid \
            JOIN pg_roles u ON u.oid = m.member WHERE u.rolname = $1";
        let rows = self.client.query(query, &[&role.name]).await?;
        let has: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let name = identifier(&role.name);
        let grant = role.member_of.iter().filter(|of| !has.contains(of));
        let grant = grant.map(|of| format!("GRANT {} TO {name};", identifier(of)));
        let revoke = has.iter().filter(|of| !role.member_of.contains(of));
        let revoke = revoke.map(|of| format!("REVOKE {} FROM {name};", identifier(of)));
        let text: String = grant.chain(revoke).collect();
        if text.is_empty() { Ok(()) } else { self.batch(&format!("BEGIN; {text} COMMIT")).await }
    }

    /// What a role owns goes to another, or keeps it from being dropped. Nothing of users is ever dropped with it.
    async fn ensure_dropped(&self, dropped: &PostgresRoleDropped) -> Result<(), SqlError> {
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
                return Err(SqlError::Refused(text));
            }
            // What the platform has granted; what others have keeps it, and the engine names it.
            let text = format!(
                "BEGIN; REVOKE ALL ON DATABASE postgres FROM {name}; REVOKE ALL ON SCHEMA public FROM {name}; DROP ROLE {name}; COMMIT"
            );
            return self.batch(&text).await;
        }
        let to = identifier(&dropped.reassign_owned_to);
        let rows = self.client.query("SELECT datname FROM pg_database WHERE datallowconn", &[]).await?;
        for row in rows {
            let database: String = row.get(0);
            let connected = connect(self.password, &database, Patience::Waits).await;
            let client = connected.map_err(|error| SqlError::Passes(error.to_string()))?;
            client.batch_execute(&format!("REASSIGN OWNED BY {name} TO {to}")).await?;
            let own = "SELECT count(*) FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid \
                JOIN pg_database b ON b.datname = current_database() AND d.dbid = b.oid \
                WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype = 'o' AND r.rolname = $1";
            let left: i64 = client.query_one(own, &[&dropped.name]).await?.get(0);
            if left > 0 {
                return Err(SqlError::Passes(format!("{} makes objects meanwhile", dropped.name)));
            }
            // Only rights are left.
            client.batch_execute(&format!("DROP OWNED BY {name}")).await?;
        }
        self.batch(&format!("DROP ROLE {name}")).await
    }

    async fn owned(&self, name: &str) -> Result<i64, SqlError> {
        let query = "SELECT count(*) FROM pg_shdepend d JOIN pg_roles r ON r.oid = d.refobjid \
            WHERE d.refclassid = 'pg_authid'::regclass AND d.deptype = 'o' AND r.rolname = $1";
        Ok(self.client.query_one(query, &[&name]).await?.get(0))
    }
}

/// Keeps a refusal for the report; what passes ends the try.
fn note(
    name: &str,
    done: Result<(), SqlError>,
    refused: &mut Vec<PostgresRefusal>,
) -> Result<(), EngineError> {
    match done {
        Ok(()) => Ok(()),
        Err(SqlError::Refused(error)) => {
            refused.push(PostgresRefusal { name: name.to_owned(), error });
            Ok(())
        }
        Err(error @ SqlError::Passes(_)) => Err(error.into()),
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

    /// A password that a user has changed in the database is not the wanted one.
    #[test]
    fn a_role_that_somebody_changed_is_not_as_wanted() {
        let role = PostgresRoleWanted { login: true, ..Default::default() };
        let known = |comment: &str, verifier: &str| Known {
            login: true,
            comment: comment.to_owned(),
            verifier: verifier.to_owned(),
            ..Known::default()
        };
        assert!(known("f v", "v").is(&role, "f"));
        assert!(!known("f v", "w").is(&role, "f") && !known("g v", "v").is(&role, "f"));
        assert!(!Known { too_mighty: true, ..known("f v", "v") }.is(&role, "f"));
    }

    #[test]
    fn nobody_is_made_mighty_and_no_password_is_written_in_clear() {
        let role =
            PostgresRoleWanted { password: "hunter2".into(), connection_limit: -1, ..Default::default() };
        let verifier = password::scram_sha_256(role.password.as_bytes());
        let text = attributes(&role, &verifier);
        for no in ["NOSUPERUSER", "NOREPLICATION", "NOBYPASSRLS", "NOCREATEROLE", "NOLOGIN", "NOCREATEDB"] {
            assert!(text.contains(no), "{text}");
        }
        assert!(
            text.contains("SCRAM-SHA-256$") && !text.contains("hunter2") && text.contains("'infinity'"),
            "{text}"
        );
    }
}
