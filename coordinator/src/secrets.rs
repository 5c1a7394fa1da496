//! Secrets. In: the cluster key file, users' passwords, tokens. Out: sealed bytes for the log, hashes of tokens, keys derived
//! for one purpose each. Called by the API, the host specs, init and the members' authentication.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use aes_gcm_siv::{
    Aes256GcmSiv, KeyInit as _, Nonce,
    aead::{Aead as _, Payload},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use shardplane_model::command::Timestamp;
use shardplane_proto::ids::{ResourceId, TokenId};
use subtle::ConstantTimeEq as _;
use ulid::Ulid;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const SEALED_VERSION: u8 = 1;
const TOKEN_PREFIX: &str = "sp_";

/// Why the cluster key could not be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Opening, reading or writing failed.
    #[error("cannot use the key file {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not there.
    #[error("the key file {path} does not exist: copy it from another member, or `init` a new cluster")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Others could read it.
    #[error("the key file {path} has mode {mode:o}: others may read it; make it 0600")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Not a key.
    #[error(
        "the key file {path} has {bytes} bytes, a cluster key has {KEY_BYTES}; copy it from another member"
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
}

/// The one key of a cluster. Every member has the same file; it is never in the data directory.
#[derive(Clone)]
pub struct ClusterKey([u8; KEY_BYTES]);

impl ClusterKey {
    /// Reads the key file.
    ///
    /// # Errors
    /// When it cannot be read, others may read it, or it is no key.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(|source| {
            if source.kind() == io::ErrorKind::NotFound {
                KeyError::Missing { path: path.to_owned() }
            } else {
                io(source)
            }
        })?;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let size = || KeyError::Size { path: path.to_owned(), bytes: bytes.len() };
        Ok(Self(bytes.as_slice().try_into().map_err(|_| size())?))
    }

    /// Makes a new key file with mode 0600; refuses to replace one.
    ///
    /// # Errors
    /// When it exists or cannot be written.
    pub fn create(path: &Path) -> Result<Self, KeyError> {
        let io = |source| KeyError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let key = Self(rand::random());
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
        file.write_all(&key.0).and_then(|()| file.sync_all()).map_err(io)?;
        Ok(key)
    }

    /// A key for one purpose; knowing it tells nothing about the others.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        keyed_hash(&self.0, &[purpose.as_bytes()])
    }

    /// A key for tests.
    #[cfg(test)]
    pub(crate) fn for_tests(byte: u8) -> Self {
        Self([byte; KEY_BYTES])
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(hidden)")
    }
}

/// HMAC-SHA256 over the parts, each with its length, so that no two lists of parts hash alike.
pub(crate) fn keyed_hash(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = new_mac(key);
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// An HMAC-SHA256 to be fed piece by piece.
pub(crate) fn new_mac(key: &[u8; 32]) -> Hmac<Sha256> {
    // HMAC fills a short key with zeros to the block of its hash.
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    Hmac::<Sha256>::new(&block.into())
}

/// Whether two proofs are equal, in a time that does not depend on where they differ.
pub(crate) fn same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

/// A sealed secret that does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    /// A newer program wrote it.
    #[error("the sealed secret has version {0}, this program knows {SEALED_VERSION}")]
    Version(u8),
    /// Another key or another resource, or the bytes were changed.
    #[error(
        "the sealed secret does not open: it was sealed with another cluster key or for another resource, or it is damaged"
    )]
    Refused,
}

/// Seals users' secrets (AES-256-GCM-SIV) so that the log, snapshots and backups hold none in the clear. A sealed secret
/// opens only for the resource it was sealed for.
#[derive(Clone)]
pub struct Sealer {
    cipher: Aes256GcmSiv,
}

impl Sealer {
    /// A sealer with a key derived from the cluster's.
    pub fn new(key: &ClusterKey) -> Self {
        Self { cipher: Aes256GcmSiv::new(&key.derive("shardplane user secrets v1").into()) }
    }

    fn bound_to(version: u8, resource: ResourceId) -> [u8; 17] {
        let mut aad = [version; 17];
        aad[1..].copy_from_slice(&resource.as_u128().to_be_bytes());
        aad
    }

    /// Seals `text` for `resource`: version, nonce, ciphertext. Sealing the same text twice gives different bytes.
    pub fn seal(&self, resource: ResourceId, text: &str) -> Vec<u8> {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let aad = Self::bound_to(SEALED_VERSION, resource);
        let payload = Payload { msg: text.as_bytes(), aad: &aad };
        // The cipher refuses only texts of 64 GiB and more.
        let sealed = self.cipher.encrypt(&Nonce::from(nonce), payload).unwrap_or_default();
        [&[SEALED_VERSION], nonce.as_slice(), &sealed].concat()
    }

