"""``minisched bench``: measures one part, prints its table and keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.figures import BenchCase, Figure, as_json, keep
from ..bench.peers.environment import PEERS
from ..bench.scheduler import version_of
from ..bench.side_by_side import ArmStopped
from ..devices.registry import MissingExtra, load, open_device
from ..loops.run import RunStopped
from ..models.llama import AUTO
from .exit import complain
from .layout import Fitted
from .options import SchedulerOptions, WorkloadOptions, make_config

# -- The workload of a bench on a real device: every request runs to its length --------------------

DEVICES = ("thread", "mlx")
SHORTEST = 10  # tokens: fewer steps than that are all beginning and end


def make_case(workload: WorkloadOptions) -> BenchCase:
    """The workload; every request runs to its length, so that all loops do the same work.

    Raises:
        ValueError: on a virtual clock nothing is measured, or requests are too short.
    """
    check_real_time(workload)
    model = workload.open_model()
    requests = workload.make_requests(model, ignore_eos=True)
    config = make_config(SchedulerOptions(), model, requests)
    return BenchCase(workload.device, model, requests, config)


def on_devices(
    call: BenchCall,
    measure: Callable[[BenchCall], list[Figure]],
    missing: Callable[[str, str], Figure],
) -> list[Figure]:
    """What is measured on the device named, or on ``thread`` and ``mlx``.

    Where nobody named a device and one is not there, ``missing`` is told which, and the reason.
    """
    if call.device is not None:
        return measure(call)
    rows = []
    for device in DEVICES:
        try:
            rows += measure(replace(call, device=device))
        except MissingExtra as error:
            rows.append(missing(device, str(error)))
    return rows


def check_real_time(workload: WorkloadOptions) -> None:
    """Refuse what can't be measured.

    Raises:
        ValueError: on a virtual clock nothing is measured, or requests are too short.
    """
    device = open_device(workload.device)
    device.close()
    if device.clock == "virtual":
        raise ValueError(f"bench measures real time, which --device {workload.device} has none of.")
    if workload.sampling.max_new_tokens < SHORTEST:
        raise ValueError(
            f"--max-new-tokens is {workload.sampling.max_new_tokens}, "
            f"but a bench needs at least {SHORTEST}."
        )


def find_folder(workload: WorkloadOptions) -> Path:
    """Where the model's weights are, for the library it is compared with."""
    find_model = load("minisched.models.llama", "find_model", "dev", "bench generation")
    return Path(find_model(workload.model))


# -- What a part of the bench is asked: the options of ``minisched bench`` that were given ---------


@dataclass(frozen=True)
class BenchCall:
    """One call of ``minisched bench``; what is None was not given, and each part has its own.

    ``repetitions`` are interleaved; ``report`` shows what is being done. ``nano_vllm`` and
    ``vidur`` are checkouts of peers that have no wheels.
    """

    part: str
    device: str | None = None
    model: str | None = None
    requests: int | None = None
    max_new_tokens: int | None = None
    repetitions: int = 5
    nano_vllm: Path | None = None
    vidur: Path | None = None
    dtype: str | None = None
    report: Callable[[str], None] = lambda doing: None

    def workload(
        self,
        device: str = "thread",
        model: str = "smollm2",
        requests: int = 4,
        max_new_tokens: int = 32,
    ) -> WorkloadOptions:
        """What was asked for, and the part's own where nothing was."""
        return WorkloadOptions(
            self.device or device,
            self.model or model,
            dtype=self.dtype or AUTO,
            requests=requests if self.requests is None else self.requests,
            max_new_tokens=(max_new_tokens if self.max_new_tokens is None else self.max_new_tokens),
        )

    def refuse(self, *names: str) -> None:
        """Refuse options that this part has no use for.

        Raises:
            ValueError: one of them was given.
        """
        for name in names:
            if getattr(self, name) is not None:
                option = name.replace("_", "-")
                raise ValueError(f"--{option} is of no use to bench {self.part}.")


# -- The parts of ``minisched bench``: a module each, ``bench_NAME.py``, whose ``measure`` is called
#
# A module is loaded when its part is asked for: parts need different libraries.

