"""What the museum shows of one published bug."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..checks.case import VOCAB, Case, Workload
from ..checks.history import Offence
from ..checks.judge import Verdict, judge
from ..core import Request, SamplingParams
from ..devices.cost import SIM_COST, CostModel
from ..scheduler import SchedulerConfig
from .patch import Edit, put_in

# -- Where a bug was published: ``vLLM #48245``, or a commit as ``mini-sglang 20fcd7f`` ------------

REPOSITORIES = {  # on GitHub, where an issue's address leads to a pull request, too
    "SGLang": "sgl-project/sglang",
    "sglang-jax": "sgl-project/sglang-jax",
    "mini-sglang": "sgl-project/mini-sglang",
    "vLLM": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "vllm-omni": "vllm-project/vllm-omni",
    "MindIE-LLM": "Ascend/MindIE-LLM",
    "tt-metal": "tenstorrent/tt-metal",
}
SAME = {"mindie": "MindIE-LLM"}  # what else they are called
CURED_BY = {  # MindIE-LLM's numbers are not GitHub's; the commits that cured them are there
    "#42": "7360e68",
    "#75": "212297e",
    "#233": "90669ea",
}
REFERENCE = re.compile(r"([\w-]+) (#[1-9]\d*|[0-9a-f]{7,40})")


def address(reference: str) -> str:
    """The web address of a reference.

    Raises:
        ValueError: it is not ``NAME #NUMBER`` or ``NAME COMMIT``, or nobody knows the name, or of
            MindIE-LLM the number.
    """
    found = REFERENCE.fullmatch(reference)
    name = repository_of(found[1]) if found else ""
    if not found or not name:
        raise ValueError(
            f"{reference!r} is no reference; it must be a name with a number or a commit, such as "
            f"'vLLM #48245', and the names are {', '.join(REPOSITORIES)}."
        )
    repository, which = f"https://github.com/{REPOSITORIES[name]}", found[2]
    if name == "MindIE-LLM" and which.startswith("#"):
        if which not in CURED_BY:
            raise ValueError(f"{reference!r} has no commit; those known are {', '.join(CURED_BY)}.")
        which = CURED_BY[which]
    number = which.removeprefix("#")
    return f"{repository}/issues/{number}" if "#" in which else f"{repository}/commit/{number}"


def repository_of(name: str) -> str:
    """The usual spelling of a repository's name; empty if nobody knows it."""
    known = {other.lower(): other for other in REPOSITORIES} | SAME
    return known.get(name.lower(), "")


# -- A case as text --------------------------------------------------------------------------------

COMES = re.compile(
    r"(\w+)(?: at (\d+))?: ([\d ]+) -> (\d+)(?: priority (\d+))?(?:, gone at (\d+))?"
)


def case(
    requests: str,
    on: str,
    *,
    kv: int,
    rows: int = 1,
    eos: frozenset[int] | set[int] = frozenset(),
    vocab_size: int = VOCAB,
    options: Mapping[str, Any] | None = None,
    wishes: Mapping[str, Any] | None = None,
    cost: CostModel = SIM_COST,
    **settings: Any,
) -> Case:
    """A case from a line: ``"a: 7 3 -> 2, gone at 1; b at 1: 7 -> 1"`` on ``"overlap:ring"``.

    Request ``a`` has a prompt of the tokens 7 and 3, wants two, and is given up in turn 1; ``b``
    comes in turn 1. There are ``kv`` slots and ``rows`` rows; ``wishes`` are everybody's sampling
    parameters, ``settings`` the scheduler's.

    Raises:
        ValueError: a request is not written like that.
    """
    reqs, arrivals, aborts = list[Request](), list[int](), dict[int, str]()
    for part in requests.split(";"):
        if not (found := COMES.fullmatch(part.strip())):
            raise ValueError(f"{part.strip()!r} is no request; one is written 'a: 7 3 -> 2'.")
        rid, turn, prompt, new, priority, gone = found.groups()
        params = SamplingParams(max_new_tokens=int(new), **(wishes or {}))
        reqs.append(Request(rid, [*map(int, prompt.split())], params, priority=int(priority or 0)))
        arrivals.append(int(turn or 0))
        aborts |= {int(gone): rid} if gone else {}
    config = SchedulerConfig(kv_tokens=kv, max_running_requests=rows, **settings)
    workload = Workload(reqs, arrivals, aborts, config, frozenset(eos), vocab_size)
    loop, _, relay = on.partition(":")
    return Case(workload, loop, relay, options or {}, cost)


