"""PostgreSQL through the SDK. In: the ground. Out: what its users do before anything runs: a cluster and a parameter set are made, read, listed,
refused, changed and deleted. The cluster names a version that no image has, so that nothing is started."""

import wire
from checks import check, contains, equal
from ground import PATHS, RUN, Ground, client, envelope, note, remove

PATHS["PostgreSql"] = "postgresql"
PATHS["PostgreSqlParametersSet"] = "postgresql-parameters-set"


def cluster(**spec):
    resource = envelope("PostgreSql", "db", {}, folderId=Ground.folder)
    resource["spec"] = {
        "shardGroups": [{"name": "main", "vpcSubnetId": Ground.subnet}],
        "replicasPerShardGroup": 1,
        "version": "99",
        "backupRetentionDays": 7,
        "vmOfferId": Ground.vm_offer,
        "volumeOfferId": Ground.volume_offer,
        "volumeSizeGiB": 1,
        **spec,
    }
    return resource


def run():
    wanted = envelope("PostgreSqlParametersSet", "tuned", {"parameters": {"work_mem": "8MB"}}, folderId=Ground.folder)
    made = client.postgresql_parameters_sets.create_or_update(wanted)
    set_id = note("postgresql-parameters-set", made.resourceId)
    check("a parameter set is made", client.postgresql_parameters_sets.wait_request_satisfied(made.requestId, 30).succeeded, repr(made))

    resource = cluster(postgreSqlParametersSetId=set_id)
    created = client.postgresqls.create_or_update(resource)
    identifier = note("postgresql", created.resourceId)
    found = client.postgresqls.read(identifier).resource
    equal("a cluster is read as it was written", {k: found["spec"][k] for k in resource["spec"]}, resource["spec"])
    equal("what was left out has its default", (found["spec"]["tlsMode"], found["spec"]["createPublicIpv4"]), ("allow", False))
    equal("its port is there from the beginning", found["status"]["port"], 5432)
    check("the quorum is not in the spec", "quorum" not in str(found["spec"]).lower(), str(found["spec"]))
    listed = client.postgresqls.get_by_labels({"run": RUN})
    equal("it is listed", [r["metadata"]["id"] for r in listed.resources], [identifier])

    for name, change, path in (
        ("0 retention days", {"backupRetentionDays": 0}, "spec.backupRetentionDays"),
        ("a version with a dot", {"version": "17.2"}, "spec.version"),
        ("public access without TLS", {"createPublicIpv4": True}, "spec.tlsMode"),
        ("a name with an underscore", {"shardGroups": [{"name": "a_b", "vpcSubnetId": Ground.subnet}]}, "spec.shardGroups[0].name"),
        ("a password, which there is none of", {"rootPassword": "x"}, "spec.rootPassword"),
    ):
        answer = wire.put("postgresql", cluster(**change))
        equal(f"refused: {name}", (answer.status, answer.code), (400, "BadData"))
        contains(f"refused: {name}: where", answer.message, path)

    check("and deleted", remove("postgresql", identifier), "it is still there")
    check("the set with it", remove("postgresql-parameters-set", set_id), "it is still there")
    equal("nothing is left of it", client.postgresqls.read(identifier).errorCode.name, "NotFound")
