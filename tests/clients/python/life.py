"""A real cluster by the SDK: create, wait, every status member, what may not change, delete. Needs three hosts."""

import concurrent.futures
import copy
import json
import re
import time
import urllib.parse

import wire
from checks import check, contains, equal, until
from envelope import make_token
from ground import Ground, client, cluster, note, ulid, wait

PASSWORD = "p@ss: /?#%\"'é w0rd"
COMMON = ["state", "createTime", "createdByUser", "lastChangeRequest", "pricing"]
STATUS = """password port dnsSeedFqdn clusterEndpoints primaryEndpoints connectionUri clusterState antiAffinityOk antiAffinityMessage
 shards nodes primarySpreadOk primarySpreadMessage""".split()
SHARD = "index primaryInstanceId replicaInstanceIds primaryEndpoint replicaEndpoints slotStart slotEnd".split()
NODE = "id nodeId shardIndex port busPort privateIpV4 publicIpV4 announceFqdn isPrimary observedRole".split()
SPEC = "shards replicasPerShard rootPassword parametersSetId valkeyVersion vmOfferId volumeOfferId volumeSizeGiB useFqdn createPublicIpv4".split()
ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def create(resource):
    raw = copy.deepcopy(resource)
    created = client.valkeys.create_or_update(resource)
    identifier = note("valkey", resource["metadata"]["id"])
    equal("the create is accepted", created.errorCode, None)
    state = client.valkeys.read(identifier).resource["status"]["state"]
    check("while it is worked on, the state says so", state in ("scheduling", "reconciling"), state)
    raw["metadata"]["description"] = "too early"
    answer = wire.put("valkey", raw)
    equal("a change meanwhile is ResourceIsScheduling", (answer.status in (409, 422), answer.code), (True, "ResourceIsScheduling"))
    pending = client.valkeys.read_request(created.requestId)
    equal("its request is pending", (pending.succeeded, pending.errorCode, pending.scheduledResourceId), (False, None, identifier))
    done = client.valkeys.wait_request_satisfied(created.requestId, 180)
    if not check("the cluster is there within 180 s", done.succeeded, f"{done}; {client.valkeys.read(identifier).resource['status']}"):
        raise RuntimeError("without a cluster the rest says nothing")
    return identifier


def shape(resource):
    """Every member of the seeds and of the contract, with the type it has there."""
    equal("the envelope's members", list(resource), ["apiVersion", "kind", "metadata", "spec", "status"])
    equal("apiVersion and kind", (resource["apiVersion"], resource["kind"]), ("v1", "Valkey"))
    equal("metadata's members", sorted(resource["metadata"]), sorted(["id", "name", "description", "folderId", "labels", "deleteProtection"]))
    equal("spec's members", sorted(resource["spec"]), sorted(SPEC))
    status = resource["status"]
    equal("status begins with the common members", list(status)[:5], COMMON)
    check("status has all members", set(STATUS) <= set(status), set(STATUS) - set(status))
    equal("state", (status["state"], status["lastChangeRequest"]["state"]), ("stable", "stable"))
    equal("the last change request's members", sorted(status["lastChangeRequest"]), sorted(["state", "createTime", "errorMessage", "createdByUser"]))
    equal("no error", status["lastChangeRequest"]["errorMessage"], None)
    check("times are RFC 3339 in UTC", all(TIME.fullmatch(t) for t in (status["createTime"], status["lastChangeRequest"]["createTime"])), status["createTime"])
    check("who", all(set(u) == {"id", "name"} and u["id"] and u["name"] for u in (status["createdByUser"], status["lastChangeRequest"]["createdByUser"])), status["createdByUser"])
    pricing = status["pricing"]
    check("prices are numbers, a day is 24 hours", set(pricing) == {"hour", "day", "month"} and pricing["hour"] > 0 and abs(pricing["day"] - 24 * pricing["hour"]) < 1e-6 and pricing["month"] > pricing["day"], pricing)


