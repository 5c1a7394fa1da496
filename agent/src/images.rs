//! The guest images of this host.
//!
//! In: `image_dir/<engine>-<version>.json` beside `.erofs` (or `.squashfs`). Out: the images whose bytes have the digest
//! their manifest names, and conditions about the others. Read once at start; digests are cached by size, time and inode.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use shardplane_proto::v1;

use crate::durable;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    engine: String,
    version: String,
    digest: String,
    size_bytes: u64,
}

/// What tells whether a file is still the one that was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    inode: u64,
    modified_ns: i128,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Hashed {
    stamp: Stamp,
    digest: String,
}

type Cache = BTreeMap<PathBuf, Hashed>;

/// The verified images.
#[derive(Debug, Default, Clone)]
pub struct Images {
    by_digest: BTreeMap<String, (PathBuf, v1::ImageManifest)>,
    refused: Vec<String>,
}

impl Images {
    /// Reads and verifies all. An image that is not right is left out and becomes a condition; it stops nothing else.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn load(image_dir: &Path, state_dir: &Path) -> io::Result<Self> {
        let cache_path = state_dir.join("image-digests.json");
        let old: Cache = fs::read(&cache_path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let mut cache = Cache::new();
        let mut images = Self::default();
        let mut manifests: Vec<PathBuf> =
            fs::read_dir(image_dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        manifests.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        manifests.sort();
        for path in manifests {
            if let Err(why) = images.add(&path, &old, &mut cache) {
                images.refused.push(format!("{}: {why}", path.display()));
            }
        }
        if cache != old {
            // Only a cache: the next start hashes again.
            let stored = serde_json::to_vec(&cache).map_err(io::Error::from);
            if let Err(error) = stored.and_then(|bytes| durable::replace(&cache_path, &bytes)) {
                tracing::warn!(path = %cache_path.display(), %error, "cannot keep the digests of images");
            }
        }
        Ok(images)
    }

    fn add(&mut self, path: &Path, old: &Cache, new: &mut Cache) -> Result<(), String> {
        let text = fs::read(path).map_err(|error| error.to_string())?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| format!("is not an image manifest: {error}"))?;
        let files = ["erofs", "squashfs"].map(|extension| path.with_extension(extension));
        let file = files.iter().find(|file| file.is_file());
        let file = file.ok_or("has no .erofs or .squashfs beside it")?;
        let stamp = stamp(file).map_err(|error| error.to_string())?;
        if stamp.size != manifest.size_bytes {
            return Err(format!("names {} bytes but the image has {}", manifest.size_bytes, stamp.size));
        }
        let hashed = match old.get(file).filter(|hashed| hashed.stamp == stamp) {
            Some(hashed) => hashed.clone(),
            None => Hashed { digest: digest(file).map_err(|error| error.to_string())?, stamp },
        };
        new.insert(file.clone(), hashed.clone());
        let named = manifest.digest.strip_prefix("sha256:").unwrap_or(&manifest.digest).to_ascii_lowercase();
        if hashed.digest != named {
            return Err(format!("names the digest {named} but the image has {}", hashed.digest));
        }
        let described = v1::ImageManifest {
            engine: manifest.engine,
            version: manifest.version,
            digest: named.clone(),
            size_bytes: manifest.size_bytes,
        };
        self.by_digest.insert(named, (file.clone(), described));
        Ok(())
    }

    /// For the hello.
    pub fn manifests(&self) -> Vec<v1::ImageManifest> {
        self.by_digest.values().map(|(_, manifest)| manifest.clone()).collect()
    }

    /// What is not as it should be.
    pub fn condition(&self) -> Option<v1::HostCondition> {
        let message = if self.by_digest.is_empty() && self.refused.is_empty() {
            "no image is on this host; put <engine>-<version>.erofs and its .json into image_dir and restart the agent".into()
        } else if self.refused.is_empty() {
            return None;
        } else {
            format!("images are left out: {}", self.refused.join("; "))
        };
        Some(v1::HostCondition { r#type: "ImagesVerified".into(), status: "False".into(), message })
    }

    /// The file of an image.
    ///
    /// # Errors
    /// A text that names what the host has.
    pub fn find(&self, digest: &str) -> Result<&Path, String> {
        let digest = digest.strip_prefix("sha256:").unwrap_or(digest);
        self.by_digest.get(digest).map(|(path, _)| path.as_path()).ok_or_else(|| {
            let has = self.by_digest.values().map(|(_, m)| format!("{} {} ({})", m.engine, m.version, m.digest));
            let has: Vec<_> = has.collect();
            let has = if has.is_empty() { "no image".into() } else { has.join(", ") };
            format!("the image {digest} is not on this host, which has {has}; add it to image_dir and restart the agent")
        })
    }
}

fn stamp(file: &Path) -> io::Result<Stamp> {
    let meta = fs::metadata(file)?;
    let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Ok(Stamp { size: meta.size(), inode: meta.ino(), modified_ns })
}

fn digest(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(buffer.get(..n).unwrap_or_default()),
        }
    }
    Ok(hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn manifest(dir: &Path, name: &str, digest: &str, size: u64) {
        let text = format!(r#"{{"engine":"e","version":"1","digest":"{digest}","sizeBytes":{size}}}"#);
        fs::write(dir.join(name).with_extension("json"), text).unwrap();
    }

    #[test]
    fn only_images_with_the_right_digest_are_offered() {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(Images::load(dir.path(), state.path()).unwrap().condition().is_some());
        fs::write(dir.path().join("good.erofs"), "").unwrap();
        manifest(dir.path(), "good", EMPTY, 0);
        fs::write(dir.path().join("bad.erofs"), "x").unwrap();
        manifest(dir.path(), "bad", EMPTY, 1);
        manifest(dir.path(), "alone", EMPTY, 0);
        for _ in 0..2 {
            let images = Images::load(dir.path(), state.path()).unwrap();
            assert_eq!(images.manifests().len(), 1);
            assert!(images.find(EMPTY).unwrap().ends_with("good.erofs"));
            assert!(images.find("00").unwrap_err().contains(EMPTY));
            let message = images.condition().unwrap().message;
            assert!(message.contains("bad.json") && message.contains("alone.json"), "{message}");
        }
        assert!(state.path().join("image-digests.json").exists());
    }
}
