//! What a kernel wants on its command line.
//!
//! In: the file `cmdline` beside the kernel, which `images/build kernel` makes. Out: its words in one line. Called by the VMM for each start.

use std::{fs, io, path::Path};

/// The words that this kernel wants to be told. A line that begins with `#` is for people; a kernel without the file wants none.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn words_of(kernel: &Path) -> io::Result<String> {
    match fs::read_to_string(kernel.with_file_name("cmdline")) {
        Ok(text) => {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            Ok(lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" "))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_kernel_follow_and_remarks_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = dir.path().join("vmlinuz");
        assert_eq!(words_of(&kernel).unwrap(), "", "a kernel of the operator's own");
        fs::write(dir.path().join("cmdline"), "# For speed.\na=1  b\n\n# And more.\nc=d,e\n").unwrap();
        assert_eq!(words_of(&kernel).unwrap(), "a=1 b c=d,e");
        fs::remove_file(dir.path().join("cmdline")).unwrap();
        fs::create_dir(dir.path().join("cmdline")).unwrap();
        assert!(words_of(&kernel).is_err());
    }
}
