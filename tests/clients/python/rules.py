"""Every rule of seeds-valkey.md for create. A spec that is accepted names a version that no image has, so that nothing is started; one
that is refused must name the path of the field, and change nothing."""

import wire
from checks import check, contains, equal
from ground import Ground, cluster, envelope, make, note, remove, replaced, ulid, without


def refused(name, resource, *parts, code="BadData"):
    answer = wire.put("valkey", resource)
    if not check(f"refused: {name}", answer.status == 400 and answer.code == code, repr(answer)):
        note("valkey", resource["metadata"].get("id") or answer["resourceId"] or "none")
        return answer
    contains(f"refused: {name}: the text says where and why", answer.message, *parts)
    return answer


def accepted(name, resource):
    """Accepted at submit; answers the resource as it is stored."""
    answer = wire.put("valkey", resource)
    if not check(f"accepted: {name}", answer.status == 200, repr(answer)):
        return None
    identifier = note("valkey", answer["resourceId"])
    stored = wire.get(f"valkey/{identifier}")["resource"]
    check(f"accepted: {name}: and deleted again", remove("valkey", identifier), "it is still there")
    return stored


def counts():
    refused("0 shards", cluster(shards=0), "spec.shards")
    refused("no shards", without(cluster(), "spec", "shards"), "spec.shards")
    refused("null for shards", replaced(cluster(), None, "spec", "shards"), "spec.shards")
    refused("2 shards", cluster(shards=2), "spec.shards", "2", "3")
    refused("2 shards without replicas", cluster(shards=2, replicasPerShard=0), "spec.shards")
    for shards in (1, 3, 4):
        stored = accepted(f"{shards} shards", cluster(shards=shards))
        equal(f"{shards} shards are stored", len(stored["spec"]["shards"]) if stored else 0, shards)
    refused("10 000 shards", cluster(shards=10_000), "spec.shards", "10000")
    for replicas in (-1, 6, 7, 1_000_000, -(2**31), 2**31, 2**63, 10**30):
        refused(f"{replicas} replicas", cluster(replicasPerShard=replicas), "spec.replicasPerShard", str(replicas)[:12])
    for replicas in (0, 5):
        stored = accepted(f"{replicas} replicas", cluster(replicasPerShard=replicas))
        equal(f"{replicas} replicas are stored", stored and stored["spec"]["replicasPerShard"], replicas)
    for value in (1.5, "1", True, [], {}):
        refused(f"{value!r} for the replicas", cluster(replicasPerShard=value), "spec.replicasPerShard")
    for size in (0, -1, 2**31 - 1, 2**31, 10**30, Ground.largest_volume + 1):
        refused(f"a volume of {size} GiB", cluster(volumeSizeGiB=size), "spec.volumeSizeGiB", str(size)[:12])
    for value in ("1", 0.5, None):
        refused(f"a volume of {value!r}", cluster(volumeSizeGiB=value), "spec.volumeSizeGiB")
    stored = accepted("the largest volume", cluster(volumeSizeGiB=Ground.largest_volume))
    equal("the largest volume is stored", stored and stored["spec"]["volumeSizeGiB"], Ground.largest_volume)


def required():
    for field in ("shards", "replicasPerShard", "rootPassword", "valkeyVersion", "vmOfferId", "volumeOfferId", "volumeSizeGiB"):
        refused(f"without {field}", without(cluster(), "spec", field), f"spec.{field}")
        refused(f"with null for {field}", replaced(cluster(), None, "spec", field), f"spec.{field}")
    for field in ("valkeyVersion", "vmOfferId", "volumeOfferId"):
        refused(f"with an empty {field}", cluster(**{field: ""}), f"spec.{field}")
        refused(f"with a {field} of 33 bytes", cluster(**{field: "x" * 33}), f"spec.{field}")
        refused(f"with a number as {field}", cluster(**{field: 8}), f"spec.{field}")
    for field in ("id", "vpcSubnetId"):
        refused(f"a shard without {field}", without(cluster(), "spec", "shards", 1, field), f"spec.shards[1].{field}")
        refused(f"a shard with null for {field}", replaced(cluster(), None, "spec", "shards", 2, field), f"spec.shards[2].{field}")
    refused("without metadata.id", without(cluster(), "metadata", "id"), "metadata.id", code="MissingIdField")
    refused("without metadata.name", without(cluster(), "metadata", "name"), "metadata.name", code="MissingNameField")
    refused("without a spec", without(cluster(), "spec"), *[f"spec.{field}" for field in ("shards", "replicasPerShard", "rootPassword", "valkeyVersion", "vmOfferId", "volumeOfferId", "volumeSizeGiB")])
    for field in ("parametersSetId", "useFqdn", "createPublicIpv4"):
        stored = accepted(f"null for the optional {field}", cluster(**{field: None}))
        equal(f"the default of {field}", stored and stored["spec"][field], None if field == "parametersSetId" else False)
    for field in ("useFqdn", "createPublicIpv4"):
        refused(f"a text for {field}", cluster(**{field: "true"}), f"spec.{field}")


