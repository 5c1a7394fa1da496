"""Raw HTTP. In: method, path and body. Out: the answer, after it was held against what wire contract section 1 says of every answer:
JSON, never empty, never HTML, exactly the members of its route, a known error code, a status that clients handle."""

import http.client
import json
import os
import time
import urllib.parse

URL = urllib.parse.urlsplit(os.environ["KC_API_URL"])
TOKEN = os.environ["KC_TOKEN"]

MODIFICATION = (
    "NotFound Unauthorized MissingIdField ResourceIsScheduling MissingNameField Unknown ResourceIsDeleteProtected BadData"
    " QuotaExceeded SubmitLockBusy TransactionDeleteLockBusy"
)
# Members and error codes of each family of routes.
FAMILIES = {
    "change": ({"requestId", "resourceId"}, MODIFICATION),
    "read": ({"resource"}, "Unauthorized NotFound ResourceIsScheduling Unknown BadData"),
    "poll": ({"succeeded", "scheduledResourceId"}, "Unauthorized NotFound Unknown BadData UnableToReconcile"),
    "list": ({"pagination", "resources"}, "Unauthorized PageSizeTooBig EnumeratorNotFound Unknown BadData"),
}
STATUSES = {200, 400, 401, 403, 409, 422}

answers = 0
breaches = []


class Answer:
    """Status, headers, text, and the JSON when it is JSON."""

    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text
        try:
            self.body = json.loads(text)
        except ValueError:
            self.body = None

    def __getitem__(self, member):
        return self.body.get(member) if isinstance(self.body, dict) else None

    @property
    def code(self):
        return self["errorCode"]

    @property
    def message(self):
        return self["errorMessage"] or ""

    def __repr__(self):
        return f"{self.status} {self.text[:600]}"


def family_of(method, path):
    parts = path.split("?")[0].split("/")[3:]
    if not path.startswith("/api/v1/") or not parts[0] or parts[0] in ("cli", "tokens", "hosts", "instances", "operations", "events", "catalogue"):
        return None
    if parts[-1] == "placement":
        return None
    if method in ("PUT", "DELETE"):
        return "change"
    if method != "GET":
        return None
    if len(parts) == 2 and parts[1] == "get-by-labels":
        return "list"
    if len(parts) > 1 and parts[1] == "request":
        return "poll"
    return "read" if len(parts) == 2 else None


def judge(method, path, answer):
    """What this answer breaks of the contract."""
    if path == "/metrics":
        return None
    if answer.body is None or not isinstance(answer.body, dict):
        return "is not a JSON object"
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return f"has the content type {answer.headers.get('content-type')!r}"
    if answer.status == 503:
        return None if "retry-after" in answer.headers else "is 503 without Retry-After"
    family = family_of(method, path)
    if path.startswith("/api/") and answer.status not in STATUSES:
        return "has a status that makes clients throw"
    if family is None:
        return None
    members, codes = FAMILIES[family]
    members = members | {"errorMessage", "errorCode"}
    if set(answer.body) != members:
        return f"has the members {sorted(answer.body)}, not {sorted(members)}"
    if answer.code is not None and answer.code not in codes.split():
        return f"has the error code {answer.code}, which clients of this route do not know"
    if (answer.status != 200) != (answer.code is not None) and family != "poll":
        return f"has the error code {answer.code}"
    if answer.code is not None and not answer.message:
        return "has an error code without a text for people"
    return None


def once(method, path, data, headers):
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        if data is not None:
            headers = {"Content-Length": str(len(data)), **headers}
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(data)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, text)
    finally:
        connection.close()


def call(method, path, body=None, token=TOKEN, content_type="application/json", raw=None):
    """One request. `raw` are bytes to send as they are. While nobody leads, it is repeated as clients do."""
    global answers
    headers = {}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    if data is not None and content_type is not None:
        headers["Content-Type"] = content_type
    deadline = time.monotonic() + 20
    while True:
        answer = once(method, path, data, headers)
        answers += 1
        breach = judge(method, path, answer)
        if breach:
            breaches.append(f"{method} {path[:120]}: {breach}: {answer!r}")
        if answer.status != 503 or time.monotonic() > deadline:
            return answer
        time.sleep(0.5)


def get(path, **more):
    return call("GET", "/api/v1/" + path, **more)


def put(kind, body, **more):
    return call("PUT", "/api/v1/" + kind, body, **more)


def delete(path, **more):
    return call("DELETE", "/api/v1/" + path, **more)
