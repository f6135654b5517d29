"""Beam search: the outputs of a plain search in every schedule, and memory that is freed once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from minisched.checks.case import Case, Workload
from minisched.checks.draw import Variant, add_beams, all_designs, draw
from minisched.checks.judge import judge
from minisched.checks.oracle import search_alone
from minisched.checks.overlap import measure
from minisched.core import FinishReason, Request, SamplingParams
from minisched.devices.cost import MILLISECOND, SIM_COST
from minisched.devices.registry import open_device
from minisched.devices.sim import SimDevice
from minisched.features.beam_search import BeamWorker, select
from minisched.loops.design import LOOPS
from minisched.loops.run import Run, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from tests.support import every, many, tokens

DESIGNS = [design for design in all_designs() if "beam search" not in design.refuses()]
VOCAB, EOS = 11, frozenset({10})


def alone(req: Request, width: int) -> list[int]:
    """The best output of a search without a cache, a batch and a scheduler."""
    workload = Workload([req], [0], {}, SchedulerConfig(beam_width=width), EOS, VOCAB)
    return search_alone(req, req.params.max_new_tokens, workload).tokens


def search(loop: str, requests: list[Request], width: int, **config: Any) -> Run:
    model = HashModel(VOCAB, eos_ids=EOS)
    found = SchedulerConfig(beam_width=width, **config)
    return run_loop(loop, SimDevice(), model, requests, found, SIM_COST)


# -- every law, on random workloads ----------------------------------------------------------------


@pytest.mark.parametrize("design", every(9, DESIGNS), ids=lambda design: design.name)
def test_no_law_is_broken_and_every_schedule_gives_the_output_of_a_search_alone(
    design: Variant,
) -> None:
    for seed in range(many(3, 15)):
        drawn = draw(seed)
        if not drawn.workload.config.speculative_algorithm:
            add_beams(Random(seed), drawn.workload)
            verdict = judge(drawn.on(design))
            assert verdict.workload.config.beam_width > 1 and verdict.holds, verdict.findings


def test_a_beam_that_ends_early_may_be_the_best_one() -> None:
    requests = [Request(f"r{at}", [at], SamplingParams(max_new_tokens=6)) for at in range(10)]
    run = search("overlap", requests, 3)
    assert run.outputs == {req.rid: alone(req, 3) for req in requests}
    reasons = {req.finish_reason for req in requests}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
    assert all((req.output_ids[-1] == 10) == (req.finish_reason is FinishReason.STOP)
               for req in requests)  # fmt: skip


# -- memory and time -------------------------------------------------------------------------------


def test_beams_share_the_pages_of_a_prompt_and_take_no_more_of_the_pool() -> None:
    """The pool is that of one row for each request, and all of it is free in the end."""

    def used(width: int) -> list[float]:
        trace = search("overlap", [Request("a", [1, 2, 3], tokens(5))], width).trace
        return [item.value for item in trace.counters if item.name == "kv used"]

    assert used(4) == used(1) and max(used(4)) == 7


def test_the_host_waits_for_no_beam() -> None:
    def run(loop: str) -> Run:
        requests = [Request(f"r{at}", [at], tokens(12)) for at in range(4)]
        return search(loop, requests, 4, disable_radix_cache=True)

    serial, overlap = run("serial"), run("overlap")
    assert serial.outputs == overlap.outputs and measure(overlap.trace).wasted_rows == 0
    assert overlap.trace.end < 0.7 * serial.trace.end


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loop", [loop for loop, it in LOOPS.items() if "beam search" in it.refuses]
)
def test_a_loop_says_why_it_does_not_search(loop: str) -> None:
    with pytest.raises(ValueError, match=f"beam_width is 2, but loop '{loop}' takes no beam"):
        search(loop, [Request("a", [1])], 2)


@pytest.mark.parametrize(
    ("loop", "width", "config", "reason"),
    [
        ("overlap:token_pool", 2, {}, "its steps have one row for each request"),
        ("serial", 2, {"speculative_algorithm": "NGRAM"}, "a beam has no drafts"),
        ("serial", 0, {}, "beam_width is 0, but it must be at least 1"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(
    loop: str, width: int, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        search(loop, [Request("a", [1])], width, **config)


def test_a_real_device_is_refused() -> None:
    device = open_device("thread")
    with pytest.raises(ValueError, match="on sim only"):
        run_loop("overlap", device, HashModel(), [Request("a", [1])], SchedulerConfig(beam_width=2))


@pytest.mark.parametrize("wish", [
    {"temperature": 0.5}, {"presence_penalty": 0.5}, {"logit_bias": {1: 1.0}},
    {"return_logprob": True},
])  # fmt: skip
def test_a_request_that_changes_one_row_of_logits_is_refused(wish: dict[str, Any]) -> None:
    run = search("overlap", [Request("a", [1], SamplingParams(**wish)), Request("b", [2])], 2)
    assert run.errors["a"].startswith("beam search takes no ") and run.outputs["b"]


def test_a_vocabulary_with_too_few_tokens_refuses_a_request() -> None:
    few = SamplingParams(stop_token_ids=frozenset(range(9)))
    run = search("overlap", [Request("a", [1], few), Request("b", [2])], 2)
    assert "has only 11 tokens, 10 of which end an output" in run.errors["a"] and run.outputs["b"]


def test_a_replay_has_no_tokens_to_choose_from(cli: Any) -> None:
    given = Path(__file__).resolve().parents[1] / "cli/given/shared.jsonl"
    code, _, said = cli(f"replay {given} --beam-width 4")
    assert code == 2 and "--beam-width is 4, but a replay has no tokens" in said


@pytest.mark.thorough
def test_the_page_has_the_figures_of_its_command(cli: Any) -> None:
    page = Path(__file__).resolve().parents[2] / "lessons/site/docs/designs.md"
    text = page.read_text("utf-8").partition("## Rows that fork")[2].partition("\n## ")[0]
    _, out, _ = cli(text.partition("\nminisched ")[2].partition("\n")[0] + " --json")
    for found in json.loads(out)["runs"]:
        assert f"{found['makespan_ns'] / MILLISECOND:,.1f} ms" in " ".join(text.split()), found


def test_logits_that_are_not_numbers_give_no_score() -> None:
    found = select([[0.5, 0.1], [math.nan, 0.1]], [0.0, 0.0], 2, ())
    assert len(found.tokens) == 2 and all(map(math.isnan, found.scores))


def test_a_fork_that_keeps_its_own_kv_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BeamWorker, "fork", lambda self, item, parents: None)
    requests = [Request(f"r{at}", [at], tokens(6)) for at in range(6)]
    run = search("overlap", requests, 3)
    assert run.outputs != {req.rid: alone(req, 3) for req in requests}


def test_a_request_of_endless_length_is_refused_and_the_judge_comes_to_its_end() -> None:
    requests = [Request("a", [1, 2], tokens(3)), Request("b", [1, 2], tokens(10**30))]
    workload = Workload(requests, [0, 0], {}, SchedulerConfig(beam_width=2))
    assert judge(Case(workload, "overlap")).holds
