"""``diagrams/pd_or_mixed.md``: the comparison on one workload, and on others where it turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import Request
from ..devices.cost import MILLISECOND, SIM_COST
from ..devices.registry import open_device
from ..loops.pd import Link
from ..loops.run import Run, fresh, run_loop
from ..models.hash import HashModel
from ..scheduler import SchedulerConfig
from .markdown import table
from .pd_or_mixed import itl, pause, rows, throughput, throughput_per_device, ttft
from .recipes import recipes
from .recipes.recipe import tokens

CONFIG = SchedulerConfig(kv_tokens=8192)
FIGURES: dict[str, Callable[[Run], str]] = {
    "first token, p50 / p99": ttft,
    "between tokens, p50 / p99": itl,
    "longest pause while a prompt is computed": pause,
    "in all": throughput,
    "for each device": throughput_per_device,
}

TEXT = """\
# PD separation, or mixed chunks

Both keep those who decode from standing still while a long prompt is computed. Mixed chunks
(`minisched/loops/overlap.py` with `enable_mixed_chunk`) put a part of the prompt into each of their
steps. PD separation (`minisched/loops/pd.py`) computes it on another device and sends the KV over.
Below, three requests decode while two prompts of 200 tokens come, 60 ms apart, in chunks of
{chunk}, on the simulated device. A step takes {base} ms and {per_token} ms more for each token. A
message takes {latency} ms, a transfer as much and its bytes over {rate} GB/s; a KV slot has {slot}
KiB. Design, deployment and scenario are words; everything else is counted in the two runs, as a
client hears them. `minisched compare --loops pd,mixed` prints this table for any workload.

{table}

- **Both cut prompts into chunks.** A guide that has PD compute a whole prompt at once is off there:
  SGLang's prefill side obeys `--chunked-prefill-size` like any other, and sends KV chunk by chunk.
- **Steadiness is what the second device buys.** A mixed step takes as long as its chunk; in PD a
  step of those who decode takes what it always takes.
- **It costs a device.** Both runs give the same tokens in about the same time here, so for each
  device PD gives half as many.
- **A first token comes later**: by the reservation, the transfer, and the wait for the step that is
  running on the other side. The gap after it is the longest of all, since a request that comes in
  the middle of a step joins the one after the next.

## Where it turns

{others}

- **One request** has nobody to disturb. PD only adds its way over the link.
- **Short prompts** hardly disturb anybody: a mixed step is little longer than a decode. PD gives
  fewer tokens here, even in all.
- **More and longer prompts** are what PD is for: those who decode keep their pace (their longest
  pause is the gap after a first token), first tokens come sooner, and there are more tokens in all.
  For each device there are still far fewer: the decode device could serve more than one prefill
  device sends it.
- **A link ten times slower** delays first tokens. It is busy instead of a device, so those who
  decode keep their pace.
"""


def pd_or_mixed() -> str:
    """The page, the same every time."""
    link, recipe = Link(), recipes()["pd"]
    return TEXT.format(
        chunk=recipe.config.chunked_prefill_size,
        base=SIM_COST.forward_base // MILLISECOND,
        per_token=SIM_COST.forward_per_token / MILLISECOND,
        latency=link.latency / MILLISECOND,
        rate=link.bytes_per_second // 10**9,
        slot=link.slot_bytes // 1024,
        table=table(("", "PD separation", "mixed chunks"), rows(*both(recipe.requests))),
        others=others(),
    )


def others() -> str:
    """The figures of other workloads."""
    lines = (
        [f"{name}: {loop}", *(figure(run) for figure in FIGURES.values())]
        for name, pair in other_runs().items()
        for loop, run in zip(("PD", "mixed"), pair, strict=True)
    )
    return table(["", *FIGURES], lines)


def other_runs() -> dict[str, tuple[Run, Run]]:
    """Workloads on which the comparison comes out differently."""
    slow = {"bytes_per_second": Link().bytes_per_second // 10, "latency": 10 * Link().latency}
    return {
        "one request": both(streams(1)),
        "short prompts": both(streams(3) + prompts(4, 12)),
        "more, longer prompts": both(streams(4) + prompts(8, 512)),
        "a slow link": both(recipes()["pd"].requests, **slow),
    }


def streams(count: int) -> list[Request]:
    """Requests with a short prompt and a long answer, all there at the beginning."""
    return [Request(f"s{at}", range(at, at + 12), tokens(36)) for at in range(count)]


def prompts(count: int, length: int) -> list[Request]:
    """Requests with a prompt of that length and a short answer, one every 40 ms."""
    return [
        Request(f"p{at}", [(7 * at + i) % 250 for i in range(length)], tokens(8),
                arrival_time=(60 + 40 * at) * MILLISECOND)
        for at in range(count)
    ]  # fmt: skip


def both(requests: Sequence[Request], **link: Any) -> tuple[Run, Run]:
    """The runs of the two loops on one workload."""
    return one("pd", requests, **link), one("mixed", requests)


def one(loop: str, requests: Sequence[Request], **options: Any) -> Run:
    """One loop on a workload."""
    again = [fresh(request) for request in requests]
    return run_loop(loop, open_device("sim"), HashModel(), again, CONFIG, SIM_COST, **options)
