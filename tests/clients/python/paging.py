"""Lists: labels, patterns, pages, and walks that see everything once while others come and go."""

import kc_api

import wire
from checks import check, equal
from ground import RUN, client, envelope, make, remove, ulid


def walk(labels, size, between=lambda page: None):
    """All pages by the SDK; answers the ids of each page."""
    pages, enumerator = [], None
    for number in range(1000):
        answer = client.folders.get_by_labels(labels, enumerator, size)
        if answer.errorCode is not None:
            raise RuntimeError(f"page {number}: {answer}")
        pages.append([resource["metadata"]["id"] for resource in answer.resources])
        enumerator = answer.pagination.enumeratorId
        if enumerator is None:
            return pages
        between(number)
    raise RuntimeError("the walk does not end")


def pages():
    ids = sorted(make(envelope("Folder", f"page {n:02}", {}, labels={"run": RUN, "n": str(n), "page": "yes"})) for n in range(25))
    mine = {"run": RUN, "page": "yes"}
    found = walk(mine, 10)
    equal("25 folders by 10 are pages of 10, 10 and 5", [len(page) for page in found], [10, 10, 5])
    equal("a walk sees each once, in the order of the ids", sum(found, []), ids)
    equal("a second walk is the same", walk(mine, 10), found)
    equal("25 by 25 are one page, without an enumerator", [len(page) for page in walk(mine, 25)], [25])
    equal("25 by 1 are 25 pages", [len(page) for page in walk(mine, 1)], [1] * 25)
    equal("25 by 5 end without an empty page", [len(page) for page in walk(mine, 5)], [5] * 5)
    everything = sum(walk(None, 7), [])
    equal("a walk over all has nothing twice", len(everything), len(set(everything)))
    check("a walk over all has all of mine", set(ids) <= set(everything), set(ids) - set(everything))
    equal("the default page has 10", len(wire.get("folder/get-by-labels")["resources"]), 10)
    first = wire.get("folder/get-by-labels?labels[page]=yes&maxPageSize=100")
    equal("the last page says that it is the last", first["pagination"], {"enumeratorId": None})

    came = []

    def meanwhile(number):
        if number == 0:
            came.append(make(envelope("Folder", "newcomer", {}, labels={"run": RUN, "page": "yes"})))
            remove("folder", ids[3])
            remove("folder", ids[20])

    seen = sum(walk(mine, 10, meanwhile), [])
    stayed = [identifier for n, identifier in enumerate(ids) if n not in (3, 20)]
    equal("a walk sees what existed throughout once, whatever comes and goes", [i for i in seen if i in stayed], stayed)
    equal("and nothing twice", len(seen), len(set(seen)))


def labels():
    red = make(envelope("Vpc", "labelled", {}, labels={"run": RUN, "env": "prod-eu", "odd key/ü": "a b&c=d"}))
    blue = make(envelope("Vpc", "labelled", {}, labels={"run": RUN, "env": "test-eu"}))
    both, none = sorted([red, blue]), []

    for query, wanted in [
        ("labels[env]=prod-eu", [red]), ("label.env=prod-eu", [red]), ("labels%5Benv%5D=prod-eu", [red]), ("labels[env]=*-eu", both), ("labels[env]=prod*", [red]),
        ("labels[env]=*", both), ("labels[env]=p*-*u", [red]), ("labels[env]=PROD-EU", none), ("labels[env]=prod", none), ("labels[env]=", none), ("labels[none]=*", none),
        ("labels[env]=*-eu&label.env=test*", [blue]), ("labels[env]=prod-eu&labels[env]=test-eu", none), ("labels[odd key/%C3%BC]=a b%26c%3Dd".replace(" ", "+"), [red]),
        ("labels[env]=**eu**", both), ("labels[env]=" + "*a" * 200, none), ("unheard=of&labels[env]=prod-eu", [red]),
    ]:
        answer = wire.get(f"vpc/get-by-labels?labels[run]={RUN}&{query}")
        equal(f"list with {query[:50]}", [resource["metadata"]["id"] for resource in answer["resources"] or []], wanted)
    listed = client.vpcs.get_by_labels({"run": RUN, "env": "prod*"})
    equal("the SDK lists with labels", [resource["metadata"]["id"] for resource in listed.resources], [red])
    equal("a list shows what a read shows", listed.resources[0], client.vpcs.read(red).resource)


def refusals():
    for query, code in [
        ("maxPageSize=101", "PageSizeTooBig"), ("maxPageSize=99999999999999999999999", "PageSizeTooBig"), ("maxPageSize=0", "BadData"), ("maxPageSize=-1", "BadData"),
        ("maxPageSize=x", "BadData"), ("maxPageSize=1.5", "BadData"), ("maxPageSize=", "BadData"), ("enumeratorId=x", "EnumeratorNotFound"),
        (f"enumeratorId={ulid()}", "EnumeratorNotFound"), ("enumeratorId=%00%ff", "EnumeratorNotFound"), ("labels[=x", "BadData"), ("labels[]=x", "BadData"), ("label.=x", "BadData"),
    ]:
        answer = wire.get("folder/get-by-labels?" + query)
        check(f"list with {query} is {code}", answer.status in (400, 422) and answer.code == code, repr(answer))
    equal("100 is not too big", wire.get("folder/get-by-labels?maxPageSize=100").status, 200)
    equal("an empty enumerator is none", wire.get("folder/get-by-labels?enumeratorId=").status, 200)
    other = client.folders.get_by_labels(max_page_size=1).pagination.enumeratorId
    equal("an enumerator of another type is not found", client.vpcs.get_by_labels(enumerator_id=other).errorCode, kc_api.KcApiGetByLabelsErrorCode.EnumeratorNotFound)
    answer = wire.get(f"folder/get-by-labels?labels[a]=b&enumeratorId={other}")
    equal("an enumerator of other labels is not found", answer.code, "EnumeratorNotFound")


def run():
    for part in (pages, labels, refusals):
        part()
