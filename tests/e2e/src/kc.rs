//! The real `kc`, as an operator types it. In: words, and what it reads from standard input. Out: what it says and its exit code; of one
//! that goes on, what it has said so far.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use shardplane_harness::{World, bin_dir};

/// An operator's `kc` in a world, with the admin token.
#[derive(Debug)]
pub struct Kc {
    program: PathBuf,
    /// Its home, and where the words of those that go on are kept.
    home: PathBuf,
    url: String,
    token: String,
}

impl Kc {
    /// The `kc` of a world.
    ///
    /// # Errors
    /// When the world's files cannot be read.
    pub fn of(world: &World) -> Result<Self> {
        let member = world.coordinators()?.into_iter().next().context("a world without coordinators")?;
        Ok(Self {
            program: bin_dir()?.join("kc"),
            home: world.run_dir(),
            url: format!("http://{}", member.address),
            token: world.api()?.token().to_owned(),
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).env("HOME", &self.home);
        command.env("KC_API_URL", &self.url).env("KC_TOKEN", &self.token);
        command
    }

    fn ends(&self, words: &[&str], typed: &str) -> Result<(bool, String)> {
        let told = || format!("kc {}", words.join(" "));
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(told)?;
        // It is closed at once: kc reads until the end.
        child.stdin.take().context("no standard input")?.write_all(typed.as_bytes()).with_context(told)?;
        let output = child.wait_with_output().with_context(told)?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        println!("$ {}\n{out}{err}", told());
        Ok((output.status.success(), if output.status.success() { out } else { err }.into_owned()))
    }

    /// What it prints; `typed` is its standard input.
    ///
    /// # Errors
    /// When it fails, with what it says.
    pub fn says(&self, words: &[&str], typed: &str) -> Result<String> {
        let (well, text) = self.ends(words, typed)?;
        ensure!(well, "kc {}: {text}", words.join(" "));
        Ok(text)
    }

    /// What it prints as JSON.
    ///
    /// # Errors
    /// When it fails, or prints something else.
    pub fn shows(&self, words: &[&str], typed: &str) -> Result<Value> {
        let text = self.says(&[words, &["-o", "json"]].concat(), typed)?;
        serde_json::from_str(&text).with_context(|| format!("kc {} says no JSON: {text}", words.join(" ")))
    }

    /// What it is refused with.
    ///
    /// # Errors
    /// When it is not refused.
    pub fn refused(&self, words: &[&str], typed: &str) -> Result<String> {
        let (well, text) = self.ends(words, typed)?;
        ensure!(!well, "kc {} is not refused: {text}", words.join(" "));
        Ok(text)
    }

    /// Begins one that goes on.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(&self, words: &[&str]) -> Result<Running> {
        let path = self.home.join(format!("kc-{}", words.join("-").replace('/', "-")));
        let file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let mut command = self.command(words);
        command.stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file);
        Ok(Running { child: command.spawn().context("cannot start kc")?, said: path })
    }
}

/// One that goes on until it ends or is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    said: PathBuf,
}

impl Running {
    /// What it has said so far.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn said(&self) -> Result<String> {
        fs::read_to_string(&self.said).with_context(|| format!("cannot read {}", self.said.display()))
    }

    /// Whether it ended well; nothing while it goes on.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn ended(&mut self) -> Result<Option<bool>> {
        Ok(self.child.try_wait()?.map(|status| status.success()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended cannot be killed, and that is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
