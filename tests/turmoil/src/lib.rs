//! The real coordinator (consensus, store, leader, sessions, API) among simulated networks, disks and clocks; see `tests/worlds`.
