//! The executor on a real log of one member: large proposals, clocks, settings.

use std::{
    io,
    sync::{Arc, Mutex},
};

use shardplane_model::{
    command::Timestamp,
    state::{Scope, Token},
    time::Millis,
};
use shardplane_proto::ids::TokenId;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::leader::tests::{Lone, lone};

fn executor(lone: &Lone, settings: Settings) -> Executor {
    let clock = Clock::start();
    let (ear, wanted) = (Ear::start(clock.clone()), watch::channel(ForHosts::default()).0);
    Executor { raft: lone.raft.clone(), clock, ear, wanted, settings }
}

/// A command with a name of this many bytes.
fn large(number: u128, bytes: usize) -> Command {
    Command::AddToken(Token {
        id: TokenId::from_u128(number),
        name: "x".repeat(bytes),
        scopes: vec![Scope::Read],
        hash: "00".repeat(32),
        created: Timestamp(1),
    })
}

#[tokio::test]
async fn a_proposal_that_is_too_large_is_halved_and_a_giant_holds_up_nobody() {
    let lone = lone().await;
    let executor = executor(&lone, Settings::default());
    let two_mib = 2 << 20;
    let mut commands: Vec<Command> = (1..=5).map(|number| large(number, two_mib)).collect();
    commands.insert(2, large(9, two_mib * 3));
    assert_eq!(executor.propose(commands).await, Got::Through { changed: true });
    let kept: Vec<TokenId> = lone.raft.local().tokens.keys().copied().collect();
    assert_eq!(kept, (1..=5).map(TokenId::from_u128).collect::<Vec<_>>());
    let giant = executor.propose(vec![large(9, two_mib * 3)]).await;
    assert_eq!(giant, Got::Through { changed: false });
    assert!(giant.pause() > Duration::ZERO, "it would be proposed anew for ever");
    lone.raft.stop().await;
}

#[tokio::test]
async fn each_confirmed_read_sets_the_clock_to_the_logs_time_and_tells_hosts() {
    let lone = lone().await;
    let executor = executor(&lone, Settings::default());
    // The stamps of a leader whose clock was two hours ahead.
    let ahead = Timestamp(executor.clock.now().0 + 7_200_000);
    lone.clock.reach(ahead);
    lone.raft.propose(vec![large(1, 1)]).await.unwrap();
    assert!(executor.clock.now() < ahead);
    let wanted = executor.wanted.subscribe();
    let mut confirmed_at = None;
    executor.turn(&mut confirmed_at).await;
    assert!(confirmed_at.is_some());
    assert!(executor.clock.now() >= ahead, "its stamps would be older than those in the log");
    assert_eq!(wanted.borrow().confirmed, 1);
    // Not with every look: about once a second.
    executor.turn(&mut confirmed_at).await;
    assert_eq!(wanted.borrow().confirmed, 1);

    lone.raft.stop().await;
    let mut nothing = None;
    assert_eq!(executor.turn(&mut nothing).await, PAUSE);
    assert_eq!((nothing.is_none(), wanted.borrow().confirmed), (true, 1), "nobody confirmed that it leads");
}

/// What was logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

fn logged(act: impl FnOnce()) -> String {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).finish();
    tracing::subscriber::with_default(subscriber, act);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn settings_that_differ_are_told_by_a_follower_and_become_an_event_when_it_leads() {
    let lone = lone().await;
    let of = |seconds| Settings { lost_after: Millis::seconds(seconds), ..Settings::default() };
    let first = executor(&lone, of(30));
    assert_eq!(logged(|| first.compare_settings()), "", "a new installation has none");
    first.turn(&mut None).await;
    assert_eq!(lone.raft.local().settings, of(30));
    assert_eq!(logged(|| first.compare_settings()), "");
    let events = || lone.raft.local().events.values().filter(|e| e.reason == "SettingsChanged").count();
    assert_eq!(events(), 0);

    let other = executor(&lone, of(60));
    let told = logged(|| other.compare_settings());
    assert!(told.contains("WARN") && told.contains("make the files of all members equal"), "{told}");
    other.turn(&mut None).await;
    assert_eq!(lone.raft.local().settings, of(60));
    assert_eq!(events(), 1);
    assert!(!other.turn(&mut None).await.is_zero());
    assert_eq!(events(), 1, "settings that are in force are not set again");
    lone.raft.stop().await;
}
