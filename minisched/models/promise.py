"""The promise of a model, measured: do its logits depend on the other requests of a step?

A model that is asked for the same tokens alone and in a batch should give the same logits. Many
libraries add in another order for another number of rows, so logits move by some roundings. How
far is measured once, when a model is opened (``measure_apart``). The model is then in a class:

- *exact*: no logit moved. Every schedule must give the same tokens.
- *margin*: logits moved by up to ``apart``. Another token is a violation only where the two largest
  logits were more than ``TIMES * apart`` away from each other. The runs of a comparison report how
  close their closest choice was.
- *refused*: this engine can't run the model (``Refused``). An adapter refuses a state besides keys
  and values. The probe refuses logits that move by more than rounding explains, or that are others
  than in the library's own pass (``whole_pass``).

Measurements are kept in ``promises.json`` of ``checkpoint.model_home``, by checkpoint, device,
dtype and versions of the libraries. vLLM and SGLang keep lists of tested models instead
(vLLM #27433).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ..core import ForwardMode
from ..devices.base import Array, Device, reason_of
from ..devices.registry import open_device
from ..trace.files import write_whole
from .base import ForwardBatch, GraphModel, Model, make_forward_batch
from .checkpoint import WeightsError, model_home

TIMES = 4  # of the measured movement; a choice that was closer than this may differ
ROUNDING = {"bfloat16": 0.1, "float16": 0.1}  # of the largest logit; more is no rounding
OTHERWISE = 1e-3  # the same for wider dtypes
KEPT = "promises.json"
LIBRARIES = ("mlx", "mlx-lm", "numpy", "torch", "transformers")


class Refused(WeightsError):
    """A model that this engine can't run; the message is one sentence with the reason."""


def kind_of(apart: float) -> str:
    """Return the class of a model with logits that move by up to ``apart``."""
    return "margin" if apart else "exact"


def is_allowed(margin: float | None, apart: float | None) -> bool:
    """Return whether rounding explains another token, where two logits were ``margin`` apart."""
    return bool(apart) and margin is not None and margin <= TIMES * (apart or 0.0)


# -- Measured once for each checkpoint -------------------------------------------------------------


def measure_apart(model: Model, device: str, directory: Path | None = None) -> float:
    """Return how far logits move on a device: kept by the model's directory, or measured now.

    A model without a directory, such as an object that the user has loaded, is always measured.

    Raises:
        Refused: logits are no numbers, or move by more than rounding explains.
    """
    key = fingerprint(model, device, directory) if directory else ""
    file = model_home() / KEPT
    if key and isinstance(known := read_kept(file).get(key), float):
        return known
    opened = open_device(device)
    try:
        apart = probe(model, opened)
    finally:
        opened.close()
    if key:
        content = json.dumps({**read_kept(file), key: apart}, indent=1)
        with suppress(ValueError):  # of a folder that can't be written
            write_whole(file, content, with_folders=True)
    return apart


