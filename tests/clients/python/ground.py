"""What the sections stand on: a folder, a VPC, a subnet, offers of the catalogue, and the specs made from them. Everything that is made
through here is removed at the end, the newest first."""

import copy
import time

import kc_api
from ulid import ULID

import wire

made = []

client = kc_api.KcClient(wire.TOKEN, api_url=f"{wire.URL.scheme}://{wire.URL.netloc}")
RUN = ULID().generate().lower()


def ulid():
    return ULID().generate().lower()


def envelope(kind, name, spec, **metadata):
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"id": ulid(), "name": name, "labels": {"run": RUN}, **metadata},
        "spec": spec,
    }


PATHS = {
    "Folder": "folder",
    "HostingProvider": "hosting-provider",
    "Vpc": "vpc",
    "VpcSubnet": "vpc-subnet",
    "ValkeyParametersSet": "valkey-parameters-set",
    "Valkey": "valkey",
}


def note(kind, identifier):
    """Remembers what has to be removed."""
    made.append((PATHS.get(kind, kind), identifier.lower()))
    return identifier.lower()


def make(resource):
    """Creates a resource that is ready at once; answers its id."""
    path = PATHS[resource["kind"]]
    answer = wire.put(path, resource)
    if answer.status != 200:
        raise RuntimeError(f"PUT {path}: {answer!r}")
    note(path, resource["metadata"]["id"])
    outcome = wait(path, answer["requestId"], 30)
    if not outcome["succeeded"]:
        raise RuntimeError(f"PUT {path} did not succeed: {outcome!r}")
    return answer["resourceId"]


def wait(path, request, seconds):
    """Polls until the change is over or the time is."""
    deadline = time.monotonic() + seconds
    while True:
        answer = wire.get(f"{path}/request/{request}")
        if answer["succeeded"] or answer.code or time.monotonic() > deadline:
            return answer
        time.sleep(0.1)


class Ground:
    """Made once, by `lay`."""

    folder = vpc = subnet = other_subnet = None
    vm_offer = volume_offer = None
    largest_volume = 0
    versions = []


def lay():
    catalogue = wire.get("catalogue").body
    Ground.vm_offer = min(catalogue["vmOffers"], key=lambda o: (o["memoryMib"], o["vcpus"] * o["vcpuShare"]))["id"]
    volume = min(catalogue["volumeOffers"], key=lambda o: o["iops"])
    Ground.volume_offer, Ground.largest_volume = volume["id"], volume["maxSizeGiB"]
    hosts = wire.get("hosts").body["items"]
    Ground.versions = sorted({i["version"] for h in hosts if h["state"] == "Ready" for i in h["images"] if i["engine"] == "valkey"})
    Ground.folder = make(envelope("Folder", "clients", {}))
    Ground.vpc = make(envelope("Vpc", "clients", {}, folderId=Ground.folder))
    subnet = {"vpcId": Ground.vpc, "ipv4Cidr": "10.71.0.0/24"}
    Ground.subnet = make(envelope("VpcSubnet", "clients", subnet, folderId=Ground.folder))
    other = make(envelope("Vpc", "clients-other", {}, folderId=Ground.folder))
    subnet = {"vpcId": other, "ipv4Cidr": "10.71.0.0/24"}
    Ground.other_subnet = make(envelope("VpcSubnet", "clients-other", subnet, folderId=Ground.folder))


def cluster(name="rules", shards=3, **spec):
    """A whole and good cluster, but for its version: it is accepted, and then fails before anything runs."""
    resource = envelope("Valkey", name, {}, folderId=Ground.folder)
    resource["spec"] = {
        "shards": [{"id": ulid(), "vpcSubnetId": Ground.subnet} for _ in range(shards)],
        "replicasPerShard": 1,
        "rootPassword": "correct horse battery staple",
        "valkeyVersion": "0.0.0",
        "vmOfferId": Ground.vm_offer,
        "volumeOfferId": Ground.volume_offer,
        "volumeSizeGiB": 1,
        **spec,
    }
    return resource


def without(resource, *path):
    """A copy without the member at the path."""
    changed = copy.deepcopy(resource)
    inner = changed
    for part in path[:-1]:
        inner = inner[part]
    del inner[path[-1]]
    return changed


def replaced(resource, value, *path):
    """A copy with another value at the path."""
    changed = copy.deepcopy(resource)
    inner = changed
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return changed


def remove(path, identifier, seconds=120):
    """Deletes and waits; answers whether it is gone."""
    answer = wire.delete(f"{path}/{identifier}")
    if answer.status == 200:
        wait(path, answer["requestId"], seconds)
    return wire.get(f"{path}/{identifier}").code == "NotFound"


def clear():
    """Removes all that was made; answers what is left."""
    left = []
    for path, identifier in reversed(made):
        if not remove(path, identifier):
            left.append(f"{path}/{identifier}")
    made.clear()
    return left