def members(resource, shards, replicas):
    status, total = resource["status"], shards * (1 + replicas)
    equal("clusterState", status["clusterState"], "ok")
    equal("port", status["port"], 6379)
    equal("dnsSeedFqdn without useFqdn", status["dnsSeedFqdn"], None)
    nodes, parts = status["nodes"], status["shards"]
    equal("one node an instance", len(nodes), total)
    check("nodes have all members", all(set(NODE) <= set(n) for n in nodes), nodes)
    check("node ids are ULIDs in lower case, engine ids are 40 hex digits, all different",
          all(ULID.fullmatch(n["id"]) and re.fullmatch("[0-9a-f]{40}", n["nodeId"]) for n in nodes) and len({n["id"] for n in nodes} | {n["nodeId"] for n in nodes}) == 2 * total, nodes)
    check("ports", all((n["port"], n["busPort"]) == (6379, 16379) for n in nodes), nodes)
    check("addresses are of the subnet and all different", all(n["privateIpV4"].startswith("10.71.0.") for n in nodes) and len({n["privateIpV4"] for n in nodes}) == total, nodes)
    check("nothing public, no names", all(n["publicIpV4"] is None and n["announceFqdn"] is None for n in nodes), nodes)
    check("roles fit", all(n["isPrimary"] is (n["observedRole"] == "master") and n["observedRole"] in ("master", "slave") for n in nodes), nodes)
    equal("primaries by shard", sorted(n["shardIndex"] for n in nodes if n["isPrimary"]), list(range(shards)))
    equal("shards have their order", [p["index"] for p in parts], list(range(shards)))
    check("shards have all members", all(set(SHARD) <= set(p) for p in parts), parts)
    slots = [(p["slotStart"], p["slotEnd"]) for p in parts]
    check("slots are contiguous from 0 to 16383", slots[0][0] == 0 and slots[-1][1] == 16383 and all(a[1] + 1 == b[0] for a, b in zip(slots, slots[1:])), slots)
    check("slots are even", max(e - s for s, e in slots) - min(e - s for s, e in slots) <= 1, slots)
    by_id = {n["id"]: n for n in nodes}
    fits = [p["primaryEndpoint"] == f"{by_id[p['primaryInstanceId']]['privateIpV4']}:6379" and by_id[p["primaryInstanceId"]]["isPrimary"] for p in parts]
    equal("each shard's primary is the node with its endpoint", fits, [True] * shards)
    equal("replicas by shard", [len(p["replicaInstanceIds"]) for p in parts], [replicas] * shards)
    check("replica endpoints are those of the replicas", all(p["replicaEndpoints"] == [f"{by_id[i]['privateIpV4']}:6379" for i in p["replicaInstanceIds"]] for p in parts), parts)
    equal("clusterEndpoints are all nodes", sorted(status["clusterEndpoints"]), sorted(f"{n['privateIpV4']}:6379" for n in nodes))
    equal("primaryEndpoints are those of the shards", status["primaryEndpoints"], [p["primaryEndpoint"] for p in parts])


def secrets(resource, identifier):
    status = resource["status"]
    equal("the password is echoed to who may see it", (resource["spec"]["rootPassword"], status["password"]), (PASSWORD, PASSWORD))
    uri = urllib.parse.urlsplit(status["connectionUri"])
    equal("connectionUri parses back", (uri.scheme, uri.username, urllib.parse.unquote(uri.password or "")), ("valkey", "", PASSWORD))
    check("connectionUri leads to a node", f"{uri.hostname}:{uri.port}" in status["clusterEndpoints"], status["connectionUri"])
    seen = wire.get(f"valkey/{identifier}", token=make_token("read"))["resource"]
    equal("without secrets:read there is no password", (seen["spec"]["rootPassword"], seen["status"]["password"]), (None, None))
    equal("and none in the URI", seen["status"]["connectionUri"], f"valkey://{uri.hostname}:{uri.port}")
    encoded = urllib.parse.quote(PASSWORD, safe="")
    for path in ("events", "operations", "instances", f"valkey/{identifier}/placement"):
        text = wire.get(path).text
        check(f"{path} does not show it", "w0rd" not in text and encoded not in text, text[:200])


def spread(resource, identifier):
    hosts = {i["id"]: i["hostName"] for i in wire.get(f"instances?filter={identifier}").body["items"]}
    status = resource["status"]
    equal("every node is an instance on a host", sorted(hosts), sorted(n["id"] for n in status["nodes"]))
    apart = all(hosts[p["primaryInstanceId"]] not in [hosts[r] for r in p["replicaInstanceIds"]] for p in status["shards"])
    equal("antiAffinityOk is what the hosts say", status["antiAffinityOk"], apart)
    equal("with three hosts no primary shares one with its replica", apart, True)
    check("it has a message", bool(status["antiAffinityMessage"]), status)
    equal("with three hosts no host holds the majority", status["primarySpreadOk"], True)
    placement = wire.get(f"valkey/{identifier}/placement").body
    equal("each instance's place is explained", sorted(i["instanceId"] for i in placement["instances"]), sorted(hosts))