def fingerprint(model: Model, device: str, directory: Path) -> str:
    """Return a hash of everything that the measurement depends on.

    Of the weights it takes names, sizes and times of change, because reading them takes long.
    """
    files = sorted(path for path in directory.iterdir() if path.suffix in (".json", ".safetensors"))
    versions = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(name)
    parts = [
        f"{type(model).__module__} {device} {model.dtype}", platform.machine(), os.cpu_count(),
        os.environ.get("LD_PRELOAD"),  # which may replace MLX's BLAS
        *versions,
        *((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files),
    ]  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def read_kept(file: Path) -> dict[str, Any]:
    """Return the kept measurements by key; a damaged or missing file has none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# -- The measurement: two prompts alone, then parts of them in steps with other rows ---------------

LENGTHS = (66, 16)  # positions; the first one is longer than a block of the torch Llama's attention
DECODES = 16  # rows of the largest step


class ProbeRow(NamedTuple):
    """A row of a step: some new tokens of one of the two prompts."""

    prompt: int  # 0 or 1
    start: int  # first new position; those before it are computed already
    length: int


def steps_of(lengths: Sequence[int]) -> list[list[ProbeRow]]:
    """Return the steps with other rows: chunks, decodes and drafts.

    ``lengths`` are those of the prompts; in a short context parts are shorter.
    """

    def part(at: int, start: int, size: int) -> ProbeRow:
        """Return a row inside a prompt; every fourth one is of the second prompt."""
        prompt = int(at % 4 == 3)
        size = min(size, lengths[prompt])
        return ProbeRow(prompt, min(start, lengths[prompt] - size), size)

    decodes = [part(at, 2 + 4 * at, 1) for at in range(DECODES)]
    chunks = [(0, 20), (15, 9), (60, 5), (8, 1)]
    return [
        [part(at, start, size) for at, (start, size) in enumerate(chunks)],
        decodes,
        [part(at, 18 * at, 3) for at in range(4)],
        decodes[4:9],
        decodes[13:14],
    ]


def probe(model: Model, device: Device) -> float:
    """Measure how far a model's logits move with the other rows of a step.

    Two prompts are computed alone, each in one step: that gives the logits after every position.
    Rows of later steps begin with the keys and values of a prompt, and compute some of its
    positions again, next to other rows. All steps together have about 150 tokens. A model of a
    library may have a ``whole_pass``, without pages: the last logits of a prompt are compared with
    those.

    Raises:
        Refused: a step fails, or logits are no numbers, or move by more than rounding explains.
    """
    lengths = [min(length, model.context_len) for length in LENGTHS]
    random, length = Random(0), max(lengths)
    prompts = [[random.randrange(model.vocab_size) for _ in range(each)] for each in lengths]
    rows = len(prompts) + DECODES
    stream, number = device.stream("forward"), count(1)

    def on_device(function: Callable[[], Array]) -> Any:
        """Return the result of a function that runs on the device."""
        return stream.launch(function, name="probe").synchronize()

    def run(parts: list[ProbeRow], first_row: int, alone: Sequence[Array] = ()) -> Any:
        """Run a step; return its logits, or how far they are from those of prompts ``alone``."""
        step = step_of(parts, first_row, prompts, length, next(number))
        inputs = make_forward_batch(step, device.xp, model.pad_to)

        def forward() -> Array:
            """Compute on the device."""
            table[inputs.table_index] = inputs.table_slots
            logits = model.forward(inputs, inputs.ids, table)
            same = [alone[it.prompt][it.start : it.start + it.length] for it in parts if alone]
            return distances(device, [logits], same) if alone else logits

        return on_device(forward)

    def from_whole_pass() -> Array:
        """Return how far the last logits of the prompts are from the library's own pass."""
        own = [whole_pass(prompt)[-1:] for prompt in prompts]
        return distances(device, [logits[-1:] for logits in alone], own)

    try:
        model.allocate(device, 1 + rows * length, length)
        table = device.memory("page table", rows * length)
        if isinstance(model, GraphModel):
            table = model.init_cuda_graphs(device, table, 0)
        alone = [run([ProbeRow(at, 0, each)], at) for at, each in enumerate(lengths)]
        moved = [each for parts in steps_of(lengths) for each in run(parts, 2, alone).tolist()]
        highest = on_device(lambda: largest(device, alone)).tolist()
        whole_pass: Any = getattr(model, "whole_pass", None)
        away = max(on_device(from_whole_pass).tolist()) if whole_pass else 0.0
    except Refused:
        raise
    except Exception as error:  # of a library's model, which may raise any kind
        reason = reason_of(error).rstrip(".")
        raise Refused(f"{model.name} can't run here: a step of it fails ({reason}).") from error
    worst: float = max(moved)
    scale = max(map(abs, highest))
    limit = scale * ROUNDING.get(model.dtype, OTHERWISE)
    if not all(map(isfinite, [*moved, *highest])) or worst > limit:
        raise Refused(
            f"{model.name} can't run here: the same tokens alone and in a batch give logits that "
            f"are {worst:.2g} apart, and the largest one is {scale:.2g}; no rounding is so large."
        )
    if not away <= limit:
        raise Refused(
            f"{model.name} can't run here: over pages its logits are {away:.2g} from those of "
            "the library's own pass, so its layers use more than keys and values."
        )
    return worst


def step_of(
    parts: list[ProbeRow], first_row: int, prompts: list[list[int]], length: int, number: int
) -> ForwardBatch:
    """Return a step in lists, with the logits of every token wanted.

    Row ``first_row + n`` computes the n-th part. Its page table has the slots of the prompt's own
    row, and slots of its own for the new positions.
    """
    table_index, table_slots, ids = list[int](), list[int](), list[int]()
    rows = [first_row + at for at in range(len(parts))]
    for row, part in zip(rows, parts, strict=True):
        end = part.start + part.length
        table_index += range(row * length, row * length + end)
        table_slots += range(1 + part.prompt * length, 1 + part.prompt * length + part.start)
        table_slots += range(1 + row * length + part.start, 1 + row * length + end)
        ids += prompts[part.prompt][part.start : end]
    lens = [part.length for part in parts]
    return ForwardBatch(
        number, ForwardMode.DECODE if max(lens) == 1 else ForwardMode.EXTEND,
        tuple(map(str, rows)), rows, [part.start for part in parts], lens,
        sample_lens=lens, logit_lens=lens, sampling=[], ids=ids, future_slots=[],
        table_index=table_index, table_slots=table_slots,
    )  # fmt: skip


def distances(device: Device, logits: list[Array], truth: list[Array]) -> Array:
    """Return how far each row of logits is from its row of ``truth``, [num_rows]."""
    xp: Any = device.xp
    one, other = (xp.wide(xp.lib.concatenate(each)) for each in (logits, truth))
    zeros = xp.lib.zeros_like(one)
    return largest(device, [xp.where(one == other, zeros, xp.lib.abs(one - other))])


def largest(device: Device, logits: list[Array]) -> Array:
    """Return the largest number of each row, [num_rows]."""
    xp: Any = device.xp
    return xp.lib.concatenate([xp.largest(xp.wide(each), 1)[:, 0] for each in logits])
