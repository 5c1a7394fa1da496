//! Profiles: which server and token. In: `~/.kc/config/<profile>.yaml`, `~/.kc/config/active`, and the environment, which wins. Out: the
//! same files, readable by their owner alone.

use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::answer::Config;

/// A server and a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// URL.
    pub server: String,
    /// Empty when there is none.
    pub token: String,
}

/// The profiles of a user.
pub struct Profiles {
    folder: PathBuf,
}

impl Profiles {
    /// Those below `$HOME/.kc/config`.
    ///
    /// # Errors
    /// Without a home.
    pub fn of_this_user() -> Result<Self, String> {
        let home = env::var_os("HOME").ok_or("HOME is not set: kc keeps its profiles in $HOME/.kc")?;
        Ok(Self { folder: PathBuf::from(home).join(".kc/config") })
    }

    /// Name of the profile in use.
    pub fn current(&self) -> String {
        let chosen = env::var("KC_PROFILE").ok().filter(|name| !name.is_empty());
        let active = || fs::read_to_string(self.folder.join("active")).ok();
        let name = chosen.or_else(active).map(|name| name.trim().to_owned());
        name.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned())
    }

    /// The profile as it is used: file, then `KC_API_URL` and `KC_TOKEN` over it.
    ///
    /// # Errors
    /// When the file is there but not a profile.
    pub fn load(&self, name: &str) -> Result<Profile, String> {
        let mut profile = self.stored(name)?;
        if let Some(server) = env::var("KC_API_URL").ok().filter(|server| !server.is_empty()) {
            profile.server = server;
        }
        if let Some(token) = env::var("KC_TOKEN").ok().filter(|token| !token.is_empty()) {
            profile.token = token;
        }
        Ok(profile)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.yaml"))
    }

    fn stored(&self, name: &str) -> Result<Profile, String> {
        let path = self.path(name);
        match fs::read_to_string(&path) {
            Ok(text) => serde_norway::from_str(&text)
                .map_err(|cause| format!("{} is not a profile (server:, token:): {cause}", path.display())),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Profile::default()),
            Err(cause) => Err(format!("cannot read {}: {cause}", path.display())),
        }
    }

    /// Changes a stored profile; what is none stays.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn change(&self, name: &str, server: Option<&str>, token: Option<&str>) -> Result<(), String> {
        let mut profile = self.stored(name)?;
        if let Some(server) = server {
            profile.server = server.to_owned();
        }
        if let Some(token) = token {
            profile.token = token.to_owned();
        }
        let text = serde_norway::to_string(&profile)
            .map_err(|cause| format!("the profile cannot be written: {cause}"))?;
        self.write(&self.path(name), &text)
    }

    fn write(&self, path: &PathBuf, text: &str) -> Result<(), String> {
        let written = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            // Written beside and moved into place: an interrupted kc leaves the old profile.
            let fresh = path.with_extension(format!("{}.new", std::process::id()));
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&fresh, path)
        };
        written().map_err(|cause| format!("cannot write {}: {cause}", path.display()))
    }

    /// Does what the server says about profiles.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the server asks for something unknown.
    pub fn obey(&self, config: &Config, current: &str) -> Result<(), String> {
        let name = config.profile.as_deref().filter(|name| !name.is_empty()).unwrap_or(current);
        if name.contains('/') || name.starts_with('.') {
            return Err(format!("the server named a profile {name:?}, which would lie elsewhere"));
        }
        match config.action.as_str() {
            "write" => self.change(name, config.server.as_deref(), config.token.as_deref()),
            "use" => self.write(&self.folder.join("active"), name),
            "read" => {
                let path = self.path(name);
                let text = fs::read_to_string(&path)
                    .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?;
                super::terminal::print(&text, "").map(drop)
            }
            "list" => {
                let text: String = self.names()?.into_iter().map(|name| name + "\n").collect();
                super::terminal::print(&text, "").map(drop)
            }
            other => Err(format!("the server asks for {other:?} with profiles, which this kc does not know")),
        }
    }

    fn names(&self) -> Result<Vec<String>, String> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(cause) => return Err(format!("cannot read {}: {cause}", self.folder.display())),
        };
        let names = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".yaml")?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn profiles_are_kept_for_their_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let profiles = Profiles { folder: home.path().join(".kc/config") };
        assert_eq!(profiles.names().unwrap(), Vec::<String>::new());
        profiles.change("lab", Some("http://a:1"), None).unwrap();
        profiles.change("lab", None, Some("sp_x")).unwrap();
        assert_eq!(
            profiles.stored("lab").unwrap(),
            Profile { server: "http://a:1".to_owned(), token: "sp_x".to_owned() }
        );
        assert_eq!(profiles.names().unwrap(), ["lab"]);
        let mode = |path: &str| fs::metadata(home.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(".kc/config"), mode(".kc/config/lab.yaml")), (0o700, 0o600));
    }

    #[test]
    fn a_server_cannot_write_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        let profiles = Profiles { folder: home.path().join("config") };
        let config =
            Config { action: "write".to_owned(), profile: Some("../x".to_owned()), ..Config::default() };
        assert!(profiles.obey(&config, "default").is_err());
        profiles
            .obey(
                &Config { action: "use".to_owned(), profile: Some("lab".to_owned()), ..Config::default() },
                "default",
            )
            .unwrap();
        assert_eq!(fs::read_to_string(home.path().join("config/active")).unwrap(), "lab");
    }
}
