//! The guest images of this host.
//!
//! In: `image_dir/<engine>-<version>.json` beside `.erofs` (or `.squashfs`). Out: the images whose bytes have the digest
//! their manifest names, and conditions about the others. Read once at start; an image is verified again before each boot from it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use shardplane_proto::v1;

use crate::digests::{self, Digests};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    engine: String,
    version: String,
    digest: String,
    size_bytes: u64,
}

/// The verified images.
#[derive(Debug, Clone)]
pub struct Images {
    digests: Arc<Digests>,
    by_digest: BTreeMap<String, (PathBuf, v1::ImageManifest)>,
    refused: Vec<String>,
}

impl Images {
    /// Reads and verifies all. An image that is not right is left out and becomes a condition; it stops nothing else.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn load(image_dir: &Path, digests: Arc<Digests>) -> io::Result<Self> {
        let mut images = Self { digests, by_digest: BTreeMap::new(), refused: Vec::new() };
        let mut manifests: Vec<PathBuf> =
            fs::read_dir(image_dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        manifests.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        manifests.sort();
        for path in manifests {
            if let Err(why) = images.add(&path) {
                images.refused.push(format!("{}: {why}", path.display()));
            }
        }
        Ok(images)
    }

    fn add(&mut self, path: &Path) -> Result<(), String> {
        let text = fs::read(path).map_err(|error| error.to_string())?;
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|error| format!("is not an image manifest: {error}"))?;
        let files = ["erofs", "squashfs"].map(|extension| path.with_extension(extension));
        let file = files.iter().find(|file| file.is_file());
        let file = file.ok_or("has no .erofs or .squashfs beside it")?;
        let size = fs::metadata(file).map_err(|error| error.to_string())?.len();
        if size != manifest.size_bytes {
            return Err(format!("names {} bytes but the image has {size}", manifest.size_bytes));
        }
        let named = digests::plain(&manifest.digest);
        self.digests.verify(file, &named).map_err(|error| error.to_string())?;
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

    /// The file of an image, which holds now what its manifest names. Blocks as long as it takes to read the file, when it was
    /// written since it was read last.
    ///
    /// # Errors
    /// A text that names what the host has, or what the file holds.
    pub fn verified(&self, digest: &str) -> Result<&Path, String> {
        let digest = digests::plain(digest);
        let Some((path, _)) = self.by_digest.get(&digest) else {
            let has =
                self.by_digest.values().map(|(_, m)| format!("{} {} ({})", m.engine, m.version, m.digest));
            let has: Vec<_> = has.collect();
            let has = if has.is_empty() { "no image".into() } else { has.join(", ") };
            return Err(format!(
                "the image {digest} is not on this host, which has {has}; add it to image_dir and restart the agent"
            ));
        };
        let verified = self.digests.verify(path, &digest);
        verified.map_err(|error| format!("the image is not used: {error}; put the right one there"))?;
        Ok(path)
    }
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
        let load = || Images::load(dir.path(), Arc::new(Digests::open(state.path()))).unwrap();
        assert!(load().condition().is_some());
        fs::write(dir.path().join("good.erofs"), "").unwrap();
        manifest(dir.path(), "good", EMPTY, 0);
        fs::write(dir.path().join("bad.erofs"), "x").unwrap();
        manifest(dir.path(), "bad", EMPTY, 1);
        manifest(dir.path(), "alone", EMPTY, 0);
        for _ in 0..2 {
            let images = load();
            assert_eq!(images.manifests().len(), 1);
            assert!(images.verified(EMPTY).unwrap().ends_with("good.erofs"));
            assert!(images.verified("00").unwrap_err().contains(EMPTY));
            let message = images.condition().unwrap().message;
            assert!(message.contains("bad.json") && message.contains("alone.json"), "{message}");
        }
        assert!(state.path().join("image-digests.json").exists());
        // HOST-14: it was right when the agent started, and was written since.
        let images = load();
        fs::write(dir.path().join("good.erofs"), "rotten").unwrap();
        let error = images.verified(EMPTY).unwrap_err();
        assert!(
            error.contains("good.erofs has the digest") && error.contains("put the right one"),
            "{error}"
        );
        fs::write(dir.path().join("good.erofs"), "").unwrap();
        images.verified(EMPTY).unwrap();
    }
}
