//! Fences and leases outlive the agent: whoever must serve nobody serves nobody, however often the agent dies, and with no coordinator to
//! tell the next one. In: a machine that is fenced or whose lease is over. Out: it is stopped, or reaches nobody, until a newer spec.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use shardplane_harness::coordinator::{Coordinator, Session};
use shardplane_proto::v1::{self, MachineState};

use crate::{
    ID, engine_runs,
    host::{Host, eventually, valkey},
    id, machine, on_a_host, spec,
};

/// Short, so that a test can wait for its end.
const LEASE: Duration = Duration::from_secs(4);
/// Where nobody listens: the discard port of this machine.
const NOBODY: &str = "127.0.0.1:9";

/// What a port does with a connection.
#[derive(Debug, PartialEq)]
enum Answer {
    Taken,
    Refused,
    /// As when it is cut.
    Silence,
}

/// What somebody in the network of machine 1 gets from a port of machine 0.
fn ask(host: &Host, port: u16) -> Answer {
    let address = SocketAddr::from(([10, 20, 0, 5], port));
    let connect = move || match TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        Ok(_) => Answer::Taken,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Answer::Refused,
        Err(_) => Answer::Silence,
    };
    host.inside(&format!("machine-{}", id(1)), connect)
}

fn reaches(host: &Host, port: u16) -> bool {
    ask(host, port) == Answer::Taken
}

fn cut_off(host: &Host, port: u16) -> bool {
    ask(host, port) == Answer::Silence
}

/// Looks all the time from machine 1 whether machine 0 can be reached.
struct Lookout {
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU32>,
    looked: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

impl Lookout {
    fn begin(host: &Host) -> Self {
        let (stop, seen, looked) = <(Arc<AtomicBool>, Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let (end, count, every) = (Arc::clone(&stop), Arc::clone(&seen), Arc::clone(&looked));
        let look = move || {
            let address = SocketAddr::from(([10, 20, 0, 5], 6379));
            while !end.load(Ordering::Relaxed) {
                if TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                every.fetch_add(1, Ordering::Relaxed);
            }
        };
        let thread = host.thread_inside(&format!("machine-{}", id(1)), look);
        Self { stop, seen, looked, thread }
    }

    /// Waits until it has looked so often more.
    fn looks(&self, more: u32) {
        let enough = self.looked.load(Ordering::Relaxed) + more;
        eventually("a look at the port", || self.looked.load(Ordering::Relaxed) >= enough);
    }

    /// How often it was reached.
    fn end(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.seen.load(Ordering::Relaxed)
    }
}

fn of(report: &v1::HostReport, number: usize) -> Option<&v1::InstanceReport> {
    report.instances.iter().find(|one| one.instance_id == id(number).to_string())
}

fn runs(report: &v1::HostReport, number: usize) -> bool {
    of(report, number).is_some_and(|one| {
        one.machine() == MachineState::Running
            && one.guest.as_ref().is_some_and(|g| !g.engine_report.is_empty())
    })
}

/// Kills the agent, and starts one that finds no coordinator; waits until it has logged `what`.
fn restart_alone(host: &mut Host, what: &str) {
    host.end_agent(Signal::SIGKILL);
    host.configure(NOBODY.parse().unwrap());
    let before = host.log().matches(what).count();
    host.start_agent();
    eventually(what, || host.log().matches(what).count() > before);
}

/// The agent finds its coordinator again.
async fn restart(host: &mut Host, coordinator: &mut Coordinator) -> Session {
    host.end_agent(Signal::SIGKILL);
    host.configure(coordinator.address);
    host.start_agent();
    coordinator.session().await.1
}

#[test]
fn a_fenced_machine_stays_stopped_and_cut_off_over_deaths_of_the_agent() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.start_agent();
        let (hello, mut session) = coordinator.session().await;
        let digest = valkey(&hello);
        session.spec(spec(1, 1, &digest, 2)).await;
        eventually("both run", || host.machines().len() == 2 && reaches(host, 6379));
        let both = host.machines();
        let is_fenced = |pid: &&i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
            String::from_utf8_lossy(&environment).contains(&ID.to_string())
        };
        let (fenced, other): (Vec<i32>, Vec<i32>) = both.iter().partition(is_fenced);

