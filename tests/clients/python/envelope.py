"""Envelopes, statuses and error codes of every route, for what a client can send: unknown paths, bad ids, bad bodies, bad tokens."""

import json

import wire
from checks import check, contains, equal
from ground import Ground, PATHS, client, envelope, make, ulid

# What no id and no request can be; each goes into the path of a route.
ODD = ["x", "0", "%00", "%ff", "%2e%2e", "..%2f..", "a%20b", "%F0%9F%92%A9", "null", "-1", "7ZZZZZZZZZZZZZZZZZZZZZZZZZZ", "8" + "0" * 25, "i" * 4000, "%zz", "a%2Fb", "'%22%3B--"]


def refused(name, answer, status, code, *parts):
    check(name, answer.status == status and answer.code == code, repr(answer))
    if parts:
        contains(f"{name}: the text says why", answer.message, *parts)


def unknown_paths():
    for method, path in [
        ("GET", "/"), ("GET", "/api"), ("GET", "/api/v1"), ("GET", "/api/v1/"), ("GET", "/api/v2/vpc/x"), ("GET", "/index.html"),
        ("GET", "/api/v1/nothing"), ("PUT", "/api/v1/nothing"), ("GET", f"/api/v1/nothing/{ulid()}"), ("DELETE", f"/api/v1/nothing/{ulid()}"),
        ("GET", "/api/v1/nothing/get-by-labels"), ("GET", f"/api/v1/nothing/request/{ulid()}"), ("GET", "/api/v1/vpc/a/b/c"),
        ("PUT", "/api/v1//"), ("GET", "//"), ("GET", "/api/v1/vpc//"), ("DELETE", "/api/v1/vpc/"), ("DELETE", "/api/v1/"),
    ]:
        answer = wire.call(method, path, {} if method == "PUT" else None)
        check(f"{method} {path} is 422 or 400 and JSON", answer.status in (400, 422) and answer.body is not None and answer.message, repr(answer))
    for method in ("POST", "PATCH", "OPTIONS", "TRACE", "PUT", "DELETE", "BREW"):
        answer = wire.call(method, "/api/v1/vpc/get-by-labels" if method in ("PUT", "BREW") else "/api/v1/vpc", None)
        check(f"{method} where it is not possible is a JSON refusal", answer.status in (400, 422) and answer.body is not None, repr(answer))


def odd_ids():
    for path in PATHS.values():
        for route, method in [(f"{path}/%s", "GET"), (f"{path}/%s", "DELETE"), (f"{path}/request/%s", "GET")]:
            bad = []
            for odd in ODD:
                answer = wire.call(method, "/api/v1/" + route % odd)
                if answer.status not in (400, 422) or answer.code not in ("NotFound", "BadData"):
                    bad.append((odd[:40], answer))
            equal(f"{method} {route % '<id>'} with {len(ODD)} odd ids is NotFound or BadData", bad, [])
        refused(f"GET {path} of an unknown id", wire.get(f"{path}/{ulid()}"), 422, "NotFound")
        refused(f"DELETE {path} of an unknown id", wire.delete(f"{path}/{ulid()}"), 422, "NotFound")
        refused(f"poll of an unknown {path} request", wire.get(f"{path}/request/{ulid()}"), 422, "NotFound")
    refused("GET of a VPC as a subnet", wire.get(f"vpc-subnet/{Ground.vpc}"), 422, "NotFound")
    refused("DELETE of a VPC as a folder", wire.delete(f"folder/{Ground.vpc}"), 422, "NotFound")


