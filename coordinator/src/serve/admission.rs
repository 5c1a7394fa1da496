//! How many connections there are at a time. In: the address of a new one. Out: a place for it, or none. Called by the accept loop.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Connections in all. Every host of a large installation has one at the leader.
const MOST: usize = 16_384;

/// Connections of one address: no client can lock out the hosts and the other members.
const MOST_OF_ONE: usize = 1_024;

/// Counts connections.
#[derive(Clone)]
pub struct Admission {
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
    most: usize,
    most_of_one: usize,
}

/// A connection's place; free again when it is dropped.
pub struct Place {
    admission: Admission,
    address: IpAddr,
}

impl Admission {
    /// The limits of a member.
    pub fn new() -> Self {
        Self::with_limits(MOST, MOST_OF_ONE)
    }

    fn with_limits(most: usize, most_of_one: usize) -> Self {
        Self { taken: Arc::default(), most, most_of_one }
    }

    /// A place for a connection from this address, if there is one.
    pub fn place(&self, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken();
        let own = taken.get(&address).copied().unwrap_or_default();
        if own >= self.most_of_one || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(address, own + 1);
        Some(Place { admission: self.clone(), address })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        // Counts are whole after every step, so a panic elsewhere leaves them so.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.admission.taken();
        match taken.get_mut(&self.address) {
            Some(own) if *own > 1 => *own -= 1,
            Some(_) | None => {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_for_others_and_dropped_ones_are_free_again() {
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let admission = Admission::with_limits(3, 2);
        let first = admission.place(a).unwrap();
        let _second = admission.place(a).unwrap();
        assert!(admission.place(a).is_none());
        let _third = admission.place(b).unwrap();
        assert!(admission.place(b).is_none());
        drop(first);
        assert!(admission.place(b).is_some());
        assert!(admission.place(a).is_some());
    }
}
