"""The excerpt of MLX's loop: its order is right, and its tokens are not, read off its runs."""

from __future__ import annotations

from minisched.checks.overlap.overlap import measure
from minisched.checks.tokens.oracle import hash_oracle
from minisched.export.mlx_finish import in_flight
from minisched.export.mlx_runs import loop_run, sketch_run
from minisched.export.pictures.mlx import sketch
from minisched.export.views.lazy_arrays import arrays_of
from minisched.loops.mlx_sketch import mlx_sketch
from minisched.loops.registry import LOOPS
from minisched.trace import Trace
from tests.support import Picture, check_picture


def most_in_flight(trace: Trace) -> int:
    """Launched and not yet processed: the most at any moment."""
    return max(count for _, count in in_flight(trace))


def truths() -> dict[str, list[int]]:
    """What each request gets alone."""
    return {
        req.rid: hash_oracle(
            list(req.prompt), req.params, req.sampling_key, 257, frozenset({256})
        ).tokens
        for req in loop_run().requests
    }


def test_it_is_no_loop_to_choose() -> None:
    assert all(spec.run is not mlx_sketch for spec in LOOPS.values())


def test_its_order_is_the_originals_so_it_takes_the_same_time() -> None:
    ours, theirs, handed_over = loop_run(), sketch_run(), sketch_run(hands_over=True)
    assert most_in_flight(ours.trace) == most_in_flight(theirs.trace) == 2
    assert ours.trace.end == theirs.trace.end == handed_over.trace.end == 107_700_000
    reports = [measure(run.trace) for run in (ours, theirs, handed_over)]
    assert len({(report.steps, report.bubble_ns, report.host_hidden_ns) for report in reports}) == 1
    assert ours.outputs == handed_over.outputs == truths(), "its one mistake put right"


def test_its_chained_steps_run_on_tokens_that_are_one_too_old() -> None:
    theirs = sketch_run()
    for rid, truth in truths().items():
        got = theirs.outputs[rid]
        assert got[:2] == truth[:2], "the tokens of the prompt and of the fresh decode are right"
        assert got[2] != truth[2], "the first chained step was given the prompt's token again"
    wrong = [mark.attrs for mark in theirs.trace.marks if mark.name == "wrong token"]
    first = {str(one["rid"]): (one["got"], one["needs"]) for one in reversed(wrong)}
    assert first == {rid: (truth[0], truth[1]) for rid, truth in truths().items()}


def test_nobody_hands_it_a_lazy_token() -> None:
    for run in (loop_run(), sketch_run(hands_over=True)):
        assert any(array.source for array in arrays_of(run.trace))
    assert arrays_of(sketch_run().trace) == [], "its steps are built on no array"


def test_the_picture_shows_both() -> None:
    picture = Picture(sketch())
    check_picture(picture)
    assert "mlx_sketch against mlx_async" in picture.words and "needs" in picture.words