def ids():
    for bad in ("x", "", "7ZZZZZZZZZZZZZZZZZZZZZZZZZZ", "8" + "0" * 25, "u" * 26, "0" * 25, "0" * 27, "é" * 13, " " + ulid()[1:], 7, [], "0" * 26):
        where = replaced(cluster(), bad, "spec", "shards", 0, "id")
        refused(f"{bad!r} as a shard's id", where, "spec.shards[0].id")
        where = replaced(cluster(), bad, "spec", "shards", 1, "vpcSubnetId")
        refused(f"{bad!r} as a subnet's id", where, "spec.shards[1].vpcSubnetId")
    for bad in ("x", "0" * 25, 7):
        refused(f"{bad!r} as metadata.id", replaced(cluster(), bad, "metadata", "id"), "metadata.id")
        refused(f"{bad!r} as the parameters set", cluster(parametersSetId=bad), "spec.parametersSetId")
    twice = cluster()
    twice["spec"]["shards"][2]["id"] = twice["spec"]["shards"][0]["id"].upper()
    refused("a shard's id given twice, in another case", twice, "spec.shards[2].id", "twice")
    upper = cluster()
    for shard in upper["spec"]["shards"]:
        shard.update({name: value.upper() for name, value in shard.items()})
    wanted = [{name: value.lower() for name, value in shard.items()} for shard in upper["spec"]["shards"]]
    stored = accepted("upper-case ULIDs", upper)
    equal("upper-case ULIDs are stored in lower case", stored and stored["spec"]["shards"], wanted)


def references():
    subnet = ulid()
    refused("an unknown subnet", replaced(cluster(), subnet, "spec", "shards", 1, "vpcSubnetId"), "spec.shards[1].vpcSubnetId", subnet)
    refused("a VPC as a subnet", replaced(cluster(), Ground.vpc, "spec", "shards", 0, "vpcSubnetId"), "spec.shards[0].vpcSubnetId")
    refused("subnets of two VPCs", replaced(cluster(), Ground.other_subnet, "spec", "shards", 2, "vpcSubnetId"), "spec.shards[2].vpcSubnetId", "VPC")
    unknown = ulid()
    refused("an unknown parameters set", cluster(parametersSetId=unknown), "spec.parametersSetId", unknown)
    refused("a folder as the parameters set", cluster(parametersSetId=Ground.folder), "spec.parametersSetId")
    refused("an unknown folder", replaced(cluster(), unknown, "metadata", "folderId"), "metadata.folderId", unknown)
    refused("an unknown compute offer", cluster(vmOfferId="g9-9c9-100"), "spec.vmOfferId", "g9-9c9-100", Ground.vm_offer)
    refused("an unknown disk offer", cluster(volumeOfferId="gp9-9"), "spec.volumeOfferId", "gp9-9", Ground.volume_offer)
    profile = make(envelope("ValkeyParametersSet", "rules", {"parameters": {"maxmemory-policy": "allkeys-lru"}}))
    stored = accepted("a parameters set", cluster(parametersSetId=profile))
    equal("the parameters set is stored", stored and stored["spec"]["parametersSetId"], profile)
    for name, value in [("port", "1"), ("requirepass", "x"), ("nonsense", "1"), ("maxmemory-policy", "nonsense"), ("hz", "-5"), ("", "x")]:
        answer = wire.put("valkey-parameters-set", envelope("ValkeyParametersSet", "bad", {"parameters": {name: value}}))
        check(f"refused: the parameter {name}={value}", answer.status == 400 and answer.code == "BadData" and "spec.parameters" in answer.message, repr(answer))
    for cidr in ("", "x", "10.0.0.0", "10.0.0.1/24", "10.0.0.0/33", "10.0.0.0/8 ", "::/64", "10.71.0.0/25", "10.0.0.0/-1", 5):
        answer = wire.put("vpc-subnet", envelope("VpcSubnet", "bad", {"vpcId": Ground.vpc, "ipv4Cidr": cidr}))
        check(f"refused: the range {cidr!r}", answer.status == 400 and "spec.ipv4Cidr" in answer.message, repr(answer))
    answer = wire.put("vpc", envelope("Vpc", "bad", {"hostingProviderId": ulid()}))
    check("refused: an unknown hosting provider", answer.status == 400 and "spec.hostingProviderId" in answer.message, repr(answer))