def bodies():
    folder = envelope("Folder", "bodies", {})
    whole = json.dumps(folder).encode()
    for name, raw in [
        ("nothing", b""), ("blanks", b" \n"), ("half", whole[:-3]), ("more behind", whole + b"x"), ("a list", b"[]"), ("null", b"null"),
        ("a text", b'"x"'), ("a number", b"1e999"), ("no UTF-8", b'{"metadata":{"name":"\xff\xfe"}}'), ("HTML", b"<html></html>"),
        ("nested 100 000 deep", b"[" * 100_000), ("objects 100 000 deep", b'{"a":' * 100_000), ("a lone surrogate", b'{"metadata":{"name":"\\ud800"}}'),
        ("a form", b"metadata[name]=x"), ("a NUL", b"\x00"), ("a byte order mark alone", b"\xef\xbb\xbf"), ("NaN", b'{"spec":NaN}'),
    ]:
        answer = wire.call("PUT", "/api/v1/folder", raw=raw)
        refused(f"a body that is {name}", answer, 400, "BadData")
    answer = wire.call("PUT", "/api/v1/folder", raw=b'{"metadata":{"name":"' + b"x" * 3_000_000 + b'"}}')
    refused("a body of 3 MB", answer, 400, "BadData")
    answer = wire.call("PUT", "/api/v1/folder", folder, content_type="text/plain")
    refused("a body announced as text/plain", answer, 400, "BadData", "application/json")
    for content_type in ("application/json", "application/json-patch+json", "application/json; charset=utf-8", "APPLICATION/JSON", None):
        folder = envelope("Folder", "content type", {})
        answer = wire.call("PUT", "/api/v1/folder", folder, content_type=content_type)
        if equal(f"a body announced as {content_type} is accepted", answer.status, 200):
            wire.delete(f"folder/{folder['metadata']['id']}")


def fields():
    good = envelope("Folder", "fields", {})
    refused("PUT without metadata.id", wire.put("folder", {"metadata": {"name": "x"}}), 400, "MissingIdField", "metadata.id")
    refused("PUT with an empty id", wire.put("folder", {"metadata": {"name": "x", "id": ""}}), 400, "MissingIdField")
    refused("PUT with a null id", wire.put("folder", {"metadata": {"name": "x", "id": None}}), 400, "MissingIdField")
    refused("PUT of {}", wire.put("folder", {}), 400, "MissingIdField")
    refused("PUT without a name", wire.put("folder", {"metadata": {"id": ulid()}}), 400, "MissingNameField", "metadata.name")
    refused("PUT with an empty name", wire.put("folder", {"metadata": {"id": ulid(), "name": ""}}), 400, "MissingNameField")
    refused("PUT with a name of blanks", wire.put("folder", {"metadata": {"id": ulid(), "name": "  "}}), 400, "MissingNameField")
    for where, value, path in [
        (("metadata", "id"), "x", "metadata.id"), (("metadata", "id"), 5, "metadata.id"), (("metadata", "name"), 5, "metadata.name"),
        (("metadata", "name"), "a\nb", "metadata.name"), (("metadata", "name"), "x" * 300, "metadata.name"),
        (("metadata", "labels"), [], "metadata.labels"), (("metadata", "labels"), {"a": 1}, "metadata.labels.a"),
        (("metadata", "labels"), {"a": "x*"}, "metadata.labels.a"), (("metadata", "folderId"), ulid(), "metadata.folderId"),
        (("metadata", "folderId"), "x", "metadata.folderId"), (("metadata", "deleteProtection"), "yes", "metadata.deleteProtection"),
        (("metadata", "colour"), "red", "metadata.colour"), (("spec", "colour"), "red", "spec.colour"), (("colour",), "red", "colour"),
        (("kind",), "Vpc", "kind"), (("apiVersion",), "v2", "apiVersion"), (("metadata",), [], "metadata"), (("spec",), "x", "spec"),
        (("metadata", "id"), Ground.vpc, "metadata.id"),
    ]:
        body = json.loads(json.dumps(good))
        inner = body
        for part in where[:-1]:
            inner = inner[part]
        inner[where[-1]] = value
        answer = wire.put("folder", body)
        check(f"{'.'.join(where)} = {str(value)[:20]!r} is refused", answer.status == 400 and answer.code == "BadData", repr(answer))
        contains(f"{'.'.join(where)} = {str(value)[:20]!r} is refused by its path", answer.message, path)
    body = {**good, "status": {"state": "nonsense", "extra": 1}}
    equal("status in a request is ignored", wire.put("folder", body).status, 200)
    stored = wire.get(f"folder/{good['metadata']['id']}")
    equal("and does not change the status", stored["resource"]["status"]["state"], "stable")
    wire.delete(f"folder/{good['metadata']['id']}")
    flat = {"id": ulid(), "metadata": {"name": "flat", "description": None, "labels": None, "folderId": None, "deleteProtection": None}, "spec": None, "status": None}
    answer = wire.put("folder", flat)
    equal("a top-level id counts, and null is absent", (answer.status, answer["resourceId"]), (200, flat["id"]))
    wire.delete(f"folder/{flat['id']}")


