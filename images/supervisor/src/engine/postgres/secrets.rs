//! What a guest derives from its cluster's secret: passwords of internal users and certificates. In: the secret. Out: the same in every guest
//! of the cluster, and in no other. Nothing of it is told over the network or kept in the image.

use std::net::IpAddr;

use hkdf::Hkdf;
use p256::pkcs8::EncodePrivateKey as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, date_time_ymd,
};
use sha2::Sha256;

use crate::engine::EngineError;

/// A cluster's secret.
pub struct Secrets {
    secret: String,
    cluster: String,
}

/// What a secret is for; each gives another password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// PostgreSQL's superuser.
    Superuser,
    /// The user that replicas copy and stream with.
    Replication,
    /// The user that pg_rewind connects with.
    Rewind,
    /// Patroni's REST API.
    Rest,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Purpose::Superuser => "superuser",
            Purpose::Replication => "replication",
            Purpose::Rewind => "rewind",
            Purpose::Rest => "rest",
        }
    }
}

/// A certificate of this member with its key, and the cluster's CA; PEM.
#[derive(Clone)]
pub struct Certificate {
    /// The CA.
    pub ca: String,
    /// The member's own.
    pub chain: String,
    /// Its key.
    pub key: String,
}

fn refused(error: rcgen::Error) -> EngineError {
    EngineError::Refused(format!("a certificate cannot be made: {error}"))
}

impl Secrets {
    /// Takes the secret in.
    ///
    /// # Errors
    /// Without one nothing can be derived.
    pub fn new(secret: &str, cluster: &str) -> Result<Self, EngineError> {
        if secret.len() < 16 || cluster.is_empty() {
            return Err(EngineError::Refused("the config has no secret or no cluster id".to_owned()));
        }
        Ok(Self { secret: secret.to_owned(), cluster: cluster.to_owned() })
    }

    fn derive(&self, label: &str) -> Result<[u8; 32], EngineError> {
        let mut bytes = [0; 32];
        Hkdf::<Sha256>::new(Some(self.cluster.as_bytes()), self.secret.as_bytes())
            .expand(format!("shardplane {label}").as_bytes(), &mut bytes)
            .map_err(|error| EngineError::Refused(format!("nothing can be derived: {error}")))?;
        Ok(bytes)
    }

    /// A password.
    ///
    /// # Errors
    /// Never with a label this short; the library has no other way to say so.
    pub fn password(&self, purpose: Purpose) -> Result<String, EngineError> {
        self.derive(purpose.label()).map(hex::encode)
    }

    fn authority(&self) -> Result<(CertificateParams, KeyPair), EngineError> {
        // Not Ed25519: libpq cannot bind a SCRAM login to a certificate that is signed with it.
        let unusable = || EngineError::Refused("the key of the cluster's CA cannot be derived".to_owned());
        let key = p256::SecretKey::from_slice(&self.derive("ca")?).map_err(|_| unusable())?;
        let der = key.to_pkcs8_der().map_err(|_| unusable())?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&der.as_bytes().into(), &PKCS_ECDSA_P256_SHA256)
            .map_err(refused)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("Shardplane cluster {}", self.cluster));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // The same in every guest but for its signature: whoever trusts one trusts what any of them has signed.
        params.serial_number = Some(1.into());
        (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2125, 1, 1));
        Ok((params, key))
    }

    /// A certificate for the member with this address.
    ///
    /// # Errors
    /// An address that is none.
    pub fn certificate(&self, ip: &str) -> Result<Certificate, EngineError> {
        let address: IpAddr =
            ip.parse().map_err(|_| EngineError::Refused(format!("the config has the address {ip:?}")))?;
        let (authority, authority_key) = self.authority()?;
        let ca = authority.clone().self_signed(&authority_key).map_err(refused)?;
        let key = KeyPair::generate().map_err(refused)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, ip.to_owned());
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (date_time_ymd(2025, 1, 1), date_time_ymd(2125, 1, 1));
        let issuer = Issuer::new(authority, authority_key);
        let own = params.signed_by(&key, &issuer).map_err(refused)?;
        Ok(Certificate { ca: ca.pem(), chain: own.pem(), key: key.serialize_pem() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest trusts what another has signed, with the CA that it made itself.
    #[test]
    fn the_authority_has_the_same_key_in_every_guest() {
        let of = |cluster: &str| Secrets::new(&"s".repeat(32), cluster).unwrap().authority().unwrap().1;
        assert_eq!(of("a").public_key_raw(), of("a").public_key_raw());
        assert_ne!(of("a").public_key_raw(), of("b").public_key_raw());
    }

    #[test]
    fn guests_of_a_cluster_derive_the_same_and_others_do_not() {
        let of = |secret: &str, cluster: &str| Secrets::new(secret, cluster).unwrap();
        let (one, same) = (of(&"s".repeat(32), "a"), of(&"s".repeat(32), "a"));
        let password = |of: &Secrets, purpose| of.password(purpose).unwrap();
        assert_eq!(password(&one, Purpose::Superuser), password(&same, Purpose::Superuser));
        assert_ne!(password(&one, Purpose::Superuser), password(&one, Purpose::Replication));
        assert_ne!(password(&one, Purpose::Rest), password(&of(&"s".repeat(32), "b"), Purpose::Rest));
        assert_ne!(password(&one, Purpose::Rest), password(&of(&"t".repeat(32), "a"), Purpose::Rest));
        let (mine, theirs) = (one.certificate("10.0.0.1").unwrap(), same.certificate("10.0.0.2").unwrap());
        assert_ne!(mine.key, theirs.key);
        assert!(one.certificate("nowhere").is_err());
        assert!(Secrets::new("", "a").is_err());
    }
}
