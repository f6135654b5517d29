"""What clients hear, log-probabilities and aborts: each law is loud on its bugs, wherever."""

from __future__ import annotations

from typing import Any

import pytest

from minisched.checks.case import Case
from minisched.checks.clients import find_ends, told_each
from minisched.checks.draw.designs import read_design
from minisched.checks.faults.matrix import Place, try_place
from minisched.checks.judge import judge
from minisched.checks.many import case_of
from minisched.checks.tokens.logprobs import OF_HASH, find_unlike
from minisched.checks.tokens.oracle import alone
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from tests.support import VOCAB, Workload

END, REFUSE = "scheduler.ending:Endings._end", "scheduler.ending:Endings._refuse"
FINISH, ABORT = "scheduler.ending:Endings._finish", "scheduler.scheduler:Scheduler.abort"
STREAM, PLACE = "engine.engine:Engine._stream_output", "worker.logprobs:read_place"
DELIVER = "scheduler.logprobs:deliver_logprobs"
EACH = "for output in outputs:\n            self.frontend.deliver(output)"
GIVES_UP = "[self._finish(req, FinishReason.ABORT, error=error)] if req else []"
REASON = "FinishReason.STOP if is_stop else FinishReason.LENGTH"
TOLD = "return Output(req.name, None, reason, problem, namesake=other is not None)"

BUGS: dict[str, tuple[str, str, Edit]] = {
    "stop for length": (
        "client", "serial",
        Edit(END, REASON, "FinishReason.LENGTH if is_stop else FinishReason.STOP"),
    ),
    "another reason is told": (
        "client", "serial",
        Edit(FINISH, "Output(req.rid, token, reason", "Output(req.rid, token, FinishReason.STOP"),
    ),
    "a refusal's sentence is not told": (
        "client", "serial", Edit(REFUSE, TOLD, TOLD.replace("problem", "''")),
    ),
    "a refusal has another sentence": (
        "client", "serial",
        Edit(REFUSE, "req.finish_reason, req.error = reason, problem",
             "problem = 'no.'\n        req.finish_reason, req.error = reason, problem"),
    ),
    "one is refused as a namesake when nobody has its id": (
        "identity", "serial",
        Edit("scheduler.ending:Endings._is_taken", "if req.rid in self.live:",
             "if req.rid in self.live or self.num_received == 1:"),
    ),
    "a refusal as a namesake is told as its end": (
        "client", "mindie_placeholder:prev_sampled",
        Edit(REFUSE, "namesake=other is not None", "namesake=False"),
    ),
    "outputs are held back to an end": (
        "client", "overlap",
        Edit(STREAM, EACH,
             "self.held = [*getattr(self, 'held', ()), *outputs]\n"
             "        while any(o.finish_reason for o in outputs) and self.held:\n"
             "            self.frontend.deliver(self.held.pop(0))"),
    ),
    "outputs come a turn late": (
        "client", "overlap",
        Edit(STREAM, EACH,
             "self.held, outputs = list(outputs), getattr(self, 'held', ())\n        " + EACH),
    ),
    "a token is counted twice": (
        "client", "serial",
        Edit("engine.metrics:RequestMetrics.on_token", "self.output_tokens += 1",
             "self.output_tokens += 1 + (self.output_tokens == 2)"),
    ),
    "a prompt is counted as shorter": (
        "client", "serial",
        Edit("engine.metrics:Metrics.on_received", "req.known_len", "req.known_len - 1"),
    ),
    "what the cache gave is not counted": (
        "client", "vllm_batch_queue:host:depth=8",
        Edit("engine.metrics:Metrics.on_batch", "= now, req.hit_len", "= now, 0"),
    ),
    "a value is wrong in the last bit": (
        "logprobs", "serial", Edit(PLACE, "(place[0], token", "(place[0] * (1 + 2**-52), token"),
    ),
    "the top tokens are dropped": ("logprobs", "serial", Edit(PLACE, "(best))", "(best)[:0])")),
    "another column is read": ("logprobs", "serial", Edit(PLACE, "(place[0],", "(place[-1],")),
    "a prompt's are wrong": (
        "logprobs", "serial",
        Edit("scheduler.logprobs:learn_prompt", "token_logprobs += found",
             "token_logprobs += [item._replace(logprob=-1.0) for item in found]"),
    ),
    "a prompt's are told with each token": (
        "logprobs", "serial",
        Edit("scheduler.logprobs:of_prompt", "[] if req.output_token_logprobs else ", ""),
    ),
    "the request knows them, its client does not": (
        "logprobs", "serial",
        Edit(DELIVER, "output.logprobs = Logprobs(of_prompt(req), [logprob])", "pass"),
    ),
    "the client knows them, the request does not": (
        "logprobs", "serial",
        Edit(DELIVER, "req.output_token_logprobs.append(logprob)", "pass"),
    ),
    "a chunk's are lost": (
        "logprobs", "mindie_plugin",
        Edit(DELIVER, "if said or req.lease is row.lease or", "if said or"),
    ),
    "they are not sent with the KV": (
        "logprobs", "pd:prev_sampled",
        Edit("loops.pd_prefill:logprobs_of", "if not req.params.return_logprob:", "if True:"),
    ),
    "an abort is ignored": ("abort", "serial", Edit(ABORT, GIVES_UP, "[]")),
    "an abort ends with another reason": (
        "abort", "serial", Edit(ABORT, "FinishReason.ABORT", "FinishReason.LENGTH"),
    ),
    "an abort is heard a turn late": (
        "abort", "serial",
        Edit("engine.inbox:Inbox.abort_request", "rids = list",
             "self.last, message = message, getattr(self, 'last', type(message)())\n"
             "    rids = list"),
    ),
    "nobody gave up, and it ends so": (
        "abort", "serial", Edit(END, "else FinishReason.LENGTH", "else FinishReason.ABORT"),
    ),
    "a token comes after an abort": (
        "abort", "serial",
        Edit(ABORT, f"return {GIVES_UP}",
             "found = [self._finish(req, FinishReason.ABORT, error=error)] if req else []\n"
             "    if req:\n        req.output_ids.append(0)\n    return found"),
    ),
}  # fmt: skip
"""A bug, the law that has to see it, and a loop on which there is something to see."""


