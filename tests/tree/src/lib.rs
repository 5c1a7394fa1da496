//! The source tree as the rules see it. In: the checkout this was compiled in. Out: its text files, by path from the top. Called by
//! the tests beside it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// What is made and never committed, as `.gitignore` says.
const MADE: [&str; 4] = [".git", "target", "images/out", "__pycache__"];

/// One text file.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// From the top of the tree, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl SourceFile {
    /// Whether its name ends in `.<extension>`.
    pub fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }
}

/// The top of the tree: of the checkout that cargo runs in, else of the one this was compiled in.
pub fn top() -> PathBuf {
    let crate_dir =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    // This crate lies two folders below it.
    crate_dir.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// All text files, in the order of their paths.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn files() -> io::Result<Vec<SourceFile>> {
    let top = top();
    let mut found = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let full = entry.path();
            let path = full.strip_prefix(&top).unwrap_or(&full).to_string_lossy().into_owned();
            let name = entry.file_name();
            if MADE.iter().any(|made| *made == path || *made == name) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(full);
            } else if let Ok(text) = String::from_utf8(fs::read(&full)?) {
                found.push(SourceFile { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}
