//! Host operations by gRPC against a real server: closed, planned, emptied under a client that writes, and given up for good.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use shardplane_e2e::{Cluster, Grpc, Shape, engine, measured, on_stage, slots};
use shardplane_harness::{WorldOptions, wait_until};
use shardplane_proto::v1;
use tonic::Code;

use crate::{
    REPAIR, SOON,
    story::{nothing_lost, writer},
};

/// Keys that a new member has to copy.
const KEYS: u64 = 20_000;

#[test]
fn hosts_are_closed_planned_emptied_and_given_up_by_grpc() {
    let options = WorldOptions { hosts: 3, coordinators: 1, lost_after_s: 8, ..WorldOptions::named("grpc") };
    on_stage(options, |world| {
        let mut grpc = Grpc::of(world)?;
        let hosts = listed(&mut grpc)?;
        ensure!(hosts.len() == 3 && hosts.iter().all(|host| host.state == "Ready"), "{hosts:?}");
        let third = &hosts[2];
        let (id, reason) = (third.id.clone(), "new disks".to_owned());
        let request = v1::CordonHostRequest { id, reason, for_seconds: 3600 };
        let closed = grpc.call(async |o| o.cordon_host(request).await)?;
        let cordon = closed.cordon.context("it is not closed")?;
        ensure!(cordon.reason == "new disks" && !cordon.until_time.is_empty(), "{cordon:?}");
        let (cluster, _) = Cluster::create(world, &Shape::of(1, 1))?;
        ensure!(cluster.instances()?.iter().all(|i| i.host != 3), "something came to a closed host");
        slots::load(&cluster, "old", KEYS)?;
        let (primary, replica) = cluster.pair(0)?;
        let leads = &hosts[usize::try_from(primary.host)? - 1];

        let blocked = planned(&mut grpc, &leads.id, "drain")?;
        ensure!(
            blocked.moves.len() == 1 && blocked.moves[0].to_host.is_empty(),
            "the only place is closed: {blocked:?}"
        );
        let request = v1::UncordonHostRequest { id: third.id.clone() };
        let opened = grpc.call(async |o| o.uncordon_host(request).await)?;
        ensure!(opened.cordon.is_none(), "{opened:?}");
        let loss = planned(&mut grpc, &leads.id, "loss")?;
        let plan = planned(&mut grpc, &leads.id, "drain")?;
        for plan in [&loss, &plan] {
            foretold(plan, &primary.id, &third.name)?;
        }
        let pauses = |plan: &v1::HostPlan| plan.clusters[0].pauses.clone();
        ensure!(
            pauses(&plan).iter().all(|p| p.what.starts_with("writes to shard")) && pauses(&plan).len() == 1,
            "{plan:?}"
        );
        ensure!(pauses(&loss)[0].milliseconds > pauses(&plan)[0].milliseconds, "{loss:?}, {plan:?}");

        let writer = writer(&cluster, "grpc", &[primary.host])?;
        writer.progresses(100, SOON)?;
        let wrong = v1::ForgetHostRequest { id: leads.id.clone() };
        let Err(refused) = grpc.call(async |o| o.forget_host(wrong).await) else {
            anyhow::bail!("a host that works was given up");
        };
        ensure!(refused.code() == Code::InvalidArgument && refused.message().contains("lost"), "{refused}");
        empties(&mut grpc, &leads.id)?;
        let places: BTreeSet<u32> = cluster.instances()?.iter().map(|i| i.host).collect();
        ensure!(places == [replica.host, 3].into(), "planned {}, came {places:?}", plan.moves[0].to_host);
        ensure!(slots::seen(&cluster, "old", KEYS)? == KEYS, "keys are lost");

        world.kill_host(primary.host)?;
        let lost = || match listed(&mut grpc) {
            Ok(hosts) if hosts.iter().any(|h| h.id == leads.id && h.state == "Lost") => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_until("the loss of the host", REPAIR, lost)?;
        let request = v1::ForgetHostRequest { id: leads.id.clone() };
        grpc.call(async |o| o.forget_host(request).await)?;
        let gone = || match listed(&mut grpc) {
            Ok(hosts) if hosts.len() == 2 && hosts.iter().all(|h| h.id != leads.id) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_until("the host being forgotten", SOON, gone)?;
        let request = v1::OperatorListRequest { filter: format!("host/{}", leads.id) };
        let events = grpc.call(async |o| o.list_events(request).await)?.items;
        let told: BTreeSet<&str> = events.iter().map(|event| event.reason.as_str()).collect();
        for reason in ["HostDraining", "HostDrained", "HostLost"] {
            ensure!(told.contains(reason), "no {reason} in {told:?}");
        }
        cluster.wait_whole(SOON)?;
        cluster.wait_agreed(SOON)?;
        nothing_lost(&cluster, writer)
    });
}

fn listed(grpc: &mut Grpc) -> Result<Vec<v1::HostView>> {
    Ok(grpc.call(async |o| o.list_hosts(v1::OperatorListRequest::default()).await)?.items)
}

fn planned(grpc: &mut Grpc, host: &str, what: &str) -> Result<v1::HostPlan> {
    let request = v1::PlanHostRequest { id: host.to_owned(), what: what.to_owned(), ..Default::default() };
    Ok(grpc.call(async |o| o.plan_host(request).await)?)
}

/// The one instance goes where there is a place, with all slots and all that its shard has.
fn foretold(plan: &v1::HostPlan, instance: &str, to: &str) -> Result<()> {
    let ([only], [cluster]) = (plan.moves.as_slice(), plan.clusters.as_slice()) else {
        anyhow::bail!("the plan is {plan:?}");
    };
    ensure!(only.instance_id == instance && only.to_host == to && only.blocker.is_empty(), "{plan:?}");
    ensure!(only.slots == engine::SLOTS && cluster.slots == only.slots, "{plan:?}");
    // The keys themselves take that much.
    ensure!(only.bytes > KEYS * 16 && cluster.bytes == only.bytes, "{plan:?}");
    ensure!(cluster.anti_affinity_ok && cluster.primary_spread_ok, "{plan:?}");
    Ok(())
}

fn empties(grpc: &mut Grpc, host: &str) -> Result<()> {
    let mut drains = || {
        let request = v1::DrainHostRequest { id: host.to_owned(), ..Default::default() };
        let drain = grpc.call(async |o| o.drain_host(request).await).map(|host| host.drain);
        match drain {
            Ok(Some(drain)) if drain.phase == "drained" && drain.left == 0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    let ((), took) = wait_until("the host being drained", 2 * REPAIR, &mut drains)?;
    measured("drain of the host of a single shard's primary, by gRPC", took);
    Ok(())
}