@pytest.mark.parametrize("name", BUGS)
def test_a_law_sees_the_bug(name: str) -> None:
    """In one of the first workloads that are drawn; and without the bug that one is fine."""
    law, loop, bug = BUGS[name]
    with put_in([bug]):
        cases = (case_of(seed, loop) for seed in range(120))
        case = next(case for case in cases if judge(case).broke(law))
    healthy = judge(case)
    assert healthy.holds and not healthy.lacking(law)


# -- wherever it is --------------------------------------------------------------------------------

PLACES = {
    "waits": ("serial", "req in self.waiting_queue"),
    "is between two chunks": ("overlap:pool", "self.prefill.chunked_req is not None"),
    "decodes, with nothing in flight": (
        "serial", "req in self.decode.running_reqs and not self.batches_in_flight"
    ),
    "is in a step in flight": (
        "overlap:pool", "req in self.decode.running_reqs and self.batches_in_flight > 0"
    ),
    "is in four steps in flight": ("vllm_async:pool:depth=4", "self.batches_in_flight >= 3"),
    "has lost its memory with output on its way": (
        "vllm_async:pool:depth=4", "req.num_stale_output_tokens"
    ),
    "waits for pages on the other side": ("pd:pool", "req.bootstrap_room in self.prealloc_queue"),
    "is being transferred": ("pd:pool", "req.lease and req.lease.num_transfers"),
}  # fmt: skip
"""Where somebody may be who gives up: a loop, and how its scheduler knows."""
TURNS = range(40)
COST = CostModel({"schedule": 5, "launch": 1, "process": 5}, 10, 0, 2, 1)
LINK = {"latency": 20, "bytes_per_second": 10**9, "slot_bytes": 9}


def given_up(loop: str, turn: int) -> Case:
    """Two requests in a pool for one; the newer one's client gives up in a turn."""
    params = [SamplingParams(max_new_tokens=count, ignore_eos=True) for count in (14, 10)]
    requests = [Request("old", [1, 2, 3], params[0]), Request("new", list(range(12)), params[1])]
    config = SchedulerConfig(
        kv_tokens=30, schedule_conservativeness=0.0, context_len=32, chunked_prefill_size=4
    )
    workload = Workload(requests, [0, 0], {turn: "new"}, config)
    design = read_design(loop)
    options = LINK if loop.startswith("pd") else design.options
    return Case(workload, design.loop, design.relay, options, COST)