def upper_case():
    folder = envelope("Folder", "upper case", {})
    lower = folder["metadata"]["id"]
    folder["metadata"]["id"] = lower.upper()
    answer = wire.put("folder", folder)
    equal("an upper-case ULID is answered in lower case", (answer.status, answer["resourceId"]), (200, lower))
    equal("the request id is in lower case", answer["requestId"], (answer["requestId"] or "").lower())
    found = wire.get(f"folder/{lower.upper()}")
    equal("GET takes either case and stores lower case", found["resource"]["metadata"]["id"], lower)
    equal("a poll takes either case", wire.get(f"folder/request/{answer['requestId'].upper()}").status, 200)
    vpc = envelope("Vpc", "upper case", {}, folderId=lower.upper())
    make(vpc)
    found = wire.get(f"vpc/{vpc['metadata']['id']}")
    equal("references are stored in lower case", found["resource"]["metadata"]["folderId"], lower)
    answer = wire.delete(f"folder/{lower.upper()}")
    refused("DELETE of what is in use", answer, 400, "BadData", "upper case", vpc["metadata"]["id"])
    equal("DELETE takes either case", wire.delete(f"vpc/{vpc['metadata']['id'].upper()}").status, 200)
    equal("DELETE of what is not in use any more", wire.delete(f"folder/{lower}")["resourceId"], lower)


def tokens():
    for path in ("vpc", f"vpc/{ulid()}", "vpc/get-by-labels", f"vpc/request/{ulid()}"):
        method = "PUT" if path == "vpc" else "GET"
        for name, token in [("no token", None), ("an unknown token", "x" * 40), ("an odd token", "a b\u00e9 \""), ("an empty token", "")]:
            refused(f"{method} {path.split('/01')[0]} with {name}", wire.call(method, "/api/v1/" + path, {} if method == "PUT" else None, token=token), 401, "Unauthorized")
    refused("DELETE without a token", wire.delete(f"vpc/{ulid()}", token=None), 401, "Unauthorized")
    known = make_token("read")
    refused("PUT with a token that may only read", wire.put("folder", envelope("Folder", "x", {}), token=known), 403, "Unauthorized", "write")
    refused("DELETE with a token that may only read", wire.delete(f"vpc/{Ground.vpc}", token=known), 403, "Unauthorized", "write")
    equal("GET with a token that may read", wire.get(f"vpc/{Ground.vpc}", token=known).status, 200)
    refused("hosts with a token that may only read", wire.get("hosts", token=known), 403, "Unauthorized", "operator")
    refused("a token with a token that may only read", wire.call("POST", "/api/v1/tokens", {"name": "x", "scopes": ["read"]}, token=known), 403, "Unauthorized")
    writer = make_token("write")
    refused("GET with a token that may only write", wire.get(f"vpc/{Ground.vpc}", token=writer), 403, "Unauthorized", "read")
    refused("list with a token that may only write", wire.get("vpc/get-by-labels", token=writer), 403, "Unauthorized", "read")
    folder = envelope("Folder", "written", {})
    answer = wire.put("folder", folder, token=writer)
    equal("PUT with a token that may write", answer.status, 200)
    equal("who may change may poll", wire.get(f"folder/request/{answer['requestId']}", token=writer).status, 200)
    equal("DELETE with a token that may write", wire.delete(f"folder/{folder['metadata']['id']}", token=writer).status, 200)
    for body in ({}, {"name": "", "scopes": ["read"]}, {"name": "x"}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["root"]}, {"name": "x", "scopes": "read"}, [], "x"):
        refused(f"POST tokens with {body}", wire.call("POST", "/api/v1/tokens", body), 400, "BadData")


