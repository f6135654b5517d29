"""The table of thread and stream: the device that counts is the usual one, and counts right."""

from __future__ import annotations

import gc

import pytest

from minisched.core import Request, SamplingParams
from minisched.devices.sim import SimDevice
from minisched.export.counted_run import Counted, count
from minisched.export.counting_sim import CountingSim
from minisched.export.recipes.recipe import a_bit_of_everything
from minisched.export.recipes.sglang import cost_of
from minisched.export.thread_or_stream import COLUMNS, ROWS, ROWS_WHEN_FAST, thread_or_stream
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel


@pytest.mark.parametrize("column", COLUMNS.values(), ids=str)
def test_counting_changes_nothing(column: tuple[str, bool]) -> None:
    loop, has_masks = column
    recipe = a_bit_of_everything(loop)
    plain = run_loop(
        loop, SimDevice(), HashModel(), recipe.requests, recipe.config, cost_of(loop, has_masks),
        delay_sample=has_masks,
    )  # fmt: skip
    assert count(loop, has_masks).trace == plain.trace


@pytest.mark.parametrize("loop", ["overlap", "overlap_thread"])
def test_the_counts_of_a_run_worked_out_by_hand(loop: str) -> None:
    """Two prompt tokens, then two decode steps, the last of them wasted."""
    device = CountingSim()
    request = Request("r", [1, 2], SamplingParams(max_new_tokens=2, ignore_eos=True))
    trace = run_loop(loop, device, HashModel(), [request], cost=cost_of(loop)).trace
    assert Counted(trace, device).num_steps == 3
    # ids, positions, rows, index of the last token, table cells, KV slots, future slot
    integers = [2, 2, 2, 1, 2, 2, 1], [1] * 7, [1] * 7
    shipper = "host" if loop == "overlap" else "worker thread"
    assert device.xp.transfers == {shipper: 21}
    assert device.xp.bytes_shipped == 8 * sum(map(sum, integers))
    assert (device.copies, device.bytes_copied) == (3, 3 * 8)
    assert device.xp.inputs.most == 8 * (12 + 7 + 7)  # two are pinned when the third is shipped
    waits = {"copy": 3} if loop == "overlap" else {"copy": 3, "launch_done": 2}
    assert device.host_waits == waits
    assert device.thread_waits == ({} if loop == "overlap" else {"sync_event": 3})


def test_memory_is_counted_without_the_garbage_collector() -> None:
    """What is alive is what is named: no cycle keeps it, so the figures are the same every time."""
    gc.collect()
    gc.disable()
    try:
        for column in COLUMNS.values():
            assert count(*column).device.queued.most <= 2328
    finally:
        gc.enable()
    assert thread_or_stream() == thread_or_stream()


def test_every_row_is_in_the_page() -> None:
    page = thread_or_stream()
    assert all(f"| {title} |" in page for title in [*ROWS, *ROWS_WHEN_FAST])