        // It does not stop in order, and the agent dies with the order taken and not carried out.
        kill(Pid::from_raw(fenced[0]), Signal::SIGSTOP).unwrap();
        let mut fence = spec(1, 2, &digest, 2);
        fence.instances[0].fenced = true;
        session.spec(fence.clone()).await;
        session.report("the fence is accepted", |report| report.accepted_generation == 2).await;
        restart_alone(host, "nothing of it runs");
        assert_eq!(host.machines(), other, "the fenced one is stopped, without a coordinator");

        // Something else in the place of the engine: nobody reaches that either, so the port is cut.
        let squatter = host.inside(&format!("machine-{ID}"), || TcpListener::bind("10.20.0.5:7000").unwrap());
        assert!(cut_off(host, 7000), "its port is cut");
        restart_alone(host, "nothing of it runs");
        assert!(host.machines() == other && cut_off(host, 7000), "and stays so in the next life");

        let mut session = restart(host, &mut coordinator).await;
        session.spec(fence).await;
        let proved = |report: &v1::HostReport| machine(report).is_some_and(|one| one.fenced && one.port_cut);
        let report = session.report("the proof", proved).await;
        assert!(host.machines() == other && cut_off(host, 7000));
        assert_eq!(machine(&report).map(v1::InstanceReport::machine), Some(MachineState::Down));
        session.spec(spec(1, 3, &digest, 2)).await;
        session.report("it runs again", |report| runs(report, 0)).await;
        assert!(reaches(host, 7000) && reaches(host, 6379), "its port is open");
        drop(squatter);
    });
}

/// A machine whose lease is over keeps running, since nobody is to lose what it has, and reaches nobody before a spec says anew that it
/// is wanted: not in the next life of the agent, not after a welcome, and not in the life after a welcome either.
#[test]
fn a_port_that_a_lease_cut_stays_cut_over_deaths_of_the_agent() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.start_agent();
        let (hello, session) = coordinator.session().await;
        let digest = valkey(&hello);
        // Machine 2 is fenced throughout, so that every life of the agent has something to do in the network.
        let leased = |generation| {
            let mut leased = spec(1, generation, &digest, 3);
            leased.instances[0].lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
            leased.instances[0].copies_needed = 1;
            leased.instances[2].fenced = true;
            leased
        };
        session.spec(leased(1)).await;
        eventually("both run", || host.machines().len() == 2 && reaches(host, 6379));
        let machines = host.machines();

        eventually("the contact is noted for the next life", || host.path("run/contact").exists());
        host.end_agent(Signal::SIGKILL);
        // The absence itself is what is tested.
        tokio::time::sleep(LEASE).await;
        let back = Instant::now();
        restart_alone(host, "its lease ran out");
        assert!(back.elapsed() < LEASE, "a new life renewed the lease: cut after {:?}", back.elapsed());
        eventually("the port is cut", || cut_off(host, 6379));
        let lookout = Lookout::begin(host);
        restart_alone(host, "its port was cut, and stays so");
        lookout.looks(20);
        // A welcome grants a lease, and does not say that the machine is still wanted.
        let noted = |host: &Host| fs::read(host.path("run/contact")).unwrap();
        let before = noted(host);
        let mut session = restart(host, &mut coordinator).await;
        let cut = |report: &v1::HostReport| machine(report).is_some_and(|one| one.port_cut);
        session.report("cut in a new session", cut).await;
        eventually("the welcome is noted for the next life", || noted(host) != before);
        restart_alone(host, "its port was cut, and stays so");
        lookout.looks(20);
        let mut session = restart(host, &mut coordinator).await;
        session.report("running", |report| runs(report, 0)).await;
        assert_eq!(lookout.end(), 0, "it was reached while its lease was over");
        assert_eq!(host.machines(), machines, "nothing was stopped");

        session.spec(leased(2)).await;
        session.report("open", |report| machine(report).is_some_and(|one| !one.port_cut)).await;
        eventually("it is reached again", || reaches(host, 6379));
        assert!(engine_runs(&session.report("the engine", |report| runs(report, 0)).await));
    });
}