def unknown_fields():
    for path, text in [
        (("spec", "shardCount"), "spec.shardCount"), (("spec", "shards", 1, "weight"), "spec.shards[1].weight"), (("metadata", "colour"), "metadata.colour"),
        (("spec", "replicas_per_shard"), "spec.replicas_per_shard"), (("spec", "volumeSizeGib"), "spec.volumeSizeGib"), (("spec", "shards", 0, "a.b"), "spec.shards[0]"),
    ]:
        resource = cluster()
        refused(f"the unknown field {text}", replaced(resource, 1, *path), text)
    refused("several unknown fields", replaced(replaced(cluster(), 1, "spec", "one"), 2, "metadata", "two"), "spec.one", "metadata.two")


def passwords():
    for name, password in [
        ("quotes", "a\"b'c`d\\e"), ("spaces", "  a b  c "), ("the characters of a URL", "@:/?#%&=+[]"), ("percent codes", "%41%zz%"),
        ("UTF-8", "pässwörd-密码-🔑"), ("a comment's sign", "# not a comment"), ("1 byte", "x"), ("512 bytes", "x" * 512), ("512 bytes of UTF-8", "é" * 256),
        ("a dollar", "$HOME ${x} $(id)"), ("the word null", "null"), ("a number in quotes", "12345"),
    ]:
        stored = accepted(f"a password with {name}", cluster(rootPassword=password))
        equal(f"a password with {name} is stored as it was given", stored and stored["spec"]["rootPassword"], password)
    for name, password, *parts in [
        ("nothing in it", ""), ("a newline", "hunter2\nx"), ("a carriage return", "hunter2\r"), ("a NUL", "hunter2\x00"), ("a tab", "hunter2\t"),
        ("a delete character", "hunter2\x7f"), ("513 bytes", "hunter2" + "y" * 506, "513"), ("514 bytes of UTF-8", "hunter2" + "é" * 253 + "x", "514"),
    ]:
        answer = refused(f"a password with {name}", cluster(rootPassword=password), "spec.rootPassword", *parts)
        check(f"a password with {name} is not repeated in the text", "hunter2" not in answer.message, answer.message)
    for value in (123456789, ["hunter2"], {"hunter2": 1}, True):
        answer = refused(f"{type(value).__name__} as a password", cluster(rootPassword=value), "spec.rootPassword")
        check(f"{type(value).__name__} as a password is not repeated in the text", "hunter2" not in answer.message and "123456789" not in answer.message, answer.message)


def several():
    resource = cluster(
        shards=2, replicasPerShard=6, rootPassword="", vmOfferId="g9-9c9-100", volumeOfferId="gp9-9", volumeSizeGiB=0, parametersSetId=ulid(), shardCount=2,
    )
    resource["spec"]["shards"][1]["vpcSubnetId"] = ulid()
    resource["spec"]["shards"][0]["id"] = "x"
    resource["metadata"]["folderId"] = ulid()
    refused(
        "ten things at once", resource, "spec.shards", "spec.shards[0].id", "spec.shards[1].vpcSubnetId", "spec.replicasPerShard", "spec.rootPassword",
        "spec.vmOfferId", "spec.volumeOfferId", "spec.volumeSizeGiB", "spec.parametersSetId", "spec.shardCount", "metadata.folderId",
    )
    answer = wire.get(f"valkey/{resource['metadata']['id']}")
    equal("a refused create leaves nothing", answer.code, "NotFound")


def run():
    for part in (counts, required, ids, references, unknown_fields, passwords, several):
        part()
