"""The exhibits: each published bug is a table of text in ``bugs/*.toml``.

``case``, ``on`` and ``with`` are the arguments of ``case`` below. ``fix`` is the patch, a diff from
the bug to the healthy code (``patch.py:read_edits``); a refuted suspicion has none. The other keys
are ``Exhibit``'s fields.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from ..checks.case import VOCAB, Case, Workload, same_on
from ..checks.judge import Finding, Verdict, judge
from ..checks.overlap import forwards, measure
from ..core import Request, SamplingParams
from ..devices.cost import SIM_COST, CostModel
from ..loops.design import LOOPS
from ..scheduler import SchedulerConfig
from .patch import Edit, put_in, read_edits

# -- The source of a bug: ``vLLM #48245``, or a commit as ``mini-sglang 20fcd7f`` ------------------

REPOSITORIES = {  # on GitHub, where an issue's address leads to a pull request, too
    "SGLang": "sgl-project/sglang",
    "sglang-jax": "sgl-project/sglang-jax",
    "mini-sglang": "sgl-project/mini-sglang",
    "vLLM": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "vllm-omni": "vllm-project/vllm-omni",
    "MindIE-LLM": "Ascend/MindIE-LLM",
    "tt-metal": "tenstorrent/tt-metal",
    "nano-vllm": "GeeeekExplorer/nano-vllm",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
}
CURED_BY = {  # commits for MindIE-LLM's numbers, which are not GitHub's
    "MindIE-LLM #42": "MindIE-LLM 7360e68",
    "MindIE-LLM #75": "MindIE-LLM 212297e",
    "MindIE-LLM #233": "MindIE-LLM 90669ea",
}
REFERENCE = re.compile(r"([\w-]+) (#[1-9]\d*|[0-9a-f]{7,40})")


def address(reference: str) -> str:
    """Return the web address of a reference.

    Raises:
        ValueError: it is not ``NAME #NUMBER`` or ``NAME COMMIT``, or the name is unknown.
    """
    found = REFERENCE.fullmatch(CURED_BY.get(reference, reference))
    if not found or found[1] not in REPOSITORIES:
        raise ValueError(
            f"{reference!r} is no reference; it must be a name with a number or a commit, such as "
            f"'vLLM #48245', and the names are {', '.join(REPOSITORIES)}."
        )
    kind = "issues" if found[2].startswith("#") else "commit"
    return f"https://github.com/{REPOSITORIES[found[1]]}/{kind}/{found[2].lstrip('#')}"


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
    """Make a case from a line: ``"a: 7 3 -> 2, gone at 1; b at 1: 7 -> 1"`` on ``"overlap:ring"``.

    Request ``a`` has a prompt of the tokens 7 and 3, wants two tokens, and is aborted in turn 1;
    ``b`` arrives in turn 1. There are ``kv`` slots and ``rows`` rows. ``wishes`` are the sampling
    parameters of all requests, ``settings`` the scheduler's. Loop options may follow the relay.

    Raises:
        ValueError: a request has another form.
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
    loop, *rest = on.split(":")
    # The smallest pools hold each request just so, and most of the bugs are in the lease rule.
    rules = f"{LOOPS[loop].rules},too_many_tokens=refused"
    if LOOPS[loop].rules == "sglang":
        rules += ",free_rule=lease"
    settings = {"rules": rules, **settings}
    config = SchedulerConfig(kv_tokens=kv, max_running_requests=rows, **settings)
    workload = Workload(reqs, arrivals, aborts, config, frozenset(eos), vocab_size)
    given = {name: json.loads(value) for name, _, value in (it.partition("=") for it in rest[1:])}
    return Case(workload, loop, "".join(rest[:1]), {**(options or {}), **given}, cost)


# -- Laws of one exhibit alone: they need a second run or a stricter condition ---------------------


def hits_as_on_serial(case: Case) -> Verdict:
    """Apply the general laws, and: a request's cache hits do not depend on the loop.

    On the serial loop no step is in flight when a request ends, so nothing can be counted early.
    """
    verdict, serial = judge(case), judge(same_on(case, "serial"))
    for here, there in zip(verdict.workload.requests, serial.workload.requests, strict=True):
        if here.admission.hit_len != there.admission.hit_len:
            found = f"{here.rid} found {here.admission.hit_len} cached positions"
            return also(
                verdict, "hits", f"{found}, but on the serial loop {there.admission.hit_len}"
            )
    return verdict


def it_overlaps(case: Case) -> Verdict:
    """Apply the general laws, and: some of the host's work overlaps with the device's."""
    verdict = judge(case)
    report = measure(verdict.trace)
    if report.host_hidden_ns:
        return verdict
    idled = f"which idled for {report.bubble_ns / 1e6:g} ms"
    worked = f"the host worked for {report.host_busy_ns / 1e6:g} ms"
    return also(verdict, "overlap", f"{worked}, never while the device did, {idled}")


def ranks_agree(case: Case) -> Verdict:
    """Apply the general laws, and: two ranks run the same rows in the same order.

    The ranks are two runs that differ only in the memory addresses of their requests.
    """
    rids, ranks = [req.rid for req in case.workload.requests], []
    for order in (rids, rids[::-1]):
        with addresses({rid: at for at, rid in enumerate(order)}):
            ranks.append(judge(case))
    for one, other in zip(*(forwards(rank.trace) for rank in ranks), strict=False):
        if one.rids != other.rids:
            runs = f"step {one.step} runs {' '.join(one.rids)} on rank 0"
            return also(ranks[0], "ranks", f"{runs}, and {' '.join(other.rids)} on rank 1")
    return ranks[0]


