//! `kc`: the command line client. In: arguments. Out: what the server says; see `shardplane_coordinator::kc`.

use std::process::ExitCode;

use shardplane_coordinator::kc;

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => ExitCode::from(runtime.block_on(kc::run(args))),
        Err(cause) => {
            eprintln!("error: kc cannot start: {cause}");
            ExitCode::FAILURE
        }
    }
}
