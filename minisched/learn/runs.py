"""Runs with given costs in milliseconds, and their tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from ..checks.oracle import hash_oracle
from ..checks.overlap import measure
from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, of_milliseconds
from ..devices.registry import open_device
from ..export.by_step import by_step
from ..export.notebook import NotebookPicture, traces_of
from ..export.runs import compare
from ..export.scene_svg import to_svg
from ..export.views import draw
from ..loops.run import Run, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from ..trace import Edge, Slice, Trace
from .guess import with_guess
from .outputs import Table

# -- A run with given costs of host, device and copy, in milliseconds a step -----------------------

MOST_BEFORE_STOP = 60  # tokens; among many more, hardly any is the first of its kind
VOCAB = 97  # enough that a wrong token is hardly ever right by chance


def simulate(
    loop: str = "serial",
    *,
    host_ms: float = 6,
    device_ms: float = 10,
    copy_ms: float = 1,
    requests: int = 2,
    new_tokens: int = 12,
    relay: str = "",
    stop: bool = False,
    chunk: int = -1,
    token_ms: float = 0,
) -> Run:
    """Run a few equal requests through a loop, on a simulated device with a virtual clock.

    ``host_ms``, ``device_ms`` and ``copy_ms`` are what one step costs each of them. There is room
    for just these requests, so a ring of future slots is as small as possible. With ``stop`` each
    may have four times as many tokens, and a stop token, which the host cannot foresee, ends it
    after ``new_tokens``. Without, its length ends it, which the host can count. A step
    takes at most ``chunk`` tokens of prompts, which have 4 each (-1: as many as there are),
    and each token of a step takes the device ``token_ms`` more.

    Raises:
        ValueError: a cost is negative or not finite, a count below 1 or too large for a stop
            token, or the loop or relay unknown.
    """
    for name, value, least in (
        ("host_ms", host_ms, 0), ("device_ms", device_ms, 0), ("copy_ms", copy_ms, 0),
        ("requests", requests, 1), ("new_tokens", new_tokens, 1), ("token_ms", token_ms, 0),
    ):  # fmt: skip
        if not isinstance(value, int | float) or not least <= value < inf:
            raise ValueError(
                f"{name} is {value!r}, but it must be a finite number of at least {least}."
            )
    if stop and new_tokens > MOST_BEFORE_STOP:
        raise ValueError(
            f"new_tokens is {new_tokens}, but with a stop token it must be at most "
            f"{MOST_BEFORE_STOP}."
        )
    asked = [
        _request("abcdefgh"[at % 8] * (1 + at // 8), at, new_tokens, stop) for at in range(requests)
    ]
    cost = of_milliseconds(host_ms, device_ms, copy_ms, token_ms)
    model = HashModel(VOCAB, eos_ids=frozenset())
    config = SchedulerConfig(max_running_requests=requests, chunked_prefill_size=chunk)
    return run_loop(loop, open_device("sim"), model, asked, config, cost, relay)


def _request(rid: str, at: int, new_tokens: int, stop: bool) -> Request:
    """Return a request that ends after ``new_tokens``, by length or at its stop token."""
    prompt = range(at, at + 4)
    if not stop:
        return Request(rid, prompt, SamplingParams(max_new_tokens=new_tokens))
    alone, last = SamplingParams(max_new_tokens=new_tokens), -1
    while last < 0:  # a prompt with a last token that comes only once
        *before, last = hash_oracle([*prompt], alone, 0, VOCAB, frozenset()).tokens
        if last in before:
            prompt, last = range(prompt.start + VOCAB, prompt.stop + VOCAB), -1
    params = SamplingParams(max_new_tokens=4 * new_tokens, stop_token_ids=frozenset({last}))
    return Request(rid, prompt, params)


def makespan_ms(run: Run) -> float:
    """Return the time from the first slice of a run to its last, in ms."""
    return run.trace.end / MILLISECOND


def table(*runs: Run, names: Sequence[str] = ()) -> Table:
    """Return a table of the times of runs; speed-ups refer to the first.

    ``names`` are what runs are called, if not by their loop. Of several devices, busy and idle are
    the mean.

    Raises:
        ValueError: there are names, but not one for each run.
    """
    if names and len(names) != len(runs):
        raise ValueError(f"there are {len(names)} names, but {len(runs)} runs.")
    heads = ("relay" if names else "loop", "steps", "makespan", "device busy", "device idle",
             "speed-up", "same tokens")  # fmt: skip
    rows = []
    for name, run in zip(names or [run.loop for run in runs], runs, strict=True):
        report, is_same = measure(run.trace), run.outputs == runs[0].outputs
        idle = report.bubble_ns / report.devices / MILLISECOND
        rows.append((
            name, str(report.steps), f"{makespan_ms(run):g} ms",
            f"{report.device_busy_percent:.0f} %", f"{idle:g} ms",
            f"{runs[0].trace.end / max(1, run.trace.end):.2f}×", "yes" if is_same else "NO",
        ))  # fmt: skip
    return Table(heads, tuple(rows))


def timing(
    *runs: Run | Trace,
    steps: int = 3,
    whole: bool = False,
    title: str = "",
    detail: bool = False,
    guess_ms: float | None = None,
) -> NotebookPicture:
    """Draw runs above each other on one time axis: a few settled steps, or the ``whole`` runs.

    Each step has a colour. In ``detail``, each phase and op has one, as on the command line.
    Without a ``title``, the picture has its finding as title. A dashed line stands at ``guess_ms``.

    Raises:
        ValueError: there is no run, or the guess is no number.
    """
    traces = traces_of(runs)
    scene = (compare if detail else by_step)(traces, 0 if whole else steps)
    scene = with_guess(replace(scene, title=title or scene.title), guess_ms)
    return NotebookPicture(to_svg(scene))


Box = tuple[str, str, float, float, int]  # its lane, its name, from and to how many ms, its step


def boxes(title: str, *some: Box, edges: Sequence[Edge] = ()) -> str:
    """An SVG of boxes.

    ``edges`` go from the id of one box to another's; the first of ``some`` has the id 1.
    """
    slices = [
        Slice(at, lane, name, round(start * MILLISECOND), round(end * MILLISECOND), step)
        for at, (lane, name, start, end, step) in enumerate(some, 1)
    ]
    slices.sort(key=lambda item: (item.start, item.end, item.id))
    trace = Trace("", "sim", "hash", "virtual", tuple(slices), tuple(sorted(edges)), (), ())
    return timing(trace, whole=True, title=title, detail=True).svg


def view(topic: str, run: Run | Trace) -> NotebookPicture:
    """A topic's own view of a run.

    Raises:
        ValueError: there is no such topic, or the run has nothing of it.
    """
    return NotebookPicture(draw(topic, traces_of(run)[0]))
