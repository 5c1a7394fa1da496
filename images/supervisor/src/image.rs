//! What the image says about itself: which engine it carries, in which version.
//!
//! In: `/etc/shardplane-image`, lines of `key=value` written by `images/build`. Out: [`Image`]. Called by `run` once.

use anyhow::Context as _;

/// Where `images/build` writes it.
const FILE: &str = "/etc/shardplane-image";

/// Engine of this image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Name as `engine::open` knows it.
    pub engine: String,
    /// Upstream version, for example 8.1.1.
    pub version: String,
}

/// Reads the image's own description.
pub fn read() -> anyhow::Result<Image> {
    let text = std::fs::read_to_string(FILE)
        .with_context(|| format!("read {FILE}: the image was not built by images/build"))?;
    parse(&text).with_context(|| format!("{FILE} lacks engine= or version="))
}

fn parse(text: &str) -> Option<Image> {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once('='))
            .find(|(k, _)| *k == key)
            .map(|(_, v)| v.trim().to_owned())
    };
    Some(Image { engine: value("engine")?, version: value("version")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_members_are_needed() {
        let image = Image { engine: "an-engine".into(), version: "8.1.1".into() };
        assert_eq!(parse("engine=an-engine\nversion=8.1.1\n"), Some(image));
        assert_eq!(parse("engine=an-engine\n"), None);
    }
}