/// A client beside machine 0 that writes as fast as it is answered; when each write was acknowledged.
fn write_to_machine_0(host: &Host, stop: &Arc<AtomicBool>) -> (Arc<Mutex<Vec<Instant>>>, JoinHandle<()>) {
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let (times, end) = (Arc::clone(&acknowledged), Arc::clone(stop));
    let write = move || {
        let mut stream = TcpStream::connect("10.20.0.5:6379").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        stream.write_all(b"AUTH swordfish\r\n").unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "+OK\r\n");
        while !end.load(Ordering::Relaxed) {
            stream.write_all(b"SET key value\r\n").unwrap();
            answer.clear();
            // A write that is held is waited for; one that a cut port swallows is, too.
            while !answer.ends_with('\n') && !end.load(Ordering::Relaxed) {
                let _not_yet = answers.read_line(&mut answer);
            }
            if answer == "+OK\r\n" {
                times.lock().unwrap().push(Instant::now());
            }
        }
    };
    let thread = host.thread_inside(&format!("machine-{}", id(1)), write);
    (acknowledged, thread)
}

/// A host that was suspended for longer than its lease: when it wakes, another member may lead. The guest itself holds the writes before
/// the agent has its next look at the lease.
#[test]
fn a_host_that_was_suspended_beyond_its_lease_takes_no_writes_when_it_wakes() {
    on_a_host(async |host| {
        let mut coordinator = Coordinator::start().await;
        host.configure(coordinator.address);
        host.start_agent();
        let (hello, session) = coordinator.session().await;
        let digest = valkey(&hello);
        let lost_after_ms = u64::try_from(LEASE.as_millis()).unwrap();
        session.say(v1::to_host::Body::Welcome(v1::Welcome { term: 1, lost_after_ms })).await;
        let leased = |generation| {
            let mut leased = spec(1, generation, &digest, 2);
            leased.instances[0].lease_ms = lost_after_ms;
            leased.instances[0].copies_needed = 1;
            leased
        };
        session.spec(leased(1)).await;
        eventually("both run", || host.machines().len() == 2 && reaches(host, 6379));
        let stop = Arc::new(AtomicBool::new(false));
        let (acknowledged, writer) = write_to_machine_0(host, &stop);
        let writes = || acknowledged.lock().unwrap().len();
        eventually("writes", || writes() > 100);

        let frozen = host.processes_of(ID);
        assert!(frozen.len() >= 2, "supervisor and engine: {frozen:?}");
        let signal = |what: Signal| {
            for pid in &frozen {
                kill(Pid::from_raw(*pid), what).unwrap();
            }
        };
        signal(Signal::SIGSTOP);
        host.signal_agent(Signal::SIGSTOP);
        // The pause itself is what is tested.
        tokio::time::sleep(LEASE * 2).await;
        let woke = Instant::now();
        signal(Signal::SIGCONT);
        // Its timers go on where they stood, and then it has to ask the kernel: that takes it longer than the guest.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        host.signal_agent(Signal::SIGCONT);
        // Its old session is too old to count, and the new one says nothing yet.
        let (_, mut session) = coordinator.session().await;
        let held = |one: &v1::InstanceReport| one.guest.as_ref().is_some_and(|guest| guest.held_wake == 1);
        session
            .report("held or cut", |report| machine(report).is_some_and(|one| one.port_cut || held(one)))
            .await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let late = acknowledged.lock().unwrap().iter().filter(|at| **at > woke).map(|at| *at - woke).max();
        println!("measured: last write taken after the wake: {:?}", late.unwrap_or_default());
        assert!(late.unwrap_or_default() < Duration::from_millis(500), "taken {late:?} after the wake");
        let before = writes();
        session.spec(leased(2)).await;
        eventually("writes again", || writes() > before + 100);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
}