CHAPTERS = (
    "who owns memory",
    "tokens on their way",
    "streams and buffers",
    "what the scheduler believes",
)


@dataclass(frozen=True)
class Exhibit:
    """One published bug, put back by a patch, with the smallest case that shows it.

    ``law`` is the one that catches it (``checks/laws.py``, ``checks/judge.py:STOPPED_BY``), and
    ``says`` words that its sentence must have. ``judge_by`` holds the laws against a case, where
    it takes other laws than the general ones. ``points_at`` says what a picture shows in red,
    where ``museum/picture.py`` cannot work it out from the law; it takes the verdict with the bug.

    ``suspected_at`` is the reference, one of ``references``, whose source was only suspected of the
    bug, and which its model here confirms; empty where somebody had met it.

    ``original_cure`` is the bug with the original's own cure, where the code here is built
    otherwise and never could have the bug: with these edits in the place of ``edits`` every law
    holds.

    The costs of ``case`` are what its picture shows: ``SIM_COST``, unless the bug takes others.
    """

    name: str
    title: str
    chapter: str  # one of ``CHAPTERS``
    references: tuple[str, ...]  # as "sglang #22416"
    symptom: str  # what somebody saw who had it
    here: str  # what goes wrong in this case, step by step
    cure: str  # what the original did about it
    law: str
    says: str
    case: Case
    edits: tuple[Edit, ...]
    judge_by: Callable[[Case], Verdict] = field(default=judge)
    points_at: Callable[[Verdict], Offence] | None = None
    suspected_at: str = ""
    original_cure: tuple[Edit, ...] = ()

    def with_bug(self) -> Verdict:
        """The verdict on the case with the bug in the code."""
        with put_in(self.edits):
            return self.judge_by(self.case)

    def cured_as_there(self) -> Verdict:
        """The verdict on the case with the bug and the original's cure, where that is given."""
        with put_in(self.original_cure):
            return self.judge_by(self.case)

    def healthy(self) -> Verdict:
        """The verdict on the same case with the code as it is."""
        return self.judge_by(self.case)


@dataclass(frozen=True)
class Refuted:
    """A suspicion that does not hold, or a misdiagnosis: what was thought, and what is true.

    ``case`` runs what was suspected, with ``edits`` in place if it takes a change to do so; no law
    is broken by it.
    """

    name: str
    title: str
    references: tuple[str, ...]
    suspicion: str
    truth: str
    case: Case
    edits: tuple[Edit, ...] = ()
    judge_by: Callable[[Case], Verdict] = field(default=judge)

    def verdict(self) -> Verdict:
        """The verdict on what was suspected."""
        with put_in(self.edits):
            return self.judge_by(self.case)


# -- Edits that several published bugs need: this code's second lines of defence, taken away -------

ENDED_KEEPS_ITS_LEASE = Edit(
    "scheduler.scheduler:Scheduler._finish",
    healthy="    lease, req.lease = req.lease, None\n",
    bug="    lease = req.lease\n",
)
"""A request that has ended still names its memory, as SGLang's keeps its ``req_pool_idx``."""

RELEASED_KEEPS_ITS_PAGES = Edit(
    "memory.pool:LeasePool.release",
    healthy="    lease.pages, lease.shared_pages, lease.node = [], 0, None\n",
    bug="",
)
"""What is released still lists its pages, as a row of ``req_to_token`` does."""

STALE_BY_COUNT = Edit(
    "scheduler.scheduler:Scheduler.process",
    healthy="""\
        if req.lease is not lease:  # ended or retracted while the step was running
            outputs += rows.late(batch, req, lease, token if deliver else None, error)
""",
    bug="""\
        if req.finished or req in drained or req.num_stale_output_tokens:
            outputs += rows.late(batch, req, lease, None)  # thrown away
""",
)
"""A row is stale if the request's count says so, and not by the lease that it ran under.

With an exact count this is right as well, whatever the depth.
"""
