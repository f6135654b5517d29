"""Whatever goes wrong costs nobody else a token, memory, or the run; and who is hit hears why."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
import torch

from minisched.checks.case import Case
from minisched.checks.draw import DRAFTERS, draw, read_design
from minisched.core import FinishReason, Output, Request, SamplingParams
from minisched.devices.base import is_out_of_memory, reason_of
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.loops.design import LOOPS
from minisched.loops.run import run_loop
from minisched.models import sampling, sampling_arrays
from minisched.models.base import read_marks
from minisched.models.hash import HashModel
from minisched.museum.patch import Edit, put_in
from minisched.scheduler import SchedulerConfig
from tests.laws.faults import FAULTS, Fault, try_fault, try_place
from tests.support import (
    AS_OF_0_5_21,
    BACKENDS,
    EVERY_BACKEND,
    SOME_LOOPS,
    VOCAB,
    Workload,
    many,
    tokens,
)

# -- every fault on every loop ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAULTS)
@EVERY_BACKEND
def test_every_fault_is_hit_and_survived(backend: str, kind: str) -> None:
    loops = [name for name, it in LOOPS.items() if backend in it.devices]
    loops = [name for name in loops if FAULTS[kind].fits(name, backend)]
    times = many(2, 40) if backend == "sim" else many(1, 6)
    for at in range(times if loops else 0):
        first = list(FAULTS).index(kind) * 5 + at * 3
        trial = try_place(kind, loops[first % len(loops)], backend, at)
        assert not trial.findings, trial
        assert trial.tells, f"{trial} had nobody to judge"


def test_what_is_not_survived_is_seen() -> None:
    reader = ("reader raises", "serial", "sim", 3)
    with put_in([Edit("engine.frontend:Frontend.deliver", "except Exception", "except KeyError")]):
        assert not try_place(*reader).survived
    assert try_place(*reader).survived


# -- what the matrix has found, each with its smallest case ----------------------------------------


def greedy(rid: str, prompt: list[int], max_new_tokens: int) -> Request:
    return Request(rid, prompt, SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True))


def small(
    requests: list[Request], arrivals: list[int], vocab: int = VOCAB, **more: Any
) -> Workload:
    """A workload without a stop token, in an engine that admits whom it can."""
    config = SchedulerConfig(schedule_conservativeness=0.0, context_len=32, **more)
    return Workload(requests, arrivals, {}, config, frozenset(), vocab)


RETRACTED = Case(
    small(
        [
            greedy("a", [2, 2, 1, 1, 0], 6),
            greedy("b", [1, 1, 2, 2, 1, 1, 0, 2, 2, 0, 0, 0, 2, 1], 6),
        ],
        [0, 0], 3, kv_tokens=40, page_size=4, max_running_requests=2, chunked_prefill_size=20,
        max_prefill_tokens=70, schedule_policy="priority", speculative_algorithm="NGRAM_GPU",
        rules="sglang",
    ),
    "vllm_async", "pool", {"depth": 4},
)  # fmt: skip

DEFECTS: dict[str, tuple[Edit, Case, Fault]] = {
    "a chained step fails with the one before, and its plan is the next step's": (
        Edit(
            "worker.worker:Worker.lay_out",
            "OrNone(tokens) if tokens else None",
            "previous.next_token_ids if previous else None",
        ),
        Case(
            small([greedy("a", [7], 2), greedy("b", [8], 1)], [0, 2], kv_tokens=20),
            "multi_step", "prev_sampled",
        ),
        Fault("sampling raises", 3),
    ),
    "who is built on lazy tokens of a step that fails ends with those whose tokens they are": (
        Edit("worker.worker:Worker.lay_out", "OrNone(tokens) if", "tokens if"),
        Case(
            small([greedy("a", [7], 2), greedy("b", [8], 1)], [0, 1], kv_tokens=20),
            "mlx_async", "chain", {"chain_extend": True},
        ),
        Fault("sampling raises", 1),
    ),
    "drafts that follow a failed step are written into a prefix that others read": (
        Edit(
            "worker.verify:resolve_starts",
            "max(starts[row], min(start, room[row] - inputs.extend_lens[row]))",
            "start",
        ),
        Case(
            small(
                [greedy("a", [1], 1), greedy("b", [1], 1), greedy("c", [1, 1, 2, 2, 1, 1], 1)],
                [0, 0, 0], 3, kv_tokens=10, max_running_requests=1, chunked_prefill_size=-1,
                max_prefill_tokens=79, schedule_policy="dfs-weight", run_first="unified",
                speculative_algorithm="NGRAM_GPU", speculative_num_draft_tokens=3,
            ),
            "overlap", "pool", AS_OF_0_5_21,
        ),
        Fault("forward raises", 3),
    ),
    "the next stage of a pipeline writes through cells that a failed one has left": (
        Edit(
            "loops.vllm_pp:Stage.run",
            "return given._replace(error=error)",
            "raise",
        ),
        Case(
            small(
                [
                    greedy("d", [(7 * i + 9) % 19 for i in range(9)], 2),
                    greedy("c", [(7 * i + 2) % 19 for i in range(2)], 18),
                    greedy("b", [(7 * i + 12) % 19 for i in range(12)], 2),
                ],
                [0, 0, 10], kv_tokens=48, page_size=4, max_running_requests=2,
                disable_radix_cache=True, max_prefill_tokens=5, run_first="unified",
            ),
            "vllm_pp2",
        ),
        Fault("forward raises", 17),
    ),
    "a prompt counts as sent although one of its chunks was lost": (
        Edit("loops.pd:PrefillEngine.send_kv_chunk", "last, *before,", "last,"),
        Case(
            small(
                [greedy("a", [7, 7, 11, 2, 7, 7, 11, 5, 3, 3, 8, 12], 2)], [0], kv_tokens=14,
                max_running_requests=1, max_prefill_tokens=1, run_first="unified",
            ),
            "pd", "prev_sampled", {"latency": 30_000_000, "slot_bytes": 1_500_000},
            CostModel({"schedule": 3_000_000, "process": 3_000_000}, 1_000_000, sample=200_000),
        ),
        Fault("copy fails", 6, 449),
    ),
    "a late token counts although the step before it failed": (
        Edit(
            "scheduler.output_processor:OutputProcessor.fail",
            "if req.lease is lease or self.is_stale(req)", "if req.lease is lease",
        ),
        RETRACTED, Fault("forward raises", 3),
    ),
    "a late token counts although the logits of the one before were NaN": (
        Edit(
            "scheduler.output_processor:OutputProcessor.end_if_nan",
            " and not self.is_stale(req)", "",
        ),
        RETRACTED, Fault("NaN logits", 2, 1),
    ),
    "a client whose plan finds no memory ends the run": (
        Edit(
            "loops.overlap_thread:TpModelWorkerClient.forward_batch_generation",
            "if not is_out_of_memory(error):",
            "if True:",
        ),
        Case(
            small([greedy("a", [7], 2), greedy("b", [8], 6), greedy("c", [9], 6)], [0, 0, 1]),
            "overlap_thread", "prev_sampled",
        ),
        Fault("out of device memory", 15),
    ),
    "a chained step whose inputs find no memory ends the run": (
        Edit(
            "engine.engine:Engine.prepare_batch",
            "if not is_out_of_memory(error):",
            'if phase == "advance step":',
        ),
        Case(
            small([greedy("a", [7], 4), greedy("b", [8], 2)], [0, 2]), "multi_step", "prev_sampled",
        ),
        Fault("out of device memory", 15),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bug", "case", "fault"), DEFECTS.values(), ids=DEFECTS)
def test_a_defect_that_was_here_is_caught_and_cured(bug: Edit, case: Case, fault: Fault) -> None:
    with put_in([bug]):
        trial = try_fault(case, Fault(fault.name, fault.at, fault.pick))
        assert {"identity", "crash"} & {item.law for item in trial.findings}
    assert try_fault(case, fault).survived


# -- aborts and Ctrl-C at every moment -------------------------------------------------------------

NUM_OUTPUTS = 9  # of the small workload: three requests with three tokens
AT_OUTPUT = 7  # added to a choice of ``abort``, which then comes from within ``on_output``

UNLIKE = ("overlap", "overlap_thread", "mlx_async", "vllm_pp2", "mindie_dual", "multi_step")
EVERY_CHANCE = pytest.mark.parametrize("loop", [
    pytest.param(loop, marks=[] if loop in UNLIKE else [pytest.mark.thorough]) for loop in LOOPS
])  # fmt: skip


def strike_at_every_chance(loop: str, kind: Callable[[int], Fault]) -> int:
    """One run for each chance that the loop gives a fault; how many there were."""
    prompts = [[7, 7, 11, 2, 7], [7, 7, 3], [7, 7, 11, 5]]
    requests = [Request(f"r{i}", prompt, tokens(3)) for i, prompt in enumerate(prompts)]
    config = SchedulerConfig(
        kv_tokens=16, max_running_requests=2, chunked_prefill_size=2, context_len=16
    )
    workload = Workload(requests, [0, 0, 2], {}, config, frozenset(), VOCAB)
    case = Case(workload, loop, LOOPS[loop].relays[0])
    for at in range(1, 200):
        trial = try_fault(case, kind(at))
        assert not trial.findings, (at, trial)
        if not trial.is_hit:
            return at - 1
    raise AssertionError("it never ends")


@EVERY_CHANCE
def test_a_request_or_all_of_them_may_be_given_up_at_any_moment(loop: str) -> None:
    for number in range(3) if many(0, 1) else [list(LOOPS).index(loop) % 3]:
        turns = strike_at_every_chance(loop, lambda at, who=number: Fault("abort", at, who))
        assert turns > 5 or loop == "multi_step"
        at_output = AT_OUTPUT + number
        outputs = strike_at_every_chance(loop, lambda at, who=at_output: Fault("abort", at, who))
        assert outputs == NUM_OUTPUTS
    assert strike_at_every_chance(loop, lambda at: Fault("Ctrl-C", at)) >= 4, (
        "Ctrl-C after any turn"
    )


# -- logits that are not numbers -------------------------------------------------------------------

NAN = math.nan


def chosen(backend: str, rows: list[list[float]], params: SamplingParams) -> list[int]:
    """The tokens that a backend chooses from logits."""
    how = [(params, 3, 5)] * len(rows)
    if backend == "sim":
        return [sampling.choose(row, *one) for row, one in zip(rows, how, strict=True)]
    if backend == "thread":
        of_torch: list[int] = sampling_arrays.choose(torch.tensor(rows), how).tolist()
        return of_torch
    with mx.stream(mx.cpu):
        of_mlx: list[int] = sampling_arrays.choose(mx.array(rows), how).tolist()
    return of_mlx


@EVERY_BACKEND
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.8), SamplingParams(0.8, top_k=3, top_p=0.9)],
    ids=["greedy", "sampled", "top"],
)  # fmt: skip
def test_a_token_is_marked_if_and_only_if_a_logit_that_it_was_chosen_from_is_nan(
    backend: str, params: SamplingParams
) -> None:
    good = [[1.0, 2.0, 3.0, -1.0], [0.5, -math.inf, 0.25, 0.0]]
    bad = [[NAN, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, NAN], [-math.inf, NAN, 9.0, 0.0], [NAN] * 4]
    rows = [good[0], *bad[:3], good[1], bad[3]]
    marked = chosen(backend, rows, params)
    assert [token < 0 for token in marked] == [row not in good for row in rows]
    tokens, places = read_marks(marked)
    assert all(0 <= token < 4 for token in tokens) and places == {1, 2, 3, 5}
    assert [marked[0], marked[4]] == [chosen(backend, [row], params)[0] for row in good]


def test_mlx_finds_nan_although_its_argmax_skips_it(monkeypatch: pytest.MonkeyPatch) -> None:
    argmax = mx.argmax  # that of earlier versions does (mlx #4274)
    skips = lambda a, **how: argmax(mx.where(mx.isnan(a), -mx.inf, a), **how)  # noqa: E731
    monkeypatch.setattr(mx, "argmax", skips)
    rows = [[1.0, NAN, 3.0], [NAN, 1.0, 2.0], [1.0, 2.0, NAN], [3.0, 1.0, 2.0]]
    assert chosen("mlx", rows, SamplingParams()) == [-3, -3, -2, 0]


WISHES = {
    "greedy": SamplingParams(max_new_tokens=6),
    "sampled": SamplingParams(1.2, top_k=9, top_p=0.9, max_new_tokens=6),
    "penalties": SamplingParams(repetition_penalty=1.3, logit_bias={5: 2.0}, max_new_tokens=6),
    "grammar": SamplingParams(regex=r"[\x00-\x09]{9}", max_new_tokens=6),
    "logprobs": SamplingParams(return_logprob=True, top_logprobs_num=2, max_new_tokens=6),
}


@SOME_LOOPS
def test_only_the_row_with_nan_ends_and_the_others_keep_their_tokens(
    loop: str, relay: str, options: dict[str, Any]
) -> None:
    for name, wish in WISHES.items():
        if name in LOOPS[loop].refuses:
            continue
        for device in BACKENDS if loop == "overlap_thread" and name == "grammar" else ["sim"]:
            requests = [Request(f"r{i}", [i + 1, 2, 3], wish) for i in range(3)]
            case = Case(small(requests, [0] * 3, kv_tokens=64), loop, relay, options, device=device)
            trial = try_fault(case, Fault("NaN logits", at=3, pick=1))
            assert (trial.is_hit, trial.findings) == (True, ()), (name, device)
            assert (trial.struck, trial.spared) == (1, 2)


@pytest.mark.parametrize("loop", ["overlap:pool", "vllm_async:pool", "mlx_async:pool", "serial"])
def test_a_row_with_drafts_keeps_the_tokens_before_nan(loop: str) -> None:
    drafted = (seed for seed in range(many(9, 100)) if DRAFTERS[seed % len(DRAFTERS)])
    for seed in drafted:
        fault = Fault("NaN logits", 1 + seed % 6, pick=seed)
        assert not try_fault(draw(seed, odd=False).on(read_design(loop)), fault).findings, seed


# -- memory ----------------------------------------------------------------------------------------


def test_what_has_no_memory_is_known_by_what_it_says() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**17)
    assert is_out_of_memory(caught.value)
    assert reason_of(caught.value).startswith("out of device memory (")
    for said in ("[malloc] Unable to allocate 8 bytes.", "[metal::malloc] Attempting to allocate"):
        assert is_out_of_memory(RuntimeError(said))  # MLX's; on a CPU it dies of a real attempt
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(ValueError("out of memory"))
    assert reason_of(RuntimeError("one line\nand another")) == "one line"


# -- requests that can't be run --------------------------------------------------------------------

GOOD = tokens(4)
BAD_REQUESTS = [
    (Request("b0", []), "the prompt is empty"),
    (Request("b1", [1, 99, 2]), "token id 99 is outside the vocabulary, which ends at 18"),
    (Request("b2", [1, -1]), "token id -1 is outside the vocabulary"),
    (Request("b3", [1], SamplingParams(max_new_tokens=0)), "max_new_tokens is 0"),
    (Request("b4", [1], SamplingParams(temperature=-1)), "temperature is -1"),
    (Request("b5", [1], SamplingParams(top_p=0)), "top_p is 0"),
    (Request("b6", [1], SamplingParams(top_k=0)), "top_k is 0"),
    (Request("b7", [1] * 40, GOOD), "the prompt has 40 tokens"),
    (Request("b8", [1] * 25, GOOD), "more than the KV pool of 24 slots"),
    (Request("good", [1], GOOD), "request id 'good' is already in use"),
]


def test_a_bad_request_ends_with_its_reason_and_the_others_finish() -> None:
    good, config = Request("good", [1, 2, 3], GOOD), SchedulerConfig(kv_tokens=24, context_len=32)
    model, heard = HashModel(VOCAB, eos_ids=frozenset()), list[Output]()
    requests = [good, *(bad for bad, _ in BAD_REQUESTS)]
    run_loop("overlap_thread", SimDevice(), model, requests, config, on_output=heard.append)
    for bad, sentence in BAD_REQUESTS:
        assert sentence in bad.error and bad.error.count(".") <= 2
        assert bad.finish_reason is FinishReason.ERROR
        assert [output.error for output in heard].count(bad.error) == 1
    assert good.finish_reason is FinishReason.LENGTH and len(good.output_ids) == 4