@contextmanager
def addresses(of: Mapping[str, int]) -> Iterator[None]:
    """Let requests hash by these addresses inside the block, instead of their real ones."""

    def address(req: Request) -> int:
        """Return the address of a request."""
        return of[req.rid]

    Request.__hash__ = address  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del Request.__hash__


def also(verdict: Verdict, law: str, sentence: str) -> Verdict:
    """Return the verdict with one more finding."""
    return replace(verdict, findings=(*verdict.findings, Finding(law, sentence)))


OWN_LAWS: dict[str, Callable[[Case], Verdict]] = {
    "hits": hits_as_on_serial,
    "overlap": it_overlaps,
    "ranks": ranks_agree,
}

# -- All exhibits ----------------------------------------------------------------------------------

BUGS = Path(__file__).with_name("bugs")
FILES = ("memory", "tokens", "streams", "beliefs")  # one chapter each


@dataclass(frozen=True)
class Exhibit:
    """One published bug, put back by a patch, with the smallest case that shows it.

    ``law`` is the one that catches it (``checks/judge.py``, or one of ``OWN_LAWS``). Its
    sentence must contain the words in ``says``. ``red`` names the slices that caused it, each with
    a phrase, as ``"process 1: frees page 1; process 2: frees it again"``, and ``because`` explains
    them. Both are empty if the law itself names the slices (``museum/picture.py``). ``cell`` is
    the contested memory (``export/contested.py``), if the law does not name it.

    ``suspected_at`` is the reference, one of ``references``, of a bug that was only suspected from
    the source; the model here confirms it. It is empty if the bug was seen in a run.

    An exhibit that ``is_refuted`` is a suspicion that does not hold, or a misdiagnosis. It has no
    patch, and no law is broken.
    """

    name: str
    chapter: str
    title: str
    references: tuple[str, ...]  # as "SGLang #22416"
    symptom: str  # the observation or suspicion of the report
    cure: str  # the fix in the original, or the truth about a refuted one
    case: Case
    here: str = ""  # the course of the fault in this case, step by step
    law: str = "identity"
    says: str = ""
    edits: tuple[Edit, ...] = ()
    is_refuted: bool = False
    red: str = ""
    because: str = ""
    cell: str = ""
    suspected_at: str = ""

    def with_bug(self) -> Verdict:
        """Return the verdict on the case with the bug in the code.

        Raises:
            StalePatch: the healthy code has changed.
        """
        with put_in(self.edits):
            return self.healthy()

    def healthy(self) -> Verdict:
        """Return the verdict on the same case with the healthy code."""
        return OWN_LAWS.get(self.law, judge)(self.case)


@cache
def exhibits() -> tuple[Exhibit, ...]:
    """Return the published bugs, chapter by chapter."""
    return tuple(bug for file in FILES for bug in bugs_in(file))


@cache
def refuted() -> tuple[Exhibit, ...]:
    """Return the suspicions that do not hold, and the misdiagnoses."""
    return tuple(bugs_in("refuted"))


def bugs_in(file: str) -> Iterator[Exhibit]:
    """Yield each bug in a chapter's file, by the name of its table."""
    chapter = tomllib.loads((BUGS / f"{file}.toml").read_text(encoding="utf-8"))
    heading = chapter.pop("chapter")
    is_refuted = file == "refuted"
    for name, given in chapter.items():
        made = case(given.pop("case"), given.pop("on"), **given.pop("with"))
        edits = () if is_refuted else read_edits(given.pop("fix"))
        references = tuple(given.pop("references"))
        texts = {key: " ".join(text.split()) for key, text in given.items()}
        yield Exhibit(
            name, heading, references=references, case=made, edits=edits, is_refuted=is_refuted,
            **texts,
        )  # fmt: skip


def find(name: str) -> Exhibit:
    """Return the exhibit with this name.

    Raises:
        ValueError: there is none.
    """
    known = {item.name: item for item in (*exhibits(), *refuted())}
    if name in known:
        return known[name]
    parts = [other for other in known if name and name.casefold() in other]
    alike = parts or get_close_matches(name.casefold(), known, n=3, cutoff=0.4)
    near = f"did you mean {', '.join(alike[:3])}?" if alike else "`museum list` names them all."
    raise ValueError(f"the museum has no {name!r}; {near}")


# -- Is a bug caught, and is the healthy code without a finding? -----------------------------------


@dataclass(frozen=True)
class Standing:
    """One exhibit, tried. ``caught_by`` is the law that caught it, if it is the right one.

    ``lacking`` is what the healthy run lacks to be judged by that law: then it does not pass.
    """

    exhibit: Exhibit
    caught_by: str | None
    sentence: str
    healthy_passes: bool
    lacking: str = ""

    @property
    def is_good(self) -> bool:
        """Return whether the bug is caught, if there is one, and the healthy code passes."""
        return self.healthy_passes and (self.exhibit.is_refuted or self.caught_by is not None)


def standing_of(exhibit: Exhibit) -> Standing:
    """Run the case with the bug and without; a refuted one only with the healthy code.

    Raises:
        StalePatch: the healthy code has changed.
    """
    healthy = exhibit.healthy()
    found = None if exhibit.is_refuted else exhibit.with_bug().broke(exhibit.law)
    is_caught = found is not None and exhibit.says in found.sentence
    lacks, sentence = healthy.lacking(exhibit.law), found.sentence if found else ""
    law = exhibit.law if is_caught else None
    return Standing(exhibit, law, sentence, healthy.holds and not lacks, lacks)