    /// Opens what was sealed for `resource`.
    ///
    /// # Errors
    /// When it was sealed otherwise or was changed.
    pub fn unseal(&self, resource: ResourceId, sealed: &[u8]) -> Result<String, UnsealError> {
        let (&version, rest) = sealed.split_first().ok_or(UnsealError::Refused)?;
        if version != SEALED_VERSION {
            return Err(UnsealError::Version(version));
        }
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(UnsealError::Refused)?;
        let aad = Self::bound_to(version, resource);
        let text = self.cipher.decrypt(&Nonce::from(*nonce), Payload { msg: sealed, aad: &aad });
        String::from_utf8(text.map_err(|_| UnsealError::Refused)?).map_err(|_| UnsealError::Refused)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(hidden)")
    }
}

/// A new token. Only its hash is kept.
pub struct NewToken {
    /// Its public part.
    pub id: TokenId,
    /// The whole token, `sp_<ulid>_<secret>`: shown once.
    pub secret: String,
    /// SHA-256 of the whole token, hex.
    pub hash: String,
}

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewToken({})", self.id)
    }
}

/// Makes a token with 256 random bits.
pub fn new_token(now: Timestamp) -> NewToken {
    let id = TokenId::from(Ulid::from_parts(now.0, rand::random()));
    let random: [u8; 32] = rand::random();
    let secret = format!("{TOKEN_PREFIX}{id}_{}", BASE64_URL_SAFE_NO_PAD.encode(random));
    let hash = hash_of(&secret);
    NewToken { id, secret, hash }
}

fn hash_of(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

/// The public part of a token, when the text has the form of one.
pub fn token_id_of(token: &str) -> Option<TokenId> {
    let (id, secret) = token.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    let id = id.parse().ok()?;
    (BASE64_URL_SAFE_NO_PAD.decode(secret).ok()?.len() == 32).then_some(id)
}

/// Whether `token` is the one with this hash; takes as long for a wrong one as for the right one.
pub fn token_matches(token: &str, hash: &str) -> bool {
    same(hash_of(token).as_bytes(), hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(number: u128) -> ResourceId {
        ResourceId::from_u128(number)
    }

    #[test]
    fn a_sealed_secret_opens_for_its_resource_only() {
        let sealer = Sealer::new(&ClusterKey::for_tests(7));
        let sealed = sealer.seal(resource(1), "hunter2");
        assert_eq!(sealer.unseal(resource(1), &sealed).as_deref(), Ok("hunter2"));
        assert_eq!(sealer.unseal(resource(2), &sealed), Err(UnsealError::Refused));
        let other = Sealer::new(&ClusterKey::for_tests(8));
        assert_eq!(other.unseal(resource(1), &sealed), Err(UnsealError::Refused));
        assert_ne!(sealed, sealer.seal(resource(1), "hunter2"));
        assert!(!sealed.windows(7).any(|window| window == b"hunter2"));
    }

    #[test]
    fn a_changed_or_cut_secret_does_not_open() {
        let sealer = Sealer::new(&ClusterKey::for_tests(7));
        let sealed = sealer.seal(resource(1), "hunter2");
        for at in 1..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(sealer.unseal(resource(1), &changed), Err(UnsealError::Refused), "byte {at}");
            assert_eq!(sealer.unseal(resource(1), &sealed[..at]), Err(UnsealError::Refused), "cut at {at}");
        }
        assert_eq!(sealer.unseal(resource(1), &[9, 1, 2]), Err(UnsealError::Version(9)));
        assert_eq!(sealer.unseal(resource(1), &[]), Err(UnsealError::Refused));
    }

    #[test]
    fn a_token_is_known_by_its_hash_and_names_its_id() {
        let token = new_token(Timestamp(1_700_000_000_000));
        assert!(token.secret.starts_with("sp_01"));
        assert_eq!(token_id_of(&token.secret), Some(token.id));
        assert!(token_matches(&token.secret, &token.hash));
        assert!(!token_matches(&new_token(Timestamp(0)).secret, &token.hash));
        for text in
            ["", "sp_", "sp_x_y", "xx_01arz3ndektsv4rrffq69g5fav_AAAA", "sp_01arz3ndektsv4rrffq69g5fav_AAAA"]
        {
            assert_eq!(token_id_of(text), None, "{text}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let key = ClusterKey::for_tests(7);
        let token = new_token(Timestamp(0));
        let text = format!("{key:?} {:?} {token:?}", Sealer::new(&key));
        assert!(!text.contains(&token.secret) && !text.contains("7, 7"), "{text}");
    }

    #[test]
    fn a_key_file_that_others_read_or_of_another_size_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.key");
        let key = ClusterKey::create(&path).unwrap();
        assert_eq!(ClusterKey::load(&path).unwrap().0, key.0);
        assert!(matches!(ClusterKey::create(&path), Err(KeyError::Io { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(ClusterKey::load(&path), Err(KeyError::Open { mode: 0o640, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, b"short").unwrap();
        assert!(matches!(ClusterKey::load(&path), Err(KeyError::Size { bytes: 5, .. })));
    }
}
