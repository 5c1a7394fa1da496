"""The root password: who sees it, and where it never stands. On a cluster whose version no image has: it is stored and nothing runs."""

import json

import wire
from checks import check, equal
from envelope import make_token
from ground import RUN, cluster, note

PASSWORD = "s3cret-needle \"'@:/?#%é"


def shown(identifier, *scopes):
    """spec.rootPassword, status.password and status.connectionUri as a token of these scopes reads them."""
    resource = wire.get(f"valkey/{identifier}", token=make_token(*scopes))["resource"]
    return resource["spec"]["rootPassword"], resource["status"]["password"], resource["status"]["connectionUri"]


def cli(*args, **more):
    return wire.call("POST", "/api/v1/cli", {"args": list(args), "retryParams": None, "editApply": None, **more})


def run():
    resource = cluster("secret", rootPassword=PASSWORD)
    answer = wire.put("valkey", resource)
    identifier = note("valkey", answer["resourceId"])
    equal("with secrets:read the password is shown", shown(identifier, "read", "secrets:read")[:2], (PASSWORD, PASSWORD))
    equal("without secrets:read it is null", shown(identifier, "read")[:2], (None, None))
    equal("operator alone does not show it", shown(identifier, "read", "operator", "write")[:2], (None, None))
    answer = wire.get(f"valkey/{identifier}", token=make_token("secrets:read"))
    equal("secrets:read alone does not read resources", (answer.status, answer.code), (403, "Unauthorized"))
    for text, where in [
        (wire.get(f"valkey/get-by-labels?labels[run]={RUN}").text, "a list"),
        (wire.get("events").text, "the events"),
        (wire.get("operations").text, "the operations"),
        (wire.get("instances").text, "the instances"),
        (wire.call("GET", "/metrics").text, "the metrics"),
        (cli("get", "valkey", identifier).text, "kc get"),
        (cli("get", "valkey", identifier, "-o", "wide").text, "kc get -o wide"),
        (cli("get", "valkey", identifier, "-o", "yaml").text, "kc get -o yaml"),
        (cli("get", "valkey", identifier, "-o", "json").text, "kc get -o json"),
        (cli("describe", "valkey", identifier).text, "kc describe"),
        (cli("edit", "valkey", identifier).text, "kc edit"),
    ]:
        check(f"{where} never shows the password, whatever the token", text and "s3cret-needle" not in text, text[:300])
    listed = [r for r in wire.get(f"valkey/get-by-labels?labels[run]={RUN}&maxPageSize=100")["resources"] if r["metadata"]["id"] == identifier]
    equal("in a list the three are null", [(r["spec"]["rootPassword"], r["status"]["password"]) for r in listed], [(None, None)])
    resource["spec"]["replicasPerShard"] = 9
    answer = wire.put("valkey", resource)
    check("an error text about another field does not show it", answer.status == 400 and "s3cret" not in answer.text, repr(answer))
    manifest = json.dumps({**resource, "metadata": {**resource["metadata"], "colour": "red"}})
    answer = cli("apply", "-f", "x", fileContent=manifest)
    check("kc apply's refusal does not show it", answer["rc"] == 1 and "s3cret" not in answer.text, repr(answer))
