//! Generates the messages, the gRPC services (feature `grpc`) and the JSON of the public messages from `shardplane/v1`.
//! Needs no protoc: protox compiles the files.
use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 7] = ["resource", "api", "session", "guest", "valkey", "postgres", "raft"];

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = FILES.iter().map(|name| format!("shardplane/v1/{name}.proto")).collect();
    println!("cargo:rerun-if-changed=shardplane");
    let descriptors = protox::compile(&paths, ["."])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let encoded = descriptors.encode_to_vec();
    fs::write(out.join("descriptors.bin"), &encoded)?;

    let services = env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(services)
        .build_server(services)
        .btree_map(".")
        .compile_fds(descriptors)?;
    pbjson_build::Builder::new()
        .register_descriptors(&encoded)?
        .btree_map([".shardplane.v1"])
        .emit_fields()
        .build(&[".shardplane.v1"])?;
    Ok(())
}
