"""Each law is red on bugs that break it: on deliberate ones, found among what is drawn, and on some
that take a case made for them; and green without them. And marks that a law would misread are
not read at all.

The set of deliberate bugs is in ``tests/laws/mutations``, with the place where each was seen first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.case import Case, Failure
from minisched.checks.draw import read_design
from minisched.checks.judge import judge
from minisched.checks.laws import LAWS, Clients
from minisched.checks.many import case_of
from minisched.checks.oracle import OF_HASH, find_unlike
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.registry import library
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.run import make_engine
from minisched.models.hash import HashModel
from minisched.museum.exhibit import case as written_case
from minisched.museum.patch import Edit, changes, compiled, put_in
from minisched.scheduler import SchedulerConfig
from minisched.trace import native
from minisched.trace.marks import COMMON, KNOWN
from tests.laws.faults import try_place
from tests.laws.mutations.mutation import (
    CHOSEN,
    MUTATIONS,
    REVIEWED,
    Mutation,
    Place,
    look_for,
    places,
    seen_before,
)
from tests.support import VOCAB, Workload, tokens

FAULTS = [item for item in MUTATIONS if not item.equivalent]
EXPECTED = [item for item in FAULTS if not item.missed]
LEAST_SEEN = {CHOSEN: 0.95, REVIEWED: 0.8}  # the second list holds what ``check`` did not see
NEXT = 30  # workloads on the same loop that are looked at where a kept place shows nothing any more


def expected() -> list[object]:
    params, had = list[object](), set[str]()
    for item in EXPECTED:
        is_plain = item.device == "sim" and item.laws[0] not in had
        had |= {item.laws[0]} if is_plain else set()
        marks = [] if is_plain else [pytest.mark.thorough]
        params.append(pytest.param(item, id=item.name, marks=marks))
    return params


# -- bugs that are found among what is drawn -------------------------------------------------------


def test_every_law_has_bugs_of_its_own_and_every_bug_a_law() -> None:
    assert {law for item in EXPECTED for law in item.laws} == {"lifetime", *LAWS}
    assert len({item.name for item in MUTATIONS}) == len(MUTATIONS) >= 250
    assert len({item.edits for item in MUTATIONS}) == len(MUTATIONS)
    assert all(bool(item.laws) != bool(item.equivalent) for item in MUTATIONS)
    for faults, least in LEAST_SEEN.items():
        real = [item for item in faults if not item.equivalent]
        assert sum(not item.missed for item in real) >= least * len(real)
    assert seen_before().keys() == {item.name for item in EXPECTED}


def test_every_bug_still_applies() -> None:
    for item in MUTATIONS:
        for change in changes(item.edits):
            assert change.bug != change.healthy, item.name
            assert compiled(change).__code__ != change.function.__code__, item.name


@pytest.mark.parametrize("item", expected())
def test_a_bug_is_seen_by_a_law_that_is_named_for_it(item: Mutation) -> None:
    kept = seen_before()[item.name]
    others = (Place(kept.seed + more, kept.loop) for more in range(1, NEXT))
    assert look_for(item, chain([kept], others)).law, f"{item.name}: {' or '.join(item.laws)}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "item", [item for item in MUTATIONS if item.equivalent or item.missed], ids=lambda it: it.name
)
def test_nothing_is_seen_of_what_is_equivalent_or_known_to_be_missed(item: Mutation) -> None:
    some = islice(places(range(0, 400, 17), item.device), 16)
    sight = look_for(replace(item, laws=tuple(LAWS)), some)
    assert not sight.law, f"{item.name} ({item.equivalent or item.missed}): {sight}"


# -- bugs that take a case made for them -----------------------------------------------------------


def request(rid: str, prompt: Sequence[int], outputs: int, priority: int = 0) -> Request:
    params = SamplingParams(max_new_tokens=outputs)  # nothing they say ends them
    return Request(rid, tuple(prompt), params, priority=priority)


def a_case(
    requests: Sequence[Request],
    loop: str = "overlap",
    arrivals: Sequence[int] = (),
    aborts: dict[int, str] | None = None,
    **settings: Any,
) -> Case:
    rules = {"rules": "sglang,too_many_tokens=refused", "free_rule": "lease"}
    usual = {"kv_tokens": 64, "schedule_conservativeness": 0.0, **rules}
    config = SchedulerConfig(**{**usual, **settings})
    workload = Workload(list(requests), list(arrivals) or [0] * len(requests), aborts or {}, config)
    design = read_design(loop)
    return Case(workload, design.loop, design.relay, design.options)


STARVED = a_case(  # five who need a page each step, one who gives up, with pages on their way
    [*(request(f"r{at}", [at + 1], 12) for at in range(5)),
     request("r8", [9] * 6, 12), request("r9", [10], 1)],  # the last one takes what is there
    "vllm_async:pool:depth=4", [0] * 6 + [7], {6: "r8"}, kv_tokens=31, max_running_requests=7,
    disable_radix_cache=True, rules="sglang,ask_again=every_step",
)  # fmt: skip
IGNORES_EOS = SamplingParams(max_new_tokens=9, ignore_eos=True)
STOPS_AT_HALF = SamplingParams(max_new_tokens=8, stop=("\ufffd",))
RETRACTION = "policy.retraction:Retraction."
RARE: dict[str, tuple[Case, str, Edit]] = {
    "whoever starves starves for ever": (
        STARVED, "progress",
        Edit("scheduler.scheduler:Scheduler.update_running_batch",
             "self.retraction.starved = False", "pass"),
    ),
    "whoever starves is forgotten": (
        STARVED, "order", Edit(RETRACTION + "wait", "self.starved = True", "pass"),
    ),
    "one more gives way while memory comes back": (
        STARVED, "order",
        Edit(RETRACTION + "make_room",
             "if nobody_else or short <= self.leases.pages_returning:", "if nobody_else:"),
    ),
    "somebody comes although one starves": (
        a_case(  # the same for three whose drafts need several pages, with vLLM's one budget
            [*(request(f"r{at}", [at + 1], 10) for at in range(3)),
             request("r8", [9] * 6, 12), request("r9", [10], 1)],
            "overlap:pool", [0] * 4 + [2], {2: "r8"}, kv_tokens=38, max_running_requests=6,
            disable_radix_cache=True, run_first="unified", speculative_algorithm="NGRAM_GPU",
        ), "order",
        Edit("policy.vllm:UnifiedBudget.schedule",
             "if preempted or self.retraction.starved or", "if preempted or"),
    ),
    "under one budget one more gives way while memory comes back": (
        a_case(  # their outputs do not fit together
            [request("r0", [1, 1], 8), request("r1", [2, 2], 8), request("r2", [3, 3, 3], 8)],
            arrivals=[0, 1, 2], kv_tokens=16, max_running_requests=3, run_first="unified",
        ), "order",
        Edit("policy.vllm:UnifiedBudget._make_room",
             "if short <= self.leases.pages_returning:", "if False:"),
    ),
    "the oldest of equals makes way": (
        a_case(  # two of one priority run, and one of a higher one comes later
            [request("r0", [1], 8), request("r1", [2], 8), request("r2", [3], 4, priority=5)],
            "serial", [0, 0, 3], enable_priority_scheduling=True, max_running_requests=2,
            priority_scheduling_preemption_threshold=0,
        ), "order",
        Edit("policy.prefill_adder:PrefillAdder.preempt_to_schedule",
             "-other.admission.order", "other.admission.order"),
    ),
    "the first of equals is retracted": (
        a_case(  # their outputs do not fit together
            [request("r0", [1], 8), request("r1", [2], 8)], "serial", kv_tokens=14,
        ), "order",
        Edit("policy.sglang:fewest_outputs", "reversed(list(running))", "list(running)"),
    ),
    "memory is kept for the outputs of a request that is ending": (
        written_case(  # TensorRT-LLM #18457: c fits once the last step of b is launched
            "a: 4 5 -> 5; b: 7 3 -> 8; c at 8: 9 -> 2", "mini_overlap", kv=17, rows=3,
        ), "progress",
        Edit("policy.mini_sglang:Rest.kept_for",
             "return remain_len + adder.page_size - 1 if remain_len > 0 else 0",
             "return (remain_len or req.params.max_new_tokens) + adder.page_size - 1"),
    ),
    "memory is kept for tokens that are generated already": (
        written_case(  # the same report: c fits once the first step of b is launched
            "a: 4 5 -> 6; b: 7 3 -> 6; c at 2: 9 -> 3", "mini_overlap", kv=11, rows=3,
        ), "progress",
        Edit("policy.mini_sglang:Rest.kept_for",
             "return remain_len + adder.page_size - 1 if remain_len > 0 else 0",
             "return req.params.max_new_tokens + adder.page_size - 1"),
    ),
    "a chained step fails with the one before it": (
        replace(  # r1 comes while a step of r0 fails, and its prompt takes no token of that step
            chained := a_case(
                [request("r0", [1, 2], 8), request("r1", [3, 4], 4)],
                "mlx_async:chain:chain_extend=true", [0, 2],
            ),
            workload=replace(chained.workload, failures=(Failure("r0", 2, "sampling raises"),)),
        ), "crash",
        Edit("worker.worker:Worker.lay_out",
             "step.previous = OrNone(tokens) if tokens else None", "step.previous = tokens"),
    ),
    "pages of a failed step stay in the prefix cache": (
        replace(  # they enter when their step is planned, and it fails
            at_plan := a_case([request("r0", [1, 2], 2)], "vllm_async", rules="vllm"),
            workload=replace(at_plan.workload, failures=(Failure("r0", 0, "forward raises"),)),
        ), "positions",
        Edit("memory.prefix_cache:PrefixCache.spoil",
             "if lease in spoiled or lease not in held", "if False"),
    ),
    "a stop string is found in half a character": (
        replace(  # bytes of UTF-8, and U+FFFD as a stop string
            at_bytes := a_case([replace(request("r0", [1], 8), params=STOPS_AT_HALF)], "serial"),
            workload=replace(at_bytes.workload, vocab_size=256),
        ), "identity",
        Edit("features.stop_strings:StopStrings._look",
             "self._stream.held_back().rstrip(REPLACEMENT)", "self._stream.held_back()"),
    ),
    "a part of a page is kept for whoever comes": (
        a_case(  # who preempts comes with a page at least
            [request("r0", [1] * 10, 7), request("r1", [2] * 10, 5, priority=3)], "serial", [0, 3],
            kv_tokens=20, page_size=4, max_running_requests=1, chunked_prefill_size=4,
            enable_mixed_chunk=True, enable_priority_scheduling=True,
            priority_scheduling_preemption_threshold=0,
        ), "identity",
        Edit("policy.prefill_adder:PrefillAdder.add_alone", "if not extend_len:", "if False:"),
    ),
    "no request is preempted for a row while prompts are never cut": (
        a_case(
            [request("r0", [1] * 3, 9), request("r1", [2] * 3, 9),
             request("r2", [3] * 3, 3, priority=3)], "serial", [0, 0, 4],
            max_running_requests=2, chunked_prefill_size=-1, schedule_policy="priority",
            priority_scheduling_preemption_threshold=0,
        ), "progress",
        Edit("policy.admission:PrefillManager._may_look",
             "preempts = self.preemption_threshold is not None",
             "preempts = self.chunk_size is not None"),
    ),
    "a refusal names a negative rest": (
        a_case(  # a started prompt has taken a part of a page more than the chunk has left
            [replace(request("r0", [1] * 14, 9), params=IGNORES_EOS), request("r1", [2] * 14, 9),
             request("r2", [3] * 7, 3, priority=3)], "mixed", [0, 0, 4],
            kv_tokens=52, page_size=2, max_running_requests=2, chunked_prefill_size=6,
            schedule_policy="priority", priority_scheduling_preemption_threshold=0, rules="",
            free_rule="", schedule_conservativeness=1.0,
        ), "record",
        Edit("policy.prefill_adder:PrefillAdder._no_page", "max(0, self.rem_chunk_tokens or 0)",
             "self.rem_chunk_tokens or 0"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RARE)
def test_a_rare_bug_is_seen_where_it_shows(name: str) -> None:
    case, law, edit = RARE[name]
    healthy = judge(case)
    assert healthy.holds and not healthy.lacking(law)
    with put_in([edit]):
        assert judge(case).broke(law)


def test_a_reason_that_is_lost_is_found_where_something_fails() -> None:
    place = ("reader raises", "serial", "sim", 0)
    assert try_place(*place).survived
    with put_in([Edit("scheduler.scheduler:Scheduler.abort", "error=error", "error=''")]):
        assert "abort" in {item.law for item in try_place(*place).findings}


# -- what is judged, and how closely ---------------------------------------------------------------


def test_a_run_is_not_judged_by_what_it_does_not_have() -> None:
    verdict = judge(a_case([request("a", [1, 2], 3)], "serial"))
    assert verdict.holds
    lacking = {law for law in LAWS if verdict.lacking(law)}
    assert lacking == {"logprobs", "abort", "progress", "order"}


@pytest.mark.parametrize("device", ["thread", "mlx"])
def test_the_tolerance_is_what_a_device_needs_and_no_more(device: str) -> None:
    case = case_of(1, "serial", device)
    verdict = judge(case)
    assert not verdict.broke("logprobs") and not verdict.lacking("logprobs")
    told = [(req, list[Output]()) for req in verdict.workload.requests]
    vocab_size = case.workload.vocab_size
    tolerance = OF_HASH[library(device)]
    assert not list(find_unlike(told, vocab_size, tolerance))
    assert list(find_unlike(told, vocab_size, tolerance / 1e4)), "it is not needed at all"


def test_what_nobody_has_sent_and_what_comes_behind_the_end_is_found() -> None:
    end = Output("a", 3, FinishReason.LENGTH)
    for outputs, said in (
        ([end], []),
        ([end, Output("b", 1)], ["clients received an output of b, which no client"]),
        ([Output("a", None, FinishReason.LENGTH), Output("a", 3)], ["the client of a received an"]),
        ([end, end], ["a ended 2 times"]),
    ):
        req, frontend = Request("a", [1], tokens(1)), Frontend(on_output=lambda output: None)
        clients = Clients(Workload([req], [0], {}, SchedulerConfig()))
        engine = make_engine("serial", SimDevice(), HashModel(VOCAB), SchedulerConfig(), frontend)
        engine.scheduler.on_commit = lambda batch: None
        clients.watch(engine)
        frontend.push(req)
        frontend.take(0)
        req.output_ids, req.finish_reason = [3], FinishReason.LENGTH
        for output in outputs:
            frontend.deliver(output)
        found = [sentence for law, sentence in clients.find([]) if law == "ends"]
        assert len(found) == len(said) and all(map(str.startswith, found, said))


# -- marks that say too little for a law, or something else, are refused ---------------------------

TRACES = Path(__file__).resolve().parents[2] / "traces"
WRONG: dict[str, list[Any]] = {
    "text": [3, None, True, ["a"], {}],
    "texts": [3, None, True, ["a"], {}],
    "number": ["3", None, True, 3.0, float("nan"), [3]],
    "numbers": [3, None, "4 x", "-1", "4,5", "9" * 5000],
    "signed numbers": [3, None, "1-2", "x", "-"],
    "positive": [0, -1, "1", None, 1.5],
    "delta": [0, 2, "1", None],
    "reason": ["", "done", 3, None],
}
GOOD: dict[str, Any] = {"text": "a", "texts": "a", "number": 1, "numbers": "1",
    "signed numbers": "-1", "positive": 1, "delta": -1, "reason": "stop",
}  # fmt: skip
HEADER: dict[str, Any] = {
    **{"format": native.FORMAT, "version": native.VERSION},
    **{"loop": "x", "device": "x", "model": "x", "clock": "wall"},
    **{"slices": [], "edges": [], "counters": []},
}


def refused(marks: list[dict[str, Any]]) -> str:
    with pytest.raises(native.NotATrace) as caught:
        native.from_json(json.dumps({**HEADER, "marks": marks}), "x.json")
    said = str(caught.value)
    assert said.startswith("x.json is a damaged minisched trace: ")
    assert "\n" not in said and len(said) < 250
    return said


def whole(name: str, time: int = 5) -> dict[str, Any]:
    attrs = {key.removesuffix("*"): GOOD[kind] for key, kind in KNOWN[name].items()}
    return {"name": name, "time": time, "attrs": attrs}


def test_the_table_is_the_one_in_the_text() -> None:
    told: dict[str, dict[str, str]] = {}
    text = (TRACES / "README.md").read_text(encoding="utf-8")
    for names, attrs in re.findall(r"^\| ((?:`[a-z ]+`(?:, )?)+) \| (`.*?: .*?) \|", text, re.M):
        found = re.findall(r"`([\w ]+)`(\\\*)?: ([a-z ]+)", attrs)
        for name in re.findall(r"`(.+?)`", names):
            told[name] = {key + "*" * bool(star): kind for key, star, kind in found}
    assert told == KNOWN


@pytest.mark.parametrize("name", KNOWN)
def test_each_attribute_must_be_there_and_of_its_kind(name: str) -> None:
    other = {"name": "my own", "time": 1}
    for key, kind in {**KNOWN[name], **COMMON}.items():
        plain = key.removesuffix("*")
        for value in WRONG[kind]:
            mark = whole(name)
            mark["attrs"][plain] = value
            said = refused([other, mark])
            assert re.search(rf"marks\[1\], an? '{name}', has {plain} = ", said), said
        mark = whole(name)
        mark["attrs"].pop(plain, None)
        if key.endswith("*"):
            native.from_json(json.dumps({**HEADER, "marks": [mark]}))
        else:
            assert re.search(rf"marks\[1\], an? '{name}', lacks '{plain}'", refused([other, mark]))


def test_a_token_for_each_request_and_times_in_order() -> None:
    mark = whole("tokens")
    mark["attrs"]["rids"] = "a b"
    assert "marks[0], a 'tokens', has 2 rids, but 1 tokens" in refused([mark])
    said = refused([whole("insert"), whole("finish", 4)])
    assert "marks[1], a 'finish', is at 4, before marks[0], which is at 5" in said
    sides = [whole("insert"), whole("finish", 4), whole("commit", 6)]
    sides[1]["attrs"]["side"] = "decode"
    text = json.dumps({**HEADER, "marks": sides})
    assert [mark.time for mark in native.from_json(text).marks] == [4, 5, 6]
    alike = [whole("page free"), whole("page free", 6)]
    alike[1]["attrs"]["pages"] = "x"
    assert "marks[1], a 'page free', has pages" in refused(alike)


def test_marks_of_other_names_may_say_anything_but_nothing() -> None:
    strange = {"step": "warm-up", "row": "x", "rid": 7, "pages": 2.5, "ok": True}
    mark = {"name": "my own", "time": 0, "attrs": strange}
    native.from_json(json.dumps({**HEADER, "marks": [mark]}))
    nothing: list[Any] = [None, [], {}]
    for value in nothing:
        said = refused([{"name": "my own", "time": 1, "attrs": {"x": value}}])
        assert "marks[0], a 'my own', has x = " in said
        item = {"id": 3, "lane": "host", "name": "launch", "start": 0, "end": 1}
        data = {**HEADER, "slices": [{**item, "attrs": {"x": value}}], "marks": []}
        with pytest.raises(native.NotATrace, match=r"slice 3 has x = "):
            native.from_json(json.dumps(data))
