//! Every rule of the API for create and modify, through `validate::put` and the log: what is sent, the path and the text of the refusal.
#![allow(clippy::unwrap_used)]

mod api;
mod create;
mod in_flight;
mod modify;
mod postgres;