def unchangeable(resource, identifier):
    """Rules of an update that hold in every release; a refusal changes nothing."""
    before = wire.get(f"valkey/{identifier}")["resource"]
    for path, value in [
        ("valkeyVersion", "9.9.9"), ("vmOfferId", "g9-9c9-100"), ("volumeOfferId", "gp9-9"), ("volumeSizeGiB", 2), ("rootPassword", "another"), ("useFqdn", True),
        ("createPublicIpv4", True), ("replicasPerShard", 3), ("shards", resource["spec"]["shards"][:1]), ("shards", resource["spec"]["shards"][:2]),
        ("shards", resource["spec"]["shards"][:2] + [{"id": ulid(), "vpcSubnetId": Ground.subnet}]),
        ("shards", resource["spec"]["shards"] + [{"id": ulid(), "vpcSubnetId": Ground.subnet} for _ in range(2)]),
    ]:
        changed = copy.deepcopy(resource)
        changed["spec"][path] = value
        answer = wire.put("valkey", changed)
        check(f"an update of {path} is refused by its path", answer.status == 400 and answer.code == "BadData" and f"spec.{path}" in answer.message, repr(answer))
    both = copy.deepcopy(resource)
    both["spec"]["replicasPerShard"] = 2
    both["spec"]["shards"].append({"id": ulid(), "vpcSubnetId": Ground.subnet})
    answer = wire.put("valkey", both)
    check("shards and replicas at once are refused", answer.status == 400 and "spec.replicasPerShard" in answer.message, repr(answer))
    after = wire.get(f"valkey/{identifier}")["resource"]
    equal("refusals change nothing", {k: after[k] for k in ("metadata", "spec")} | after["status"]["lastChangeRequest"], {k: before[k] for k in ("metadata", "spec")} | before["status"]["lastChangeRequest"])


def stable(resource, identifier):
    def order():
        found = client.valkeys.read(identifier).resource
        return json.dumps([found["spec"], found["status"]["nodes"], found["status"]["shards"], found["status"]["clusterEndpoints"]])

    equal("two reads show the same in the same order", order(), order())
    before = client.valkeys.read(identifier).resource["status"]["lastChangeRequest"]
    again = client.valkeys.create_or_update(copy.deepcopy(resource))
    equal("an identical PUT succeeds at once", client.valkeys.read_request(again.requestId).succeeded, True)
    found = client.valkeys.read(identifier).resource
    equal("and changes nothing", (found["status"]["state"], found["status"]["lastChangeRequest"]), ("stable", before))
    resource["metadata"]["description"] = "described"
    change = client.valkeys.create_or_update(copy.deepcopy(resource))
    equal("metadata may change", client.valkeys.wait_request_satisfied(change.requestId, 30).succeeded, True)
    equal("and is read back", client.valkeys.read(identifier).resource["metadata"]["description"], "described")


def grown(resource, identifier):
    """A replica more for each shard, and back: the same cluster, with the members that it had (AWS-1)."""
    before = client.valkeys.read(identifier).resource["status"]["nodes"]
    for replicas in (2, 1):
        resource["spec"]["replicasPerShard"] = replicas
        change = client.valkeys.create_or_update(copy.deepcopy(resource))
        equal(f"replicasPerShard {replicas} is accepted as an update of the same", (change.errorCode, change.resourceId), (None, identifier))
        done = client.valkeys.wait_request_satisfied(change.requestId, 180)
        if not check(f"the change to {replicas} succeeds", done.succeeded, done):
            return
        found = client.valkeys.read(identifier).resource
        members(found, 3, replicas)
        kept = [n["nodeId"] for n in found["status"]["nodes"] if n["nodeId"] in [old["nodeId"] for old in before]]
        # Which replica goes is the planner's; primaries and with one more all others stay.
        check(f"with {replicas} the members from before stay", len(kept) >= (len(before) if replicas == 2 else 3), (before, found["status"]["nodes"]))


