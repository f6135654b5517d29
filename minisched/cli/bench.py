"""``minisched bench``: measures one part, prints its table, and keeps it if told to.

A part loads when it is asked for: parts need different libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ..bench.arms import ArmStopped, opened
from ..bench.figures import Figure, as_json, not_measured, save
from ..bench.peers.peer import PeerError, version_in, version_of
from ..devices.registry import MissingExtra, load, open_device
from ..loops.run import RunStopped
from ..models.llama import AUTO
from .exit import complain
from .layout import Fitted, Json, print_json, table
from .options import choose_loops

# -- What a part of the bench is asked: the options of ``minisched bench`` that were given ---------


OPTIONS = ("device", "model", "dtype", "requests", "max_new_tokens")  # of what is measured


@dataclass(frozen=True)
class BenchCall:
    """One call of ``minisched bench``; what is None was not given, and each part has its own.

    ``repetitions`` are interleaved; ``report`` shows what is being done. ``nano_vllm`` and
    ``vidur`` are checkouts of peers that have no wheels. ``keep``: write tables and pictures under
    ``traces/bench``; else nothing is written.
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
    keep: bool = False
    report: Callable[[str], None] = lambda doing: None

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for besides the part, as a table names it."""
        named = {name.replace("_", "-"): getattr(self, name) for name in OPTIONS}
        return {name: value for name, value in named.items() if value is not None}

    def take(self, *names: str, devices: tuple[str, ...] = ()) -> None:
        """Refuse options that this part has no use for, and devices that it does not know.

        Raises:
            ValueError: one of them was given.
        """
        for name in (*OPTIONS, "nano_vllm", "vidur"):
            if name not in names and getattr(self, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is of no use to bench {self.part}.")
        if devices and self.device not in (None, *devices):
            said = f"; bench {self.part} knows {', '.join(devices)}."
            if len(devices) == 1:
                said = f", but bench {self.part} measures {devices[0]} only."
            raise ValueError(f"--device is {self.device!r}{said}")
        if self.model == "hash" and "model" in names:
            raise ValueError(f"bench {self.part} measures real models, so --model can't be hash.")
        if self.requests is not None and self.requests < 1:
            raise ValueError(f"--requests is {self.requests}, but it must be at least 1.")

    def folder(self) -> Path:
        """Where the model's weights are, for the library it is compared with."""
        find_model = load("minisched.models.llama", "find_model", "dev", f"bench {self.part}")
        return Path(find_model(self.model or "smollm2"))


# -- The parts -------------------------------------------------------------------------------------


def generation(call: BenchCall) -> list[Figure]:
    """Each library beside its rivals: ``--requests`` at once, each ``--max-new-tokens`` long."""
    from ..bench.generation import LONGEST, NEW_TOKENS, PARTS, generation

    call.take("device", "model", "requests", "max_new_tokens", devices=tuple(PARTS))
    new_tokens = NEW_TOKENS if call.max_new_tokens is None else call.max_new_tokens
    if not 2 <= new_tokens <= LONGEST:
        raise ValueError(f"--max-new-tokens is {new_tokens}, but it must be 2 to {LONGEST}.")
    return generation(
        call.folder(), call.device, call.requests, new_tokens, call.repetitions, call.report
    )


def overlap(call: BenchCall) -> list[Figure]:
    """Every cell of devices, models and batches, or those that options name."""
    from ..bench.overlap import BATCHES, DEVICES, MODELS, make_cells, overlap_figures, ways
    from ..defaults import overlapped_loop
    from ..models.registry import open_model

    call.take("device", "model", "dtype", "requests", devices=DEVICES)
    absent = {device: why_absent(device) for device in [call.device or "", *DEVICES] if device}
    if call.device and absent[call.device]:
        raise ValueError(absent[call.device])
    if call.model and call.model not in MODELS:
        open_model(call.model, call.device or DEVICES[0], call.dtype or AUTO)
    figures = []
    with ways() as doing:
        for device in [call.device] if call.device else DEVICES:
            for name in [call.model] if call.model else MODELS:
                if absent[device]:
                    figures.append(not_measured(f"{device}, {name}", "%", absent[device]))
                    continue
                for batch in [call.requests] if call.requests else BATCHES:
                    title = f"{device}, {name}, batch {batch}"
                    call.report(title)
                    with opened(name, device, call.dtype or AUTO) as model:
                        cells = make_cells(title, device, model, batch, overlapped_loop(device))
                        figures += overlap_figures(cells, doing, call.repetitions, call.report)
    return figures


def why_absent(device: str) -> str:
    """Why a device can't be opened here, or nothing."""
    try:
        open_device(device).close()
    except ValueError as error:
        return str(error)
    return ""


def limit(call: BenchCall) -> list[Figure]:
    """Decode steps and a prefill on torch, by part."""
    call.take("device", "model", "dtype", devices=("thread",))
    folder = call.folder()
    measure = load("minisched.bench.limit", "limit", "torch", "bench limit")
    dtypes = {"dtypes": [call.dtype]} if call.dtype else {}
    figures: list[Figure] = measure(folder, call.repetitions, call.report, **dtypes)
    return figures


def host(call: BenchCall) -> list[Figure]:
    """Phases of a step, schedulers side by side, and how ours grows."""
    from ..bench.host import host_figures

    call.take("nano_vllm")
    return host_figures(call.nano_vllm, call.repetitions, call.report)


