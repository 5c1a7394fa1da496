//! The coordinator. In: users' REST and gRPC requests, hosts' sessions, other members' calls. Out: a replicated state that
//! says what should run where. Its commands are in `main.rs`.

pub mod api;
pub mod clock;
pub mod config;
pub mod dial;
pub mod kc;
pub mod leader;
pub mod member;
pub mod raft;
pub mod secrets;
pub mod serve;
pub mod setup;