PARTS = {
    "hidden": "how much of the host's work two loops hide",
    "generation": "tokens a second, beside the libraries' own batched generation",
    "scheduler": "what scheduling costs, beside nano-vllm",
    "overlap": "what is hidden of what could be, and what the lock and the cores cost",
    "limit": "decode steps and prefill beside what memory and matrices allow, by part",
    "host": "a step's cost on the host by phase, and beside other engines' schedulers",
    "simulator": "requests and steps simulated a second, beside vidur, and memory",
    "tracing": "what recording costs, and every exporter at 100,000 slices",
    "prediction": "how far sim is from the clock, by a profile measured just before",
    "mlx": "what three kinds of KV caches copy on MLX, and when two lazy graphs pay",
    "cuda": "one GPU: busy in steady decode, the limit of its memory, and transformers",
}


def find_part(name: str) -> Callable[[BenchCall], list[Figure]]:
    """What measures a part.

    Raises:
        ValueError: there is no such part.
    """
    if name not in PARTS:
        raise ValueError(f"unknown part {name!r}; the parts are {', '.join(PARTS)}.")
    measure: Callable[[BenchCall], list[Figure]] = import_module(
        f".bench_{name}", __package__
    ).measure
    return measure


def run_bench(call: BenchCall, as_json_only: bool) -> int:
    """Measure one part, print its table, keep it under ``traces/bench``; returns the exit code.

    It is 1 where a loop stopped: then there is no table.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    measure = find_part(call.part)
    if call.repetitions < 1:
        raise ValueError(f"--repeat is {call.repetitions}, but it must be at least 1.")
    try:
        with Console(stderr=True).status("warming up") as status:
            figures = measure(replace(call, report=status.update))
    except (ArmStopped, RunStopped) as error:
        return complain(f"bench {call.part} stopped: {error}", 1)
    document = as_json(figures, peer_versions(call), asked(call))
    written = keep(name_of(call), document, Path.cwd())
    if as_json_only:
        print(json.dumps(document))
        return 0
    Console(emoji=False).print(Fitted(table(figures)))
    for path in written:
        Console(stderr=True).print(f"written: {path}", highlight=False)
    return 0


def name_of(call: BenchCall) -> str:
    """The table's name: a run of a part of a part does not take the place of the whole."""
    given = [f"{name}-{Path(str(value)).name}" for name, value in options_of(call).items()]
    few = [f"repeat-{call.repetitions}"] if call.repetitions < BenchCall.repetitions else []
    return "-".join([call.part, *given, *few])


def asked(call: BenchCall) -> dict[str, Any]:
    """What the command line said, and when: a table says which run it is of."""
    today = datetime.now(UTC).date().isoformat()
    return {**options_of(call), "repetitions": call.repetitions, "date": today}


def options_of(call: BenchCall) -> dict[str, Any]:
    """What was asked for besides the part."""
    options = {
        "device": call.device, "model": call.model, "dtype": call.dtype, "requests": call.requests,
        "max-new-tokens": call.max_new_tokens,
    }  # fmt: skip
    return {name: value for name, value in options.items() if value is not None}


def peer_versions(call: BenchCall) -> dict[str, str]:
    """Versions of the peers that a part is measured beside and that are not installed here."""
    found = {}
    for name in {"generation": ["llama-cpp"], "host": ["vllm", "sglang"]}.get(call.part, []):
        package, _, version = [*PEERS[name].alone, *PEERS[name].needed][0].partition("==")
        found[package] = version
    if call.nano_vllm:
        found["nano-vllm"] = version_of(call.nano_vllm)
    return found


def table(figures: list[Figure]) -> Table:
    """Medians with their spread, and whether they are where they should be."""
    reasons = sorted(
        {
            f"{'Not measured' if item.median is None else item.name}: {item.reason}."
            for item in figures
            if item.reason
        }
    )
    result = Table(caption=Text("\n".join(reasons)) if reasons else None)
    for column in ("what", "median", "min", "max", "unit", "aim", "met"):
        result.add_column(column, justify="right" if column in ("median", "min", "max") else "left")
    for item in figures:
        values = (item.median, item.min, item.max)
        numbers = ("-" if value is None else f"{value:.2f}" for value in values)
        bound = "at most" if item.at_most else "at least"
        aim = "" if item.aim is None else f"{bound} {item.aim:g}"
        met = {None: "", True: "yes", False: "no"}[item.met]
        result.add_row(Text(item.name), *numbers, item.unit, aim, met)  # a name is no markup
    return result