def simulator(call: BenchCall) -> list[Figure]:
    """Replayed requests a second beside vidur, then the memory of long runs."""
    from ..bench.simulator import REQUESTS, simulator_figures

    call.take("requests", "vidur")
    limit = REQUESTS if call.requests is None else call.requests
    return simulator_figures(call.vidur, limit, call.repetitions, call.report)


def prediction(call: BenchCall) -> list[Figure]:
    """By how much makespan and speed-up of each loop are off, on the device named or on both."""
    from ..bench.calibrate import check_model, check_real_time
    from ..bench.prediction import AIM, USUAL, prediction

    call.take("device", "model", "dtype")
    figures = []
    for device in [call.device] if call.device else USUAL:
        check_real_time(device, "bench")
        name = call.model or USUAL.get(device, "smollm2")
        try:
            with opened(name, device, call.dtype or AUTO) as model:
                check_model(model)
                loops = choose_loops(["all"], device, only_serial=False)
                title = f"{device}, {Path(name).name}"
                figures += prediction(title, device, model, loops, call.repetitions, call.report)
        except MissingExtra as error:
            if call.device:
                raise
            figures.append(not_measured(f"{device}: makespans, off by", "%", str(error), AIM))
    return figures


def cuda(call: BenchCall) -> list[Figure]:
    """Both shapes of a GPU's measurement, or the one that ``--model`` names."""
    from ..bench.cuda import gpu_figures, load_of

    call.take("device", "model", "requests", "max_new_tokens", devices=("cuda",))
    load = load_of(call.requests, call.max_new_tokens)
    kept = Path.cwd() if call.keep else None
    return gpu_figures(call.model, load, call.repetitions, call.report, kept)


PARTS = {
    part.__name__: part for part in (generation, overlap, limit, host, simulator, prediction, cuda)
}

# -- The command -----------------------------------------------------------------------------------


def bench(
    part: Annotated[str, typer.Argument(help=", ".join(PARTS) + ".")],
    device: Annotated[str | None, typer.Option(help="thread, cuda or mlx.")] = None,
    model: Annotated[str | None, typer.Option(help="As compare takes it.")] = None,
    dtype: Annotated[str | None, typer.Option(help="As compare takes it.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens that each produces.")] = None,
    repeat: Annotated[int, typer.Option(help="Interleaved repetitions.")] = 5,
    nano_vllm: Annotated[
        Path | None, typer.Option(help="A checkout of nano-vllm, for host.")
    ] = None,
    vidur: Annotated[Path | None, typer.Option(help="A checkout of vidur, for simulator.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Write the table, and pictures, under traces/bench.")
    ] = False,
    json: Json = False,
) -> int:
    """Measure one part, and print its table."""
    call = BenchCall(
        part, device, model, requests, max_new_tokens, repeat, nano_vllm, vidur, dtype, keep
    )
    if call.part not in PARTS:
        raise ValueError(f"unknown part {call.part!r}; the parts are {', '.join(PARTS)}.")
    if call.repetitions < 1:
        raise ValueError(f"--repeat is {call.repetitions}, but it must be at least 1.")
    err = Console(stderr=True)
    try:
        with err.status("warming up") as status:
            figures = PARTS[call.part](replace(call, report=status.update))
    except (ArmStopped, RunStopped, PeerError) as error:
        return complain(f"bench {call.part} stopped: {error}", 1)  # and there is no table
    # What the command line said, and when: a table says which run it is of.
    asked = {**call.options, "repetitions": call.repetitions}
    asked["date"] = datetime.now(UTC).date().isoformat()
    document = as_json(figures, peer_versions(call), asked)
    if json:
        print_json(document)
    else:
        Console(emoji=False).print(figures_table(figures))
    # A run of a part of a part does not take the place of the whole.
    given = [f"{name}-{Path(str(value)).name}" for name, value in call.options.items()]
    few = [f"repeat-{call.repetitions}"] if call.repetitions < BenchCall.repetitions else []
    name = "-".join([call.part, *given, *few])
    for path in save(name, document, Path.cwd()) if call.keep else ():
        err.print(f"written: {path}", highlight=False)
    return 0


def peer_versions(call: BenchCall) -> dict[str, str]:
    """Versions of the peers that a part is measured beside and that are not installed here."""
    named = {
        "host": {"vllm": "vllm_scheduler", "sglang": "sglang_scheduler"},
    }
    found = {
        package: version_of(f"minisched.bench.peers.{script}", package)
        for package, script in named.get(call.part, {}).items()
    }
    return found | ({"nano-vllm": version_in(call.nano_vllm)} if call.nano_vllm else {})


def figures_table(figures: list[Figure]) -> Fitted:
    """Medians with their spread, and whether they are where they should be."""
    reasons = sorted(
        {
            f"{'Not measured' if item.median is None else item.name}: {item.reason}."
            for item in figures
            if item.reason
        }
    )
    rows: list[tuple[str | Text, ...]] = []
    for item in figures:
        values = (item.median, item.min, item.max)
        numbers = ("-" if value is None else f"{value:.2f}" for value in values)
        bound = "at most" if item.at_most else "at least"
        aim = "" if item.aim is None else f"{bound} {item.aim:g}"
        met = {None: "", True: "yes", False: "no"}[item.met]
        rows.append((Text(item.name), *numbers, item.unit, aim, met))  # a name is no markup
    heads = ("what", ">median", ">min", ">max", "unit", "aim", "met")
    return table(heads, rows, caption="\n".join(reasons))
