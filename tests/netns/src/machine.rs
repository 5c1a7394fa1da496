//! Machines of the lab: what a guest does with its `eth0`, and whether one reaches another.
//!
//! In: a host and a machine on it. Out: [`Guest`], whose sockets are in the machine's namespace.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{Host, inside, sh, spec::Machine};

/// A machine that has set up its network.
pub struct Guest {
    /// The machine's namespace.
    pub namespace: File,
    /// What it is.
    pub machine: Machine,
}

impl Guest {
    /// Does what the supervisor does: brings `lo` and `eth0` up, takes the address and the default route.
    pub fn boot(host: &Host, machine: &Machine) -> Result<Self> {
        let path = host.network().machine_netns(machine.instance);
        let namespace = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let [a, b, c, _] = machine.ipv4.octets();
        sh(&namespace, "ip link set lo up")?;
        sh(&namespace, &format!("ip addr add {}/24 dev eth0", machine.ipv4))?;
        sh(&namespace, "ip link set eth0 up")?;
        sh(&namespace, &format!("ip route add default via {a}.{b}.{c}.1"))?;
        Ok(Self { namespace, machine: machine.clone() })
    }

    /// Listens on a free TCP port of all its addresses.
    pub fn listen(&self) -> Result<TcpListener> {
        inside(&self.namespace, || Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?))
    }

    /// Sends a megabyte to another and back: neither small nor large packets get lost on the way.
    pub fn reaches(&self, other: &Self) -> Result<()> {
        let listener = other.listen()?;
        let port = listener.local_addr()?.port();
        let sent = vec![7_u8; 1 << 20];
        thread::scope(|scope| {
            let echo = scope.spawn(move || -> Result<()> {
                let (mut stream, _) = listener.accept()?;
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                let mut received = vec![0; 1 << 20];
                stream.read_exact(&mut received)?;
                stream.write_all(&received)?;
                Ok(())
            });
            let stream = self.connect(other.machine.ipv4, port);
            if stream.is_err() {
                // So that the listener's thread ends.
                let _ = inside(&other.namespace, || Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?));
            }
            let mut stream = stream?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(&sent)?;
            let mut back = vec![0; sent.len()];
            stream.read_exact(&mut back)?;
            ensure!(back == sent, "what came back differs");
            echo.join().map_err(|_| anyhow!("the echo thread panicked"))?
        })
    }

    /// Opens a TCP connection.
    pub fn connect(&self, address: Ipv4Addr, port: u16) -> Result<TcpStream> {
        self.connect_within(address, port, Duration::from_secs(5))
    }

    /// Opens a TCP connection within a time of its own.
    pub fn connect_within(&self, address: Ipv4Addr, port: u16, limit: Duration) -> Result<TcpStream> {
        let target = SocketAddr::from((address, port));
        inside(&self.namespace, || {
            TcpStream::connect_timeout(&target, limit).with_context(|| format!("connect to {target}"))
        })
    }
}
