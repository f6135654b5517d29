"""What a step returns, and how many of them are in flight."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from minisched.checks.case import Case
from minisched.checks.judge import judge
from minisched.core import ForwardMode, Request, SamplingParams
from minisched.devices.base import WRONG_TOKEN
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.features.logprobs import LogprobStep
from minisched.loops.design import LOOPS
from minisched.loops.run import make_engine, run_loop
from minisched.models.base import ForwardBatch
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from minisched.worker import Step, Worker
from minisched.worker.verify import VerifyStep
from tests.support import EVERY_BACKEND, Workload, hash_model, no_rows, open_device

# -- generation_batch_result: published fields, and one answer -------------------------------------


def test_a_step_has_the_published_fields_of_which_it_has_the_thing() -> None:
    plain, with_drafts = ({item.name for item in fields(kind)} for kind in (Step, VerifyStep))
    assert {"logits_output", "next_token_ids", "copy_done", "delay_sample_func"} <= plain
    assert {"num_accepted_tokens", "next_draft_input"} <= with_drafts - plain


@EVERY_BACKEND
def test_who_asks_again_gets_the_same(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Loops on MLX ask a step for its tokens once for each of its parts.

    Chunks of 4 of a prompt of 10, of which log-probabilities are wanted from 6 on (SGLang).
    """
    kept: list[tuple[Step, Any]] = []
    result = Step.result

    def keep(pending: Step) -> Any:
        kept.append((pending, result(pending)))
        return kept[-1][1]

    monkeypatch.setattr(Step, "result", keep)
    params = SamplingParams(max_new_tokens=2, return_logprob=True, logprob_start_len=6)
    requests = [Request("r", list(range(10)), params), Request("plain", [5, 6])]
    config = SchedulerConfig(chunked_prefill_size=4)
    run_loop("serial", open_device(backend), hash_model(backend, frozenset()), requests, config)
    assert all(result(pending) is found and not found.error for pending, found in kept)
    prompts = [one for one, _ in kept if one.batch.num_extend_reqs]
    parts = [[part for part in one.parts if isinstance(part, LogprobStep)] for one in prompts]
    lens = [([*map(len, one.batch.ids)], part.starts)
            for one, (part,) in zip(prompts, parts, strict=True)]  # fmt: skip
    assert lens == [([4], [4]), ([4], [2]), ([2, 2], [0, 2])]


def test_sampling_that_nobody_launched_is_a_result_with_an_error() -> None:
    edit = Edit("worker.worker:Worker.launch", "if delay_sample:", "if True:")
    with put_in([edit]):
        run = run_loop("serial", SimDevice(), HashModel(), [Request("r", [1])])
    assert "no thread has launched it since" in run.errors["r"]


def test_a_failed_step_has_ended_before_anybody_hears_of_it() -> None:
    ended: list[str] = []

    def op(name: str, error: Exception | None = None) -> Any:
        def synchronize() -> None:
            ended.append(name)
            if error:
                raise error

        return SimpleNamespace(synchronize=synchronize)

    batch = no_rows(7, ForwardMode.DECODE, 0)
    late = RuntimeError("no memory")
    pending = Step(batch, logits_output=op("logits"), next_token_ids=op("tokens"))
    pending.copy_done = op("copy", late)
    pending.launched = [op for op in (pending.logits_output, pending.next_token_ids) if op]
    pending.launched += [pending.copy_done] if pending.copy_done else []
    assert "step 7 failed: no memory" in pending.result().error
    assert ended == ["copy", "logits", "tokens", "copy"]


def reuse_at_once(worker: Worker[Any], inputs: ForwardBatch) -> None:
    """What a caching allocator does: memory that nobody names any more belongs to somebody else."""
    record = worker.batch_record_buf
    old = record[0] if len(record) == record.maxlen else None
    record.append(inputs)
    for item in fields(ForwardBatch) if old is not None else ():
        if item.type == "Array" and (array := getattr(old, item.name)) is not None:
            array[:] = [WRONG_TOKEN] * len(array)


@pytest.mark.parametrize("loop", ["overlap", "overlap_thread"])
def test_with_an_allocator_that_reuses_at_once_one_slot_less_gives_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    params = SamplingParams(max_new_tokens=8, ignore_eos=True)
    requests = [Request(f"r{i}", [5 + i, 2, 3], params) for i in range(2)]
    workload = Workload(requests, [0, 0], {}, SchedulerConfig(kv_tokens=40, context_len=32))
    cost = CostModel({"schedule": 1, "launch": 1}, forward_base=50, sample=5, copy=3)
    case = Case(workload, loop, "pool", {}, cost)
    monkeypatch.setattr(Worker, "record_batch_in_overlap", reuse_at_once)
    assert not judge(case).broke("identity")
    with put_in([Edit("worker.worker:Worker.__init__", "max(pins, depth)", "1")]):
        assert judge(case).broke("identity")


# -- a loop's depth is one number, given once ------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "options", "depth"),
    [
        ("vllm_async", {}, 2),
        ("vllm_async", {"depth": 5}, 5),
        ("vllm_pp4", {}, 4),
        ("mindie_placeholder", {}, 1),
        ("overlap", {}, 2),
    ],
)
def test_a_loops_depth_is_that_of_its_worker(
    loop: str, options: dict[str, Any], depth: int
) -> None:
    """And it is not started deeper than its engine was made."""
    relay = "pool" if "pool" in LOOPS[loop].relays else "host"
    parts = loop, SimDevice(), HashModel(), SchedulerConfig(), Frontend()
    engine = make_engine(*parts, relay=relay, **options)
    assert engine.worker.depth == len(engine.worker.outputs) == depth
    if options:
        with pytest.raises(ValueError, match=r"is \d, but the worker was made for \d steps"):
            LOOPS[loop].start(make_engine(*parts, relay=relay), **options)
