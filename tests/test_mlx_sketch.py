"""The widely copied sketch of MLX's loop: what it would do wrong, read off its runs."""

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

from .svg_reader import Picture, check_picture


def most_in_flight(trace: Trace) -> int:
    """Launched and not yet processed: the most at any moment."""
    return max(count for _, count in in_flight(trace))


def truths() -> dict[str, list[int]]:
    """What each request gets alone."""
    return {
        req.rid: hash_oracle(list(req.prompt), req.params, req.sampling_key, 257, frozenset({256}))
        for req in loop_run().requests
    }


def test_it_is_no_loop_to_choose() -> None:
    assert all(spec.run is not mlx_sketch for spec in LOOPS.values())


def test_it_finalizes_first_so_the_device_idles_whenever_the_host_works() -> None:
    ours, theirs = loop_run(), sketch_run()
    assert theirs.outputs == ours.outputs == truths(), "the host has every token when it launches"
    assert most_in_flight(ours.trace) == 2 and most_in_flight(theirs.trace) == 1
    overlapped, serial = measure(ours.trace), measure(theirs.trace)
    assert serial.host_hidden_ns == 0 < overlapped.host_hidden_ns
    assert len(serial.bubbles) == serial.steps - 1, "one after every step"
    assert serial.makespan_ns > overlapped.makespan_ns


def test_with_the_order_alone_put_right_it_runs_on_tokens_that_are_one_too_old() -> None:
    ours, theirs = loop_run(), sketch_run(finalize_first=False)
    assert most_in_flight(theirs.trace) == 2
    assert measure(theirs.trace).makespan_ns == measure(ours.trace).makespan_ns, "as fast, and"
    for rid, truth in truths().items():
        got = theirs.outputs[rid]
        assert got[:2] == truth[:2], "the tokens of the prompt and of the fresh decode are right"
        assert got[2] != truth[2], "the first chained step was given the prompt's token again"


def test_nobody_hands_it_a_lazy_token() -> None:
    assert any(array.source for array in arrays_of(loop_run().trace))
    for finalize_first in (True, False):
        trace = sketch_run(finalize_first).trace
        assert arrays_of(trace) == [], "its steps are built on no array"


def test_the_picture_shows_both() -> None:
    picture = Picture(sketch())
    check_picture(picture)
    assert "mlx_sketch against mlx_async" in picture.words and "idle 7.2 ms" in picture.words
