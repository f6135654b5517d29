"""SGLang's two ways to overlap, side by side: a table in which every figure is counted in a run."""

from __future__ import annotations

from collections.abc import Callable

from ..devices.cost import MILLISECOND
from .counted_run import (
    CountedRun,
    blocked,
    by_name,
    count,
    hidden,
    host_work,
    lanes,
    logits_wait,
    settled_step,
)
from .markdown import table
from .recipes.sglang import LAUNCH, MASK, SAMPLING

FAST = 4  # how many times as fast the second device is
COLUMNS = {  # heading -> loop, and whether every request has a mask
    "stream": ("overlap", False),
    "thread": ("overlap_thread", False),
    "stream, with masks": ("overlap", True),
    "thread, with masks": ("overlap_thread", True),
}


ROWS: dict[str, Callable[[CountedRun], str]] = {
    "a settled decode step (ms)": settled_step,
    "host threads busy (ms a step)": host_work,
    "the forward pass is launched on": lambda run: lanes(run, "launch"),
    "sampling is launched on": lambda run: lanes(
        run, "launch sample" if run.named("launch sample") else "launch"),
    "the mask is built on": lambda run: lanes(run, "mask"),
    "the device works during so much of that": lambda run: hidden(run, "mask"),
    "host to device: transfers a step, by who ships": lambda run: by_name(
        run, run.device.xp.transfers),
    "host to device: bytes a step": lambda run: run.per_step(run.device.xp.bytes_shipped),
    "device to host: transfers a step": lambda run: run.per_step(run.device.copies),
    "device to host: bytes a step": lambda run: run.per_step(run.device.bytes_copied),
    "sync points that block the scheduler, a step": lambda run: by_name(
        run, run.device.host_waits),
    "the scheduler is blocked (ms a step)": blocked,
    "sync points of the thread, a step": lambda run: by_name(run, run.device.thread_waits),
    "on the device: inputs that the host still names, at most (bytes)": lambda run: str(
        run.device.xp.inputs.most),
    "on the device: future map (bytes)": lambda run: str(run.device.memories["future map"]),
    "on the host: batches queued or held, at most (bytes)": lambda run: str(
        run.device.queued.most),
}  # fmt: skip
ROWS_WHEN_FAST: dict[str, Callable[[CountedRun], str]] = {
    "a settled decode step (ms)": settled_step,
    "logits wait for their sampling (ms a step)": logits_wait,
    "the device works during so much of building the mask": lambda run: hidden(run, "mask"),
}

TEXT = """\
# Overlap by a stream, or by a thread

SGLang has had both. Until #11210 a worker thread launched what the scheduler had put into a queue
(`minisched/loops/overlap_thread.py`); since then the scheduler launches by itself, and only the
device's streams run beside it (`minisched/loops/overlap.py`). Every figure is counted in a run of
the five requests behind `traces/overlap.json`, on the simulated device with the relay `ring`.
Launching a step takes {launch} ms, of which {sampling} ms are its sampling. With masks, each step's
sampling waits for a mask that needs the tokens of the step before, which takes {mask} ms to build.

{table}

The same requests on a device {fast} times as fast, where the host is what everybody waits for:

{table_when_fast}

A published list of differences makes six claims for the stream, or against the thread:

- *`update_vocab_mask` has moved to the GPU, and `vocab_mask` is allocated there.* Does not hold:
  the host builds the mask in both, since that takes the grammar's state. SGLang 0.5.23 with
  xgrammar does so, too (`sampling_batch_info.py:update_regex_vocab_mask`).
- *So it is not transferred any more.* Does not hold: with masks the host ships {masked_stream}
  bytes a step, and the thread {masked_thread} (over more steps: it launches those who end by length
  once more).
- *The future map is on the device, and only there.* Holds, of the thread as well: {map} bytes.
- *Work is queued on a stream, not launched by a thread.* Holds: see who launches.
- *Sampling is ordered by the stream, not by an event of the host.* Holds: the thread's `sync_event`
  and `launch_done` are gone.
- *With a thread, `vocab_mask` is one more sync point.* Holds: `sampling_info_done`.

What is behind that:

- **The mask** is built by the scheduler in both, after it has processed the step before. What
  differs is who launches the sampling then: the scheduler itself
  (`launch_batch_sample_if_needed`), or the thread, which waits for `sampling_info_done`.
- **Time.** The scheduler waits for `launch_done` of the batch it has just put, so all that the
  thread takes off its hands is the launch of the sampling; and that only shows where the host is
  the slower side.
- **Transfers** are the same, up and down. Only who ships differs.
- **Sync points.** The thread costs the scheduler a second one a step, and has one of its own.
- **Memory.** Both pin the inputs of two batches, and have three while the oldest gives its slot to
  the one just shipped. The queue keeps flat batches alive on the host.
"""


def thread_or_stream() -> str:
    """The comparison as a markdown page, the same every time."""
    runs = {heading: count(*column) for heading, column in COLUMNS.items()}
    fast = {heading: count(*column, FAST) for heading, column in COLUMNS.items()}
    shipped = ROWS["host to device: bytes a step"]
    kept = {ROWS["on the device: future map (bytes)"](run) for run in runs.values()}
    return TEXT.format(
        launch=LAUNCH / MILLISECOND,
        sampling=SAMPLING / MILLISECOND,
        mask=MASK / MILLISECOND,
        fast=FAST,
        masked_stream=shipped(runs["stream, with masks"]),
        masked_thread=shipped(runs["thread, with masks"]),
        map=" or ".join(sorted(kept)),
        table=table_of(ROWS, runs),
        table_when_fast=table_of(ROWS_WHEN_FAST, fast),
    )


def table_of(rows: dict[str, Callable[[CountedRun], str]], runs: dict[str, CountedRun]) -> str:
    """A markdown table with a column for each run."""
    lines = ([title, *map(figure, runs.values())] for title, figure in rows.items())
    return table(["", *runs], lines)
