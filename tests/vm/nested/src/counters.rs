//! A VMM asked past its agent. In: the VMM's process. Out: what its volume has done so far. Called by `iops`.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// A busy VMM on an emulated host.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads and writes of the data volume since the machine's start.
///
/// # Errors
/// When the VMM does not answer or knows no such disk.
pub fn operations(vmm: i32) -> anyhow::Result<u64> {
    let counters = get(vmm, "vm.counters")?;
    let count = |name: &str| counters["data"][name].as_u64();
    match (count("read_ops"), count("write_ops")) {
        (Some(read), Some(written)) => Ok(read + written),
        (Some(_) | None, _) => bail!("the VMM counts no operations of the disk data: {counters}"),
    }
}

fn get(vmm: i32, what: &str) -> anyhow::Result<Value> {
    let mut api = UnixStream::connect(format!("/proc/{vmm}/cwd/api")).context("connect to the VMM")?;
    api.set_read_timeout(Some(PATIENCE)).context("set a deadline")?;
    write!(api, "GET /api/v1/{what} HTTP/1.1\r\nHost: vm\r\n\r\n")
        .with_context(|| format!("ask for {what}"))?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    // The VMM keeps the connection open: the answer is whole when it is JSON.
    loop {
        let length = api.read(&mut buffer).with_context(|| format!("hear about {what}"))?;
        answer.extend_from_slice(buffer.get(..length).unwrap_or_default());
        let text = String::from_utf8_lossy(&answer);
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body);
        if let Some(value) = body.and_then(|body| serde_json::from_str(body).ok()) {
            return Ok(value);
        }
        if length == 0 {
            bail!("{what} was answered with {text}");
        }
    }
}