def make_token(*scopes):
    return wire.call("POST", "/api/v1/tokens", {"name": "-".join(scopes).replace(":", "-"), "scopes": list(scopes)})["token"]


def operator_routes():
    document = wire.call("GET", "/openapi.json", token=None)
    check("the OpenAPI document is 3.1 and names every route", (document["openapi"] or "").startswith("3.1") and all(f"/api/v1/{p}" in document["paths"] or "/api/v1/{type}" in document["paths"] for p in PATHS.values()), document.text[:300])
    equal("healthz", wire.call("GET", "/healthz", token=None).status, 200)
    for path in ("hosts", "instances", "operations", "events", "catalogue"):
        answer = wire.get(path)
        check(f"GET {path} is JSON", answer.status == 200 and isinstance(answer.body, dict), repr(answer))
        answer = wire.get(path + "?filter=%00%ff&filter=&x")
        check(f"GET {path} with an odd filter is JSON", answer.status in (200, 400, 422) and isinstance(answer.body, dict), repr(answer))
    refused("GET of an unknown operation", wire.get(f"operations/{ulid()}"), 422, "NotFound")
    refused("placement of a VPC", wire.get(f"vpc/{Ground.vpc}/placement"), 400, "BadData")
    for body in (b"", b"{", b'{"args":5}', b'{"args":[1]}', b'{"args":["\\u0000"]}', b'{"args":["get","vpc","-o"]}', b'{"retryParams":{}}', b'{"args":["apply","-f","x"],"fileContent":"{{{"}', b'{"args":[' + b'"-",' * 10_000 + b'"x"]}'):
        answer = wire.call("POST", "/api/v1/cli", raw=body)
        check(f"kc's route with {body[:40]!r} is 200 with rc and stderr", answer.status == 200 and answer["rc"] == 1 and answer["stderr"], repr(answer))


def sdk():
    """The SDK loads errors strictly: an unknown code or member makes it throw."""
    import kc_api

    stranger = kc_api.KcClient("nobody", api_url=f"{wire.URL.scheme}://{wire.URL.netloc}")
    read, change, listed, poll = kc_api.KcApiReadErrorCode, kc_api.KcApiModificationErrorCode, kc_api.KcApiGetByLabelsErrorCode, kc_api.KcApiReadRequestErrorCode
    for name, found, wanted in [
        ("read NotFound", client.vpcs.read(ulid()), read.NotFound), ("read Unauthorized", stranger.vpcs.read(ulid()), read.Unauthorized),
        ("delete NotFound", client.vpcs.delete(ulid()), change.NotFound), ("delete Unauthorized", stranger.vpcs.delete(ulid()), change.Unauthorized),
        ("put BadData", client.folders.create_or_update({"metadata": {"name": "x", "colour": 1}, "spec": {}}), change.BadData),
        ("put MissingNameField", client.folders.create_or_update({"metadata": {}, "spec": {}}), change.MissingNameField),
        ("put Unauthorized", stranger.folders.create_or_update({"metadata": {"name": "x"}}), change.Unauthorized),
        ("put to an unknown type NotFound", client.kafkas.create_or_update({"metadata": {"name": "x"}}), change.NotFound),
        ("read of an unknown type NotFound", client.kafkas.read(ulid()), read.NotFound),
        ("list PageSizeTooBig", client.folders.get_by_labels(max_page_size=101), listed.PageSizeTooBig),
        ("list EnumeratorNotFound", client.folders.get_by_labels(enumerator_id="nonsense"), listed.EnumeratorNotFound),
        ("list BadData", client.folders.get_by_labels(max_page_size=0), listed.BadData),
        ("list Unauthorized", stranger.folders.get_by_labels(), listed.Unauthorized),
        ("list of an unknown type", client.kafkas.get_by_labels(), listed.BadData),
        ("poll NotFound", client.folders.read_request(ulid()), poll.NotFound), ("poll Unauthorized", stranger.folders.read_request(ulid()), poll.Unauthorized),
    ]:
        equal(f"SDK: {name}", found.errorCode, wanted)


def run():
    for part in (unknown_paths, odd_ids, bodies, fields, upper_case, tokens, operator_routes, sdk):
        part()