@pytest.mark.parametrize("place", PLACES)
def test_whoever_gives_up_ends_in_that_turn_wherever_it_is(place: str) -> None:
    """In one turn or another it was there: whoever is deaf just then is found, and only then."""
    loop, condition = PLACES[place]
    cases = [given_up(loop, turn) for turn in TURNS]
    assert all(judge(case).holds for case in cases)
    deaf = Edit(ABORT, "if req else []", f"if req and not ({condition}) else []")
    with put_in([deaf]):
        found = [case for case in cases if judge(case).broke("abort")]
    assert 0 < len(found) < len(TURNS)


# -- where something has gone wrong ----------------------------------------------------------------

LOST: dict[str, tuple[str, Place, Edit]] = {
    "why a step failed": (
        "client",
        Place("forward raises", "serial", "sim", 0),
        Edit(FINISH, "Output(req.rid, token, reason, error)", "Output(req.rid, token, reason)"),
    ),
    "that its reader is gone": (
        "abort",
        Place("reader raises", "serial", "sim", 0),
        Edit(ABORT, "error=error", "error=''"),
    ),
}


@pytest.mark.parametrize("what", LOST)
def test_a_reason_that_is_lost_is_found_where_something_fails(what: str) -> None:
    law, place, bug = LOST[what]
    assert try_place(place).trial.survived
    with put_in([bug]):
        assert law in {item.law for item in try_place(place).trial.findings}


# -- what is judged, and how closely ---------------------------------------------------------------


def test_a_run_without_aborts_or_log_probabilities_is_not_judged_by_them() -> None:
    req = Request("a", [1, 2], SamplingParams(max_new_tokens=3))
    verdict = judge(Case(Workload([req], [0], {}, SchedulerConfig()), "serial", "host"))
    assert verdict.holds and not verdict.lacking("client")
    assert verdict.lacking("logprobs") == "nobody was given log-probabilities"
    assert verdict.lacking("abort") == "nobody was given up"


def test_an_id_of_any_kind_is_judged() -> None:
    """Of seed 951 somebody's id is a list."""
    assert any(not isinstance(req.rid, str) for req in case_of(951, "serial").workload.requests)
    assert judge(case_of(951, "serial")).holds


@pytest.mark.parametrize("device", ["thread", "mlx"])
def test_the_tolerance_is_what_a_device_needs_and_no_more(device: str) -> None:
    """To the last bit on ``sim``; elsewhere the exponential is another one, and little off."""
    case = case_of(10, "serial", device)
    verdict = judge(case)
    assert not verdict.broke("logprobs") and not verdict.lacking("logprobs")
    told = [(req, list[Output]()) for req in verdict.workload.requests]
    vocab_size = case.workload.vocab_size
    assert not list(find_unlike(told, vocab_size, OF_HASH[device]))
    assert list(find_unlike(told, vocab_size, OF_HASH[device] / 1e4)), "it is not needed at all"


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"max_new_tokens": 3}, FinishReason.LENGTH),
        ({"max_new_tokens": 3, "stop_token_ids": frozenset(range(VOCAB))}, FinishReason.STOP),
        ({"max_new_tokens": 1, "stop_token_ids": frozenset(range(VOCAB))}, FinishReason.STOP),
        ({"max_new_tokens": 3, "regex": "("}, FinishReason.ERROR),
    ],
)
def test_the_oracle_says_why_a_request_ends(params: dict[str, Any], reason: FinishReason) -> None:
    req = Request("a", [1, 2], SamplingParams(ignore_eos=True, **params))
    workload = Workload([req], [0], {}, SchedulerConfig())
    truth = alone(workload, req)
    assert truth.finish_reason is reason and bool(truth.error) == (reason is FinishReason.ERROR)
    refused = alone(workload, req, lambda req: "it is refused.")
    assert refused == ([], FinishReason.ERROR, "it is refused.")


def test_what_nobody_has_sent_and_what_comes_behind_the_end_is_found() -> None:
    req = Request("a", [1], output_ids=[3], finish_reason=FinishReason.LENGTH)
    workload = Workload([req], [0], {}, SchedulerConfig())
    end = Output("a", 3, FinishReason.LENGTH)
    for outputs, said in (
        ([end], []),
        ([end, Output("b", 1)], ["clients heard of b, whom nobody has sent"]),
        ([Output("a", None, FinishReason.LENGTH), Output("a", 3)], ["a heard something behind"]),
        ([end, end], ["a ended 2 times"]),
    ):
        found = list(find_ends(told_each(workload, outputs), outputs))
        assert len(found) == len(said) and all(map(str.startswith, found, said))
