//! Directives of a simulated engine. In: what its config wants. Out: what is in force, what waits for a restart, what is refused.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use shardplane_proto::v1;

/// Directives that the real engine takes at its start alone.
const AT_START: [&str; 7] = [
    "appendfilename",
    "cluster-enabled",
    "databases",
    "io-threads",
    "rdb-version-check",
    "tcp-backlog",
    "unixsocket",
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directives {
    pub in_force: BTreeMap<String, String>,
    pub wanted: BTreeMap<String, String>,
    /// Name to the engine's text.
    pub refused: BTreeMap<String, String>,
}

/// Cheap to copy as long as nobody changes it: a node is copied in every step.
#[derive(Debug, Clone, Default)]
pub struct Shared<T>(Arc<T>);

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl Directives {
    /// The engine starts with them; what it does not take the supervisor leaves out.
    pub fn start(&mut self, wanted: &[v1::ValkeyDirective], refuses: &BTreeMap<(String, String), String>) {
        self.want(wanted);
        self.in_force = self.wanted.clone();
        // What the supervisor writes into every configuration itself.
        self.in_force.insert("cluster-allow-replica-migration".to_owned(), "no".to_owned());
        self.refused.clear();
        for (directive, text) in refuses {
            if self.wanted.get(&directive.0) == Some(&directive.1) {
                self.in_force.remove(&directive.0);
                self.refused.insert(directive.0.clone(), text.clone());
            }
        }
    }

    fn want(&mut self, wanted: &[v1::ValkeyDirective]) {
        self.wanted = wanted.iter().map(|d| (d.name.clone(), d.value.clone())).collect();
    }

    /// The running engine gets them, each as CONFIG SET does it. `refuses` is what it says no to, with its text.
    pub fn set(&mut self, wanted: &[v1::ValkeyDirective], refuses: &BTreeMap<(String, String), String>) {
        if self.wanted.len() == wanted.len()
            && wanted.iter().all(|d| self.wanted.get(&d.name) == Some(&d.value))
            && self.unapplied().is_empty()
        {
            return;
        }
        self.want(wanted);
        self.refused.clear();
        for (name, value) in &self.wanted {
            if self.in_force.get(name) == Some(value) {
                continue;
            }
            match refuses.get(&(name.clone(), value.clone())) {
                Some(text) => {
                    self.refused.insert(name.clone(), text.clone());
                }
                None if AT_START.contains(&name.as_str()) => {}
                None => {
                    self.in_force.insert(name.clone(), value.clone());
                }
            }
        }
    }

    /// Those whose value in force is another.
    pub fn unapplied(&self) -> Vec<String> {
        let other = |(name, value): &(&String, &String)| self.in_force.get(*name) != Some(*value);
        self.wanted.iter().filter(other).map(|(name, _)| name.clone()).collect()
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.in_force.get(name).is_some_and(|set| set == value)
    }

    pub fn persistent(&self) -> bool {
        self.is("appendonly", "yes")
    }

    pub fn synced_always(&self) -> bool {
        self.is("appendfsync", "always") && self.persistent()
    }

    /// Whether a node changes its shard by itself when its own has lost its slots.
    pub fn changes_shard(&self) -> bool {
        !self.is("cluster-allow-replica-migration", "no")
    }
}
