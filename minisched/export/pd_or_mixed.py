"""PD separation beside mixed chunks: the guides' comparison, filled in from two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from ..checks.overlap import measure, union
from ..loops.run import Run
from ..trace import Slice
from ..trace.events import is_forward
from .units import ms

LOOPS = ("pd", "mixed")
Cell = Callable[[Run], str]
Row = tuple[str, str, str]  # what is compared, of pd, of mixed


def rows(pd: Run, mixed: Run) -> list[Row]:
    """The comparison: of each run what can be counted in it, and a phrase for the rest."""
    return [(title, of_pd(pd), of_mixed(mixed)) for title, (of_pd, of_mixed) in CELLS.items()]


def find_runs(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The runs of both loops, where both are there."""
    by_loop = {run.loop.partition(":")[0]: run for run in runs}
    return (by_loop["pd"], by_loop["mixed"]) if set(LOOPS) <= by_loop.keys() else None


def devices(run: Run) -> str:
    """How many devices computed something."""
    return str(measure(run.trace).devices)


def schedulers(run: Run) -> str:
    """How many host lanes scheduled something."""
    return str(len({item.lane for item in run.trace.slices if item.name == "schedule"}))


def transfer(run: Run) -> str:
    """What went over the link, and how long that kept it busy."""
    transfers = run.trace.on("kv transfer")
    if not transfers:
        return "none: a prompt's KV stays where it is computed"
    sizes = [int(mark.attrs["bytes"]) for mark in run.trace.marks if mark.name == "kv transfer"]
    busy = sum(item.duration for item in transfers)
    return f"{sum(sizes) / 2**20:.1f} MiB in {count(transfers, 'transfer')}, {ms(busy)} ms"


def prefill(run: Run) -> str:
    """In how many steps prompts were computed, and on which device."""
    lanes = {item.lane for item in prompt_steps(run)}
    where = "a device of its own" if "prefill forward" in lanes else "the one device"
    return f"{count(prompt_steps(run), 'step')} on {where}"


def mixing(run: Run) -> str:
    """In how many steps prompts and decodes share a batch."""
    mixed = [item for item in forwards(run) if item.mode == "mixed"]
    return f"{len(mixed)} of {len(forwards(run))} steps hold prompts and decodes"


def ttft(run: Run) -> str:
    """Time to first token."""
    times = run.metrics.ttft
    return f"{ms(times.p50)} / {ms(times.p99)} ms" if times else "no token"


def itl(run: Run) -> str:
    """Time between tokens."""
    times = run.metrics.itl
    return f"{ms(times.p50)} / {ms(times.p99)} ms" if times else "no second token"


def pause(run: Run) -> str:
    """The longest time between two tokens of a request while another's prompt is computed."""
    prompts = union(prompt_steps(run))
    longest = max(
        (end - start for start, end in gaps_heard(run)
         if any(start < later and earlier < end for earlier, later in prompts)),
        default=0,
    )  # fmt: skip
    return f"{ms(longest)} ms" if longest else "nobody decoded then"


def throughput(run: Run) -> str:
    """Tokens a second, in all."""
    return f"{run.metrics.throughput:.0f} tokens/s"


def throughput_per_device(run: Run) -> str:
    """The same for each device that was needed."""
    return f"{run.metrics.throughput / measure(run.trace).devices:.0f} tokens/s"


def forwards(run: Run) -> list[Slice]:
    """The forward slice of each step."""
    return [s for s in run.trace.slices if is_forward(s.lane) and s.name == "forward"]


def prompt_steps(run: Run) -> list[Slice]:
    """Those of steps with prompts in them."""
    return [item for item in forwards(run) if item.mode in ("extend", "mixed")]


def gaps_heard(run: Run) -> Iterator[tuple[int, int]]:
    """From each token of a request to its next, as its client heard them."""
    for item in run.metrics.ended:
        if item.first_token is not None:
            yield from pairwise(accumulate(item.itls, initial=item.first_token))


def count(things: Sequence[object], name: str) -> str:
    """How many there are."""
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


def phrase(words: str) -> Cell:
    """What no run can show."""
    return lambda run: words


CELLS: dict[str, tuple[Cell, Cell]] = {
    "design": (
        phrase("physical separation: a device for each"),
        phrase("logical union: one batch for both"),
    ),
    "deployment": (
        phrase("two engines behind a load balancer, and a link between them"),
        phrase("one engine"),
    ),
    "devices": (devices, devices),
    "transfer": (transfer, transfer),
    "schedulers": (schedulers, schedulers),
    "prefill": (prefill, prefill),
    "mixing": (mixing, mixing),
    "scenario": (
        phrase("long prompts beside streams that must not stutter, and load for two devices"),
        phrase("one device, short prompts, or throughput before steadiness"),
    ),
    "latency: first token, p50 / p99": (ttft, ttft),
    "latency: between tokens, p50 / p99": (itl, itl),
    "latency: longest pause while a prompt is computed": (pause, pause),
    "throughput: in all": (throughput, throughput),
    "throughput: for each device": (throughput_per_device, throughput_per_device),
}
