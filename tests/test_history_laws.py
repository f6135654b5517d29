"""Grammars and penalties switched on: every loop gives each request what it would get alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import grammar_of, hash_oracle
from minisched.core import FinishReason
from minisched.devices.cost import CostModel
from minisched.loops.registry import LOOPS
from tests.pd_runs import check_pd, links, play_pd
from tests.support import (
    EVERY_LOOP,
    LOOP_OPTIONS,
    Workload,
    check_ends,
    check_identity,
    check_leaks,
    check_no_thread_left,
    demanding,
    hash_model,
    in_real_time,
    open_device,
    params_with_history,
    play,
    regexes,
    timed_workloads,
    without_refused,
)
from tests.test_speculation import EVERY, VOCAB, speculative_workloads, target

costs = st.builds(
    lambda host, mask, late, forward, sample, copy: CostModel(
        {"schedule": host, "launch": 1, "process": host, "mask": mask, "launch sample": late},
        forward, 0, sample, copy,
    ),
    host=st.sampled_from([0, 1, 5, 30]),
    mask=st.sampled_from([0, 3, 25]),
    late=st.sampled_from([0, 2]),
    forward=st.sampled_from([1, 4, 10]),
    sample=st.sampled_from([0, 2]),
    copy=st.sampled_from([0, 1, 9]),
)  # fmt: skip


def check(
    workload: Workload, loop: str, relay: str, options: dict[str, Any], backend: str = "sim",
    cost: CostModel | None = None,
) -> None:  # fmt: skip
    """All laws on one loop; of what it refuses, nobody is disturbed."""
    device, model = open_device(backend), hash_model(backend, workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost or CostModel())
    check_ends(workload, outputs)
    check_leaks(engine)
    check_identity(without_refused(workload, loop, relay))
    assert not engine.worker.unsampled.adjustments, "every mask was taken, and once"


@EVERY_LOOP
@given(workload=demanding(), cost=costs)
@settings(max_examples=20, deadline=None)
def test_laws_on_sim(
    loop: str, relay: str, options: dict[str, Any], workload: Workload, cost: CostModel
) -> None:
    check(workload, loop, relay, options, cost=cost)


@in_real_time(LOOP_OPTIONS)
@given(workload=demanding())
@settings(max_examples=6, deadline=None)
def test_laws_in_real_time(
    backend: str, loop: str, relay: str, options: dict[str, Any], workload: Workload
) -> None:
    check(workload, loop, relay, options, backend)
    check_no_thread_left()


@pytest.mark.parametrize("relay", LOOPS["mixed"].relays)
@given(workload=demanding(), cost=costs)
@settings(max_examples=25, deadline=None)
def test_laws_of_mixed(relay: str, workload: Workload, cost: CostModel) -> None:
    """It settles who runs by itself, and needs chunks for that."""
    if workload.config.chunked_prefill_size == -1:
        page_size = workload.config.page_size
        workload.config = replace(workload.config, chunked_prefill_size=2 * page_size)
    check(workload, "mixed", relay, {}, cost=cost)


@pytest.mark.parametrize("relay", LOOPS["pd"].relays)
@given(workload=demanding(timed_workloads), options=links, cost=costs)
@settings(max_examples=25, deadline=None)
def test_laws_of_pd(
    relay: str, workload: Workload, options: dict[str, Any], cost: CostModel
) -> None:
    """Each side compiles a request's grammar; the prompt's token takes the one to the other."""
    check_pd(workload, play_pd(workload, options, relay=relay, cost=cost))


# -- with speculation ------------------------------------------------------------------------------


@st.composite
def demanding_speculation(draw: st.DrawFn, algorithm: str) -> Workload:
    """Requests of few tokens, with drafts, of which many follow a regex or have penalties."""
    workload: Workload = draw(speculative_workloads(algorithm))
    for req in workload.requests:
        wanted = draw(params_with_history)
        req.params = replace(
            req.params,
            frequency_penalty=wanted.frequency_penalty,
            presence_penalty=wanted.presence_penalty,
            repetition_penalty=wanted.repetition_penalty,
            regex=draw(st.one_of(st.none(), regexes(VOCAB))),
        )
    return workload


def check_speculation(
    workload: Workload, spec: Any, backend: str, cost: CostModel | None = None
) -> None:
    """As ``check``, for a model with hardly any vocabulary."""
    loop, relay, options, _ = spec
    device, model = open_device(backend), target(backend, workload.eos_ids)
    engine, outputs = play(workload, loop, relay, options, device, model, cost or CostModel())
    check_ends(workload, outputs)
    check_leaks(engine)
    for req in workload.requests:
        try:
            grammar = grammar_of(req, VOCAB, workload.eos_ids)
        except ValueError as error:
            assert req.error in (str(error), "") and not req.output_ids
            continue
        truth = hash_oracle(
            list(req.prompt), req.params, req.sampling_key, VOCAB, workload.eos_ids, grammar
        ).tokens
        is_cut = req.finish_reason is FinishReason.ABORT
        assert req.output_ids == (truth[: len(req.output_ids)] if is_cut else truth), req.error


@EVERY
@given(data=st.data(), cost=costs)
@settings(max_examples=25, deadline=None)
def test_drafts_never_change_tokens_that_history_decides(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any, cost: CostModel
) -> None:
    workload = data.draw(demanding_speculation(algorithm))
    check_speculation(workload, (loop, relay, options, algorithm), "sim", cost)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@EVERY
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_nor_in_real_time(
    loop: str, relay: str, options: dict[str, Any], algorithm: str, data: Any, backend: str
) -> None:
    workload = data.draw(demanding_speculation(algorithm))
    check_speculation(workload, (loop, relay, options, algorithm), backend)
    check_no_thread_left()
