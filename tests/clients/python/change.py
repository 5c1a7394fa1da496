"""Changes: the no-op, protection, what is in use, a version that no image has, and what an update may not touch."""

import json
import time

import wire
from checks import check, contains, equal
from ground import Ground, client, cluster, envelope, make, note, remove, ulid, wait


def no_op():
    folder = envelope("Folder", "no-op", {}, description="first")
    raw = json.dumps(folder).encode()
    first = wire.call("PUT", "/api/v1/folder", raw=raw)
    note("folder", first["resourceId"])
    check("the create succeeds", wait("folder", first["requestId"], 30)["succeeded"])
    before = wire.get(f"folder/{first['resourceId']}").text
    again = wire.call("PUT", "/api/v1/folder", raw=raw, content_type="application/json-patch+json")
    equal("a byte-identical PUT is a success", (again.status, again.code, again["resourceId"]), (200, None, first["resourceId"]))
    equal("its request has succeeded", wire.get(f"folder/request/{again['requestId']}")["succeeded"], True)
    equal("it changes nothing, the last change request included", wire.get(f"folder/{first['resourceId']}").text, before)
    folder["metadata"]["description"] = "second"
    change = wire.put("folder", folder)
    check("an update succeeds", wait("folder", change["requestId"], 30)["succeeded"])
    check("an update has a request of its own", change["requestId"] != first["requestId"])
    equal("and is read back", wire.get(f"folder/{first['resourceId']}")["resource"]["metadata"]["description"], "second")
    folder["metadata"]["description"] = None
    wait("folder", wire.put("folder", folder)["requestId"], 30)
    equal("a description can be taken away", wire.get(f"folder/{first['resourceId']}")["resource"]["metadata"]["description"], None)
    answer = wire.get(f"vpc/request/{change['requestId']}")
    equal("a request is found under its own type only", (answer.status, answer.code), (422, "NotFound"))


def protection():
    folder = envelope("Folder", "protected", {}, deleteProtection=True)
    identifier = make(folder)
    answer = wire.delete(f"folder/{identifier}")
    equal("DELETE of what is protected", (answer.status, answer.code), (422, "ResourceIsDeleteProtected"))
    contains("its text says what to do", answer.message, "deleteProtection")
    equal("and it is still there", wire.get(f"folder/{identifier}").status, 200)
    folder["metadata"]["deleteProtection"] = False
    wait("folder", wire.put("folder", folder)["requestId"], 30)
    gone = client.folders.delete(identifier, wait=True)
    equal("without protection it can be deleted", gone.errorCode, None)
    equal("and is gone", client.folders.read(identifier).errorCode.name, "NotFound")
    equal("a second DELETE is NotFound", client.folders.delete(identifier).errorCode.name, "NotFound")
    poll = client.folders.read_request(gone.requestId)
    equal("the delete's request has succeeded", (poll.succeeded, poll.scheduledResourceId), (True, identifier))


def in_use():
    for kind, path, identifier in [("folder", "folder", Ground.folder), ("VPC", "vpc", Ground.vpc)]:
        answer = wire.delete(f"{path}/{identifier}")
        equal(f"DELETE of a {kind} in use", (answer.status, answer.code), (400, "BadData"))
    for path, changed in [("vpcId", ulid()), ("ipv4Cidr", "10.99.0.0/24")]:
        subnet = wire.get(f"vpc-subnet/{Ground.subnet}")["resource"]
        subnet["spec"][path] = changed
        answer = wire.put("vpc-subnet", subnet)
        check(f"a subnet's {path} cannot change", answer.status == 400 and f"spec.{path}" in answer.message, repr(answer))
    overlap = envelope("VpcSubnet", "overlap", {"vpcId": Ground.vpc, "ipv4Cidr": "10.71.0.128/25"})
    answer = wire.put("vpc-subnet", overlap)
    check("an overlapping subnet of the same VPC is refused", answer.status == 400 and "spec.ipv4Cidr" in answer.message, repr(answer))


def unknown_version():
    """Accepted, then failed: seeds-valkey.md leaves the version to whoever runs it."""
    resource = cluster("no such version", valkeyVersion="99.9.9")
    created = client.valkeys.create_or_update(resource)
    identifier = note("valkey", resource["metadata"]["id"])
    equal("a version that no image has is accepted at submit", created.errorCode, None)
    poll = client.valkeys.wait_request_satisfied(created.requestId, 60)
    equal("its request fails", (poll.succeeded, poll.errorCode and poll.errorCode.name), (False, "UnableToReconcile"))
    contains("the text names the version and those of the image", poll.errorMessage, "99.9.9", *Ground.versions)
    raw = wire.get(f"valkey/request/{created.requestId}")
    equal("the poll's status is one that clients handle", raw.status in wire.STATUSES, True)
    found = client.valkeys.read(identifier).resource
    equal("its state", found["status"]["state"], "schedulingfailed")
    equal("its last change request's state", found["status"]["lastChangeRequest"]["state"], "schedulingfailed")
    contains("its last change request's text", found["status"]["lastChangeRequest"]["errorMessage"], "99.9.9")
    time_of_failure = found["status"]["lastChangeRequest"]["createTime"]
    equal("nothing of it runs", wire.get(f"instances?filter={identifier}").body["items"], [])
    equal("nothing of it is worked on", [o for o in wire.get(f"operations?filter={identifier}").body["items"] if o["phase"] == "running"], [])
    equal("no node is shown", found["status"]["nodes"], [])
    equal("the events say so", identifier in wire.get("events").text or "99.9.9" in wire.get("events").text, True)
    time.sleep(1.1)
    again = client.valkeys.create_or_update(resource)
    poll = client.valkeys.wait_request_satisfied(again.requestId, 60)
    equal("the same again is tried again, and fails again", poll.errorCode and poll.errorCode.name, "UnableToReconcile")
    found = client.valkeys.read(identifier).resource
    check("as a change of its own", found["status"]["lastChangeRequest"]["createTime"] != time_of_failure, found["status"]["lastChangeRequest"])
    check("what failed can be deleted", remove("valkey", identifier), wire.get(f"valkey/{identifier}"))


def shared_profile():
    profile = envelope("ValkeyParametersSet", "shared", {"parameters": {"maxmemory-policy": "allkeys-lru"}})
    identifier = make(profile)
    user = cluster("uses the set", parametersSetId=identifier)
    wire.put("valkey", user)
    note("valkey", user["metadata"]["id"])
    answer = wire.delete(f"valkey-parameters-set/{identifier}")
    check("DELETE of a set in use is refused and names the user", answer.status == 400 and user["metadata"]["id"] in answer.message, repr(answer))
    check("its user can go", remove("valkey", user["metadata"]["id"]), "")
    check("then the set can go", remove("valkey-parameters-set", identifier), "")


def run():
    for part in (no_op, protection, in_use, unknown_version, shared_profile):
        part()
