"""The law *leak* for objects of the host: an engine keeps nothing of a request that has ended.

A list that only grows costs no memory of the device, so no client notices it for days. When all
requests of a run have ended, ``find_remains`` follows each attribute of the engine and looks for
finished requests, released leases, ids of requests, and weak references without an object. The
newest step and its inputs are kept until the next one, and so are the last owners of rows and
pages, which the ownership check reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any
from weakref import ref

from ..core import Lease, Request
from ..core.form import wrong_form
from ..engine.engine import Engine
from ..trace import Recorder

OF_NEWEST_STEP = {
    "last", "newest", "shipped", "drained", "last_sequence_ids", "prev_req_id_to_index",
    "sampled_for", "filled_for", "planned",
}  # fmt: skip
MAY_STAY = OF_NEWEST_STEP | {
    "ended",  # usages, which are the result of a run
    "req_to_token", "owner",  # the last lease of each row and page
    "_timed_aborts", "_heap",  # messages that have not arrived
}  # fmt: skip
"""Attributes that may refer to ended requests."""
FOLDERS = (
    "core", "engine", "features", "loops", "memory", "policy", "relay", "scheduler", "speculative",
    "worker",
)  # fmt: skip
PACKAGES = tuple(f"minisched.{folder}" for folder in FOLDERS)
OTHERS = int, float, FunctionType, MethodType, Recorder  # without requests
CONTAINERS = list, tuple, set, frozenset, deque


def find_remains(engine: Engine, requests: Iterable[Request]) -> Iterator[str]:
    """Yield the first object of an ended request that an engine keeps, and where.

    ``requests`` are those of the run, all ended. An engine with outputs that no client has taken
    yet is not judged.
    """
    if engine.scheduler.outputs:
        return
    rids = {req.rid for req in requests if not wrong_form(req)}
    for item, path in reachable(engine):
        is_request = isinstance(item, Request) and item.finished
        if is_request or (isinstance(item, Lease) and item.is_released):
            what = "the request" if is_request else "a lease of"
            yield f"the engine still keeps {what} {item.rid}, which has ended (in {path})"
            return
        if isinstance(item, ref) and item() is None:
            yield f"the engine still keeps a reference to an object that is gone (in {path})"
            return
        if isinstance(item, str) and item in rids:
            yield f"the engine still keeps the id {item} of a request that has ended (in {path})"
            return


def reachable(engine: Engine) -> Iterator[tuple[Any, str]]:
    """Yield objects that an engine refers to, each once and with its path, the nearest first."""
    todo, seen = deque[tuple[Any, str]]([(engine, "")]), set[int]()
    while todo:
        item, path = todo.popleft()
        if isinstance(item, str):
            yield item, path
            continue
        if id(item) in seen or isinstance(item, OTHERS):
            continue
        seen.add(id(item))
        yield item, path
        if isinstance(item, dict):
            item = [*item.keys(), *item.values()]
        if isinstance(item, CONTAINERS):
            todo += ((part, path) for part in item if not isinstance(part, OTHERS))
        elif type(item).__module__.startswith(PACKAGES) and not isinstance(item, (Request, Lease)):
            names = [*getattr(item, "__dict__", ()), *getattr(type(item), "__slots__", ())]
            for name in names:
                if name not in MAY_STAY and hasattr(item, name):
                    todo.append((getattr(item, name), f"{path}.{name}".lstrip(".")))