def end(resource, identifier):
    resource["metadata"]["deleteProtection"] = True
    client.valkeys.wait_request_satisfied(client.valkeys.create_or_update(resource).requestId, 30)
    equal("a protected cluster is not deleted", client.valkeys.delete(identifier).errorCode.name, "ResourceIsDeleteProtected")
    resource["metadata"]["deleteProtection"] = False
    client.valkeys.wait_request_satisfied(client.valkeys.create_or_update(resource).requestId, 30)
    answer = wire.delete(f"vpc-subnet/{Ground.subnet}")
    check("the subnet of a cluster is not deleted", answer.status == 400 and identifier in answer.message, repr(answer))
    gone = client.valkeys.delete(identifier, wait=True)
    equal("delete(wait=True) is accepted", gone.errorCode, None)
    equal("it is gone", client.valkeys.read(identifier).errorCode.name, "NotFound")
    equal("its request has succeeded", client.valkeys.read_request(gone.requestId).succeeded, True)
    left = until(30, lambda: not wire.get(f"instances?filter={identifier}").body["items"])
    check("no instance of it is left", left, wire.get(f"instances?filter={identifier}").body)


def single():
    """One shard without replicas, from a failed create that is corrected."""
    resource = cluster("single", shards=1, replicasPerShard=0, valkeyVersion="99.9.9", rootPassword=PASSWORD)
    failed = client.valkeys.create_or_update(resource)
    identifier = note("valkey", resource["metadata"]["id"])
    equal("a wrong version fails", client.valkeys.wait_request_satisfied(failed.requestId, 60).succeeded, False)
    resource["spec"]["valkeyVersion"] = Ground.versions[-1]
    corrected = client.valkeys.create_or_update(resource)
    equal("the corrected spec is accepted", corrected.errorCode, None)
    done = client.valkeys.wait_request_satisfied(corrected.requestId, 180)
    if check("and becomes a cluster of one", done.succeeded, done):
        found = client.valkeys.read(identifier).resource
        members(found, 1, 0)
        contains("its spread says what one shard means", found["status"]["primarySpreadMessage"], "one shard")
    client.valkeys.delete(identifier, wait=True)
    equal("it is gone again", client.valkeys.read(identifier).errorCode.name, "NotFound")


def interrupted():
    """Deleted while it is being made; and the same id made by several at once."""
    resource = cluster("interrupted", valkeyVersion=Ground.versions[-1])
    note("valkey", resource["metadata"]["id"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: wire.put("valkey", resource), range(8)))
    requests = {answer["requestId"] for answer in answers if answer.status == 200}
    refused = [answer for answer in answers if answer.status != 200 and answer.code != "ResourceIsScheduling"]
    equal("of eight equal creates at once one change is made", (len(requests), refused), (1, []))
    identifier = resource["metadata"]["id"]
    gone = client.valkeys.delete(identifier, wait=True)
    equal("a cluster can be deleted while it is being made", (gone.errorCode, client.valkeys.read(identifier).errorCode.name), (None, "NotFound"))
    equal("and leaves nothing", wire.get(f"instances?filter={identifier}").body["items"], [])
    poll = client.valkeys.read_request(requests.pop())
    check("the create's request has an end", poll.succeeded or poll.errorCode is not None, poll)
    answer = wire.put("valkey", resource)
    equal("its id can be used again", answer.status, 200)
    outcome = wait("valkey", answer["requestId"], 120)
    check("and becomes a cluster", outcome["succeeded"], repr(outcome))
    first, second = client.valkeys.delete(identifier), client.valkeys.delete(identifier)
    equal("a second delete meanwhile is told the same", (second.errorCode, second.requestId), (None, first.requestId))
    answer = wire.put("valkey", resource)
    equal("a PUT meanwhile is ResourceIsScheduling", answer.code, "ResourceIsScheduling")
    equal("the delete succeeds", client.valkeys.wait_request_satisfied(first.requestId, 60).succeeded, True)


def run():
    if not check("a host is Ready and has an image", bool(Ground.versions), "GET /api/v1/hosts shows none"):
        return
    resource = cluster("life", valkeyVersion=Ground.versions[-1], rootPassword=PASSWORD)
    started = time.monotonic()
    identifier = create(resource)
    print(f"      create to succeeded: {time.monotonic() - started:.1f} s", flush=True)
    found = client.valkeys.read(identifier).resource
    shape(found)
    members(found, 3, 1)
    secrets(found, identifier)
    spread(found, identifier)
    unchangeable(resource, identifier)
    stable(resource, identifier)
    grown(resource, identifier)
    end(resource, identifier)
    single()
    interrupted()
