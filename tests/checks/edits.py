"""Edits of a good trace, by operator: each makes a file that a run could not have written.

``EDITS`` has a name for each edit, and a function that changes the file's JSON in place. ``SILENT``
names those that nothing in a file can tell, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Data = dict[str, Any]
Edit = Callable[[Data], str | None]
EDITS: dict[str, tuple[str, Edit]] = {}  # name -> the trace that it is for, the edit


def marks(data: Data, name: str, **attrs: Any) -> list[Data]:
    return [
        mark
        for mark in data["marks"]
        if mark["name"] == name and all(mark["attrs"].get(k) == v for k, v in attrs.items())
    ]


def slices(data: Data, name: str, lane: str = "") -> list[Data]:
    return [item for item in data["slices"] if item["name"] == name and lane in item["lane"]]


def acts(data: Data, kind: str, resource: str = "", lane: str = "") -> list[Data]:
    return [
        act
        for act in data["program"]
        if act["kind"] == kind and resource in act.get("resource", "") and lane in act["lane"]
    ]


def middle(found: list[Data]) -> Data:
    assert len(found) > 1, "the trace has too few of them"
    return found[len(found) // 2]


def edit(name: str, trace: str = "overlap") -> Callable[[Edit], Edit]:
    def keep(function: Edit) -> Edit:
        assert name not in EDITS
        EDITS[name] = trace, function
        return function

    return keep


def drop(events: str, pick: Callable[[Data], list[Data]], at: int | None = None) -> Edit:
    """Remove one of the events that are picked."""

    def change(data: Data) -> None:
        found = pick(data)
        data[events].remove(middle(found) if at is None else found[at])

    return change


def double(events: str, pick: Callable[[Data], list[Data]]) -> Edit:
    """Write one of the events twice; a slice gets an id of its own."""

    def change(data: Data) -> None:
        item = middle(pick(data))
        copy = {**item}
        if events == "slices":
            copy["id"] = 1 + max(other["id"] for other in data["slices"])
        data[events].insert(data[events].index(item) + 1, copy)

    return change


def put(pick: Callable[[Data], list[Data]], **values: Any) -> Edit:
    """Give fields of one event other values; ``attrs__rid`` is an attribute of a mark."""

    def change(data: Data) -> None:
        item = middle(pick(data))
        for name, value in values.items():
            of, _, key = name.rpartition("__")
            holder = item[of] if of else item
            before = holder.get(key)
            holder[key] = value(before) if callable(value) else value
            assert holder[key] != before

    return change


def swap(pick: Callable[[Data], list[Data]], *names: str) -> Edit:
    """Exchange fields of two neighbours that are picked."""

    def change(data: Data) -> None:
        found = pick(data)
        for at in range(len(found) // 2, len(found) - 1):
            one, other = (item.get("attrs", {}) | item for item in found[at : at + 2])
            if all(one.get(name) != other.get(name) for name in names):
                break
        else:
            raise AssertionError("no two neighbours differ")
        first, second = found[at], found[at + 1]
        for name in names:
            holder = "attrs" if name in first.get("attrs", {}) else ""
            a, b = (item[holder] if holder else item for item in (first, second))
            a[name], b[name] = b[name], a[name]

    return change


# -- Every operator on every kind of event ---------------------------------------------------------

DEVICE = ("forward", "sample", "copy")
HOST = ("schedule", "prepare", "launch", "process", "output")
for trace in ("serial", "overlap", "mlx_async", "unified"):
    for name in DEVICE:
        EDITS[f"{trace}: drop a {name}"] = trace, drop("slices", lambda d, n=name: slices(d, n))
        EDITS[f"{trace}: a {name} twice"] = trace, double("slices", lambda d, n=name: slices(d, n))
        EDITS[f"{trace}: a {name} ends later than the next begins"] = (
            trace,
            put(lambda d, n=name: slices(d, n), end=lambda end: end + 60_000_000),
        )
        EDITS[f"{trace}: a {name} before its launch"] = (
            trace,
            put(
                lambda d, n=name: slices(d, n),
                start=lambda start: start // 4,
                end=lambda end: end // 4,
            ),
        )
    for name in ("tokens", "commit", "page alloc", "row alloc", "row free", "finish"):
        EDITS[f"{trace}: drop a mark {name}"] = trace, drop("marks", lambda d, n=name: marks(d, n))
    for name in ("row alloc", "row free", "page alloc", "finish"):
        EDITS[f"{trace}: a mark {name} twice"] = (
            trace,
            double("marks", lambda d, n=name: marks(d, n)),
        )
    EDITS[f"{trace}: steps of two forwards swapped"] = (
        trace,
        swap(lambda d: slices(d, "forward"), "step"),
    )
    EDITS[f"{trace}: a token of another value"] = (
        trace,
        put(
            lambda d: marks(d, "tokens"),
            attrs__tokens=lambda text: " ".join(
                ["7" if text[:1] != "7" else "8", *text.split()[1:]]
            ),
        ),
    )
    EDITS[f"{trace}: tokens of two requests swapped"] = (
        trace,
        put(
            lambda d: [m for m in marks(d, "tokens") if len({*m["attrs"]["tokens"].split()}) > 1],
            attrs__tokens=lambda text: " ".join(reversed(text.split())),
        ),
    )
    EDITS[f"{trace}: KV of a forward written for another request"] = (
        trace,
        put(
            lambda d: acts(d, "write", "kv", "forward"), rid=lambda rid: "b" if rid == "a" else "a"
        ),
    )
    EDITS[f"{trace}: KV written where nobody gave a page"] = (
        trace,
        put(lambda d: acts(d, "write", "kv", "forward"), at="900"),
    )
    EDITS[f"{trace}: KV read of a page that was never written"] = (
        trace,
        put(lambda d: acts(d, "read", "kv", "forward"), at="900"),
    )


# -- Edits that need a certain run -----------------------------------------------------------------


@edit("a finish with another reason")
def _(data: Data) -> None:
    middle(marks(data, "finish", reason="length"))["attrs"]["reason"] = "error"


@edit("a reason that does not exist")
def _(data: Data) -> None:
    middle(marks(data, "finish"))["attrs"]["reason"] = "done"


@edit("a finish of fewer tokens than were heard")
def _(data: Data) -> None:
    middle(marks(data, "finish"))["attrs"]["outputs"] -= 3


@edit("a finish of a stranger")
def _(data: Data) -> None:
    middle(marks(data, "finish"))["attrs"]["rid"] = "nobody"


@edit("all ends are gone")
def _(data: Data) -> None:
    data["marks"] = [mark for mark in data["marks"] if mark["name"] != "finish"]


@edit("all tokens are gone")
def _(data: Data) -> None:
    data["marks"] = [mark for mark in data["marks"] if mark["name"] != "tokens"]


@edit("a request lost after its retraction", "retraction")
def _(data: Data) -> None:
    rid = marks(data, "retraction")[-1]["attrs"]["rid"]
    data["marks"].remove(marks(data, "finish", rid=rid)[-1])


@edit("a retraction that nobody recorded", "retraction")
def _(data: Data) -> None:
    data["marks"].remove(marks(data, "retraction")[0])


@edit("a retracted request is told its old token", "retraction")
def _(data: Data) -> None:
    mark = marks(data, "retraction")[0]
    told = next(m for m in marks(data, "tokens") if m["time"] > mark["time"])
    told["attrs"]["rids"] += " " + mark["attrs"]["rid"]
    told["attrs"]["tokens"] += " 3"


@edit("a page from nowhere goes into the cache", "radix_cache")
def _(data: Data) -> None:
    mark = marks(data, "radix add")[0]
    mark["attrs"]["page_ids"] = "33" + mark["attrs"]["page_ids"][1:]


@edit("a page of another node is evicted", "radix_cache")
def _(data: Data) -> None:
    marks(data, "radix evict")[0]["attrs"]["node"] = 1


@edit("a lock is never released", "radix_cache")
def _(data: Data) -> None:
    data["marks"].remove([m for m in marks(data, "radix lock", delta=-1) if m["attrs"]["node"]][-1])


@edit("a lock is released twice", "radix_cache")
def _(data: Data) -> None:
    mark = next(m for m in marks(data, "radix lock", delta=-1) if m["attrs"]["node"])
    data["marks"].insert(data["marks"].index(mark), dict(mark))


@edit("a split takes more pages than there are", "radix_cache")
def _(data: Data) -> None:
    marks(data, "radix split")[0]["attrs"]["pages"] = 7


@edit("a free page is freed once more", "page_allocator")
def _(data: Data) -> None:
    mark = marks(data, "page free")[0]
    data["marks"].insert(data["marks"].index(mark) + 1, dict(mark))


@edit("a page beyond the pool", "page_allocator")
def _(data: Data) -> None:
    mark = marks(data, "page alloc")[-1]
    mark["attrs"]["pages"] = "99" + mark["attrs"]["pages"][len(mark["attrs"]["pages"].split()[0]) :]


@edit("a page that another request holds", "page_allocator")
def _(data: Data) -> None:
    one, other = marks(data, "page alloc")[:2]
    other["attrs"]["pages"] = one["attrs"]["pages"]


@edit("a page free is lost", "page_allocator")
def _(data: Data) -> None:
    data["marks"].remove(marks(data, "page free")[0])


@edit("pages of the wrong size", "page_allocator")
def _(data: Data) -> None:
    marks(data, "kv pool")[0]["attrs"]["page_size"] = 1


@edit("a step of a row that nobody has")
def _(data: Data) -> None:
    middle(marks(data, "commit"))["attrs"]["rows"] = "1 2 3 15"


@edit("a step committed for fewer rows")
def _(data: Data) -> None:
    mark = middle([m for m in marks(data, "commit") if " " in m["attrs"]["rows"]])
    mark["attrs"]["rows"] = mark["attrs"]["rows"].rpartition(" ")[0]


@edit("a forward of other requests")
def _(data: Data) -> None:
    item = middle([i for i in slices(data, "forward") if len(i["rids"]) > 1])
    item["rids"] = item["rids"][:-1]


@edit("tokens of a step that was processed elsewhere")
def _(data: Data) -> None:
    middle(slices(data, "process"))["step"] += 1


@edit("a chunk counts as a token", "prefill")
def _(data: Data) -> None:
    mark = next(m for m in marks(data, "commit") if m["attrs"].get("chunks"))
    mark["attrs"]["chunks"] = ""


@edit("an admission of too many tokens", "prefill")
def _(data: Data) -> None:
    middle(marks(data, "admit"))["attrs"]["extend_len"] = 9999


@edit("a future slot of another request", "future_map")
def _(data: Data) -> None:
    mark = middle([m for m in marks(data, "future slots") if " " in m["attrs"]["reads"]])
    mark["attrs"]["reads"] = " ".join(reversed(mark["attrs"]["reads"].split()))


@edit("a future slot is not read", "future_map")
def _(data: Data) -> None:
    mark = middle([m for m in marks(data, "future slots") if " " in m["attrs"]["reads"]])
    mark["attrs"]["reads"] = mark["attrs"]["reads"].rpartition(" ")[0]


@edit("a relay's cell is written by another step", "future_map")
def _(data: Data) -> None:
    middle(acts(data, "write", "future map"))["at"] = "7"


@edit("a KV transfer lands nowhere", "pd")
def _(data: Data) -> None:
    data["slices"].remove(slices(data, "transfer")[0])


@edit("a KV transfer before its prefill", "pd")
def _(data: Data) -> None:
    slices(data, "transfer")[0].update(start=0, end=1000)


@edit("a row held for a transfer is let go twice", "pd")
def _(data: Data) -> None:
    mark = marks(data, "row let go")[0]
    data["marks"].insert(data["marks"].index(mark) + 1, dict(mark))


@edit("a decode side's token for a stranger", "pd")
def _(data: Data) -> None:
    mark = middle(marks(data, "tokens", side="decode"))
    mark["attrs"]["rids"] = mark["attrs"]["rids"].replace("a", "zz", 1)


@edit("a stage runs a step twice", "vllm_pp")
def _(data: Data) -> None:
    items = slices(data, "forward", "stage 2")
    items[3]["step"] = items[2]["step"]


@edit("a stage begins before the stage above it", "vllm_pp")
def _(data: Data) -> None:
    item = slices(data, "forward", "stage 1")[0]
    item.update(start=0, end=1000)


@edit("two stages at one lane", "vllm_pp")
def _(data: Data) -> None:
    middle(slices(data, "forward", "stage 1"))["lane"] = "stage 2"


@edit("a burst loses one of its steps", "multi_step")
def _(data: Data) -> None:
    data["slices"].remove(middle(slices(data, "forward")))


@edit("a fill from another row", "mindie_plugin")
def _(data: Data) -> None:
    mark = middle([m for m in marks(data, "placeholder fill") if " " in m["attrs"]["rows"]])
    mark["attrs"]["rows"] = " ".join(reversed(mark["attrs"]["rows"].split()))


@edit("a token of another step in the chain", "lazy_chain")
def _(data: Data) -> None:
    middle([m for m in marks(data, "lazy tokens") if m["attrs"]["source"]])["attrs"]["source"] -= 1


# -- The program: waits, launches, begins and ends -------------------------------------------------

for trace in ("overlap", "mlx_async", "vllm_step"):
    EDITS[f"{trace}: the host waits for no copy"] = (
        trace,
        lambda d: d.update(
            program=[a for a in d["program"] if (a["kind"], a["lane"]) != ("wait", "host")]
        ),
    )
    for kind in ("launch", "begin", "end"):
        EDITS[f"{trace}: drop a {kind}"] = (
            trace,
            drop("program", lambda d, k=kind: acts(d, k, lane="" if k == "launch" else "forward")),
        )
        EDITS[f"{trace}: a {kind} twice"] = (
            trace,
            double(
                "program", lambda d, k=kind: acts(d, k, lane="" if k == "launch" else "forward")
            ),
        )
    EDITS[f"{trace}: a launch in an older slice"] = (
        trace,
        put(lambda d: acts(d, "launch"), during=lambda during: during + 40),
    )


@edit("a copy that waits for no sample")
def _(data: Data) -> None:
    data["program"] = [a for a in data["program"] if (a["kind"], a["lane"]) != ("wait", "copy")]


@edit("a wait that never ends")
def _(data: Data) -> None:
    middle(acts(data, "wait"))["op"] = 99_999


@edit("memory is freed while it is read")
def _(data: Data) -> None:
    data["program"].insert(
        len(data["program"]) // 2,
        {"lane": "host", "kind": "free", "op": 3, "resource": "kv", "at": "1-40"},
    )


@edit("all slices are gone")
def _(data: Data) -> None:
    data["slices"], data["edges"] = [], []


@edit("an edge back in time")
def _(data: Data) -> None:
    edge = middle(data["edges"])
    edge["src"], edge["dst"] = edge["dst"], edge["src"]


# -- What is no trace at all -----------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Data], Any], Any]] = {  # the place, and what is put there
    "a time below 0": (lambda d: middle(d["slices"]), {"start": -5}),
    "an end before its start": (lambda d: middle(d["slices"]), {"end": 0}),
    "a time of 10**400": (lambda d: middle(d["slices"]), {"end": 10**400}),
    "a time that is a fraction": (lambda d: middle(d["slices"]), {"start": 1.5}),
    "a time that is a text": (lambda d: middle(d["slices"]), {"start": "0"}),
    "a step that is a truth": (lambda d: middle(d["slices"]), {"step": True}),
    "a lane that is a number": (lambda d: middle(d["slices"]), {"lane": 3}),
    "requests that are numbers": (lambda d: middle(d["slices"]), {"rids": [1, 2]}),
    "an attribute that is a list": (lambda d: middle(d["marks"])["attrs"], {"x": [1]}),
    "an attribute that is nothing": (lambda d: middle(d["marks"])["attrs"], {"x": None}),
    "a mark below 0": (lambda d: d["marks"][0], {"time": -1}),
    "a counter below 0": (lambda d: middle(d["counters"]), {"value": -1}),
    "an edge on itself": (lambda d: middle(d["edges"]), {"src": 5, "dst": 5}),
    "an edge of an unknown kind": (lambda d: middle(d["edges"]), {"kind": "love"}),
    "an edge to nowhere": (lambda d: middle(d["edges"]), {"dst": 99_999}),
    "cells out of order": (lambda d: middle(acts(d, "read", "kv")), {"at": "9 3"}),
    "an act of an unknown kind": (lambda d: middle(d["program"]), {"kind": "think"}),
    "a pool with pages of 0": (lambda d: marks(d, "kv pool")[0]["attrs"], {"page_size": 0}),
    "a pool of -1 pages": (lambda d: marks(d, "kv pool")[0]["attrs"], {"pages": -1}),
    "a lock of 2": (lambda d: marks(d, "radix lock")[0]["attrs"], {"delta": 2}),
    "a step without its rows": (lambda d: middle(marks(d, "commit"))["attrs"], {"rows": "x"}),
    "version 1.0": (lambda d: d, {"version": 1.0}),
    "version true": (lambda d: d, {"version": True}),
    "version 2": (lambda d: d, {"version": 2}),
    "another format": (lambda d: d, {"format": "trace"}),
    "a sundial": (lambda d: d, {"clock": "sundial"}),
    "slices that are no list": (lambda d: d, {"slices": {}}),
    "a program that is nothing": (lambda d: d, {"program": None}),
}
for name, (place, values) in REFUSED.items():
    EDITS[name] = "overlap", lambda d, p=place, v=values: p(d).update(v)
TEXTS: dict[str, Callable[[str], str]] = {
    "a number that is none": lambda text: text.replace('"start": 0', '"start": NaN', 1),
    "an infinite time": lambda text: text.replace('"start": 0', '"start": Infinity', 1),
    "a file that is cut off": lambda text: text[: len(text) // 2],
    "two files in one": lambda text: text + text,
    "a list nested 100,000 deep": lambda text: text.replace(
        '"edges": [', f'"edges": [{"[" * 100_000}', 1
    ),
}

MISSING = 99_999  # the id of no slice


@edit("a step with two modes")
def _(data: Data) -> None:
    middle(slices(data, "sample"))["mode"] = "another"


@edit("a commit during no slice")
def _(data: Data) -> None:
    middle(marks(data, "commit"))["during"] = MISSING


@edit("a launch during no slice")
def _(data: Data) -> None:
    middle(acts(data, "launch"))["during"] = MISSING


@edit("a step whose tokens no slice processes")
def _(data: Data) -> None:
    gone = middle(slices(data, "process"))
    data["slices"].remove(gone)
    data["edges"] = [it for it in data["edges"] if gone["id"] not in (it["src"], it["dst"])]


# -- Facts that a file contains twice --------------------------------------------------------------


@edit("a lock of 99", "radix_cache")
def _(data: Data) -> None:
    middle(marks(data, "radix lock"))["attrs"]["lock_ref"] = 99


@edit("a lock on the root of 99")
def _(data: Data) -> None:
    marks(data, "radix lock", node=0)[0]["attrs"]["lock_ref"] = 99


@edit("a look-up finds more than is used", "radix_cache")
def _(data: Data) -> None:
    middle([m for m in marks(data, "match") if m["attrs"]["hit_len"]])["attrs"]["hit_len"] += 1


@edit("an admission with more cached tokens than were found", "radix_cache")
def _(data: Data) -> None:
    middle(marks(data, "admit"))["attrs"]["hit_len"] += 1


@edit("a table of -1 rows")
def _(data: Data) -> None:
    marks(data, "kv pool")[0]["attrs"]["rows"] = -1


@edit("a copy of another step")
def _(data: Data) -> None:
    middle(slices(data, "copy"))["step"] += 1


@edit("a sample of another step")
def _(data: Data) -> None:
    middle(slices(data, "sample"))["step"] -= 1


for counter in ("running", "waiting", "kv used", "kv cached"):
    EDITS[f"a counter {counter} of 10**15"] = (
        "overlap",
        put(
            lambda d, n=counter: [it for it in d["counters"] if it["name"] == n],
            value=lambda _value: 10**15,
        ),
    )
for trace in ("serial", "overlap", "mlx_async", "unified"):
    for name in ("sample", "copy", "process"):
        EDITS[f"{trace}: a {name} of fewer requests"] = (
            trace,
            put(
                lambda d, n=name: [it for it in slices(d, n) if len(it["rids"]) > 1],
                rids=lambda rids: rids[:-1],
            ),
        )
    EDITS[f"{trace}: KV of a forward read for another request"] = (
        trace,
        put(lambda d: acts(d, "read", "kv", "forward"), rid=lambda rid: "b" if rid == "a" else "a"),
    )
    EDITS[f"{trace}: KV read of a page of another request"] = (
        trace,
        put(
            lambda d: acts(d, "read", "kv", "forward"),
            at=lambda at: f"{int(at.split('-')[0].split()[0]) + 1}",
        ),
    )
    for kind in ("read", "write"):
        EDITS[f"{trace}: a {kind} of one cell more of the page table"] = (
            trace,
            put(
                lambda d, k=kind: acts(d, k, "page table", "forward"),
                at=lambda at: f"{at} {int(at.replace('-', ' ').split()[-1]) + 2}",
            ),
        )

for name, spoil in TEXTS.items():
    EDITS[name] = "overlap", lambda d, s=spoil: s(json.dumps(d))


SILENT = {
    "a split takes more pages than there are": "a mark does not say where a node's tokens part",
    "a relay's cell is written by another step": "only a run on sim shows the memory itself",
    "a fill from another row": "no other mark says which row a token came from",
    "a token of another step in the chain": "no other mark says which step a token came from",
}
"""Edits that nothing in a file can tell. ``touches`` and ``identity`` see them while a run runs."""
