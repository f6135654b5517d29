"""The promise of a model, measured: do its logits depend on the other requests of a step?

A model that is asked for the same tokens alone and in a batch should give the same logits. Many
libraries add in another order for another number of rows, so logits move by some roundings. How
far is measured once, when a model is opened (``promise_of``). The model is then in a class:

- *exact*: no logit moved. Every schedule must give the same tokens.
- *margin*: logits moved by up to ``apart``. Another token is a violation only where the two largest
  logits were more than ``TIMES * apart`` away from each other. The runs of a comparison report how
  close their closest choice was.
- *refused*: this engine can't run the model (``Refused``). An adapter refuses a state besides keys
  and values. The probe refuses logits that move by more than rounding explains.

Measurements are kept in ``promises.json`` of ``checkpoint.model_home``, by checkpoint, device,
dtype and versions of the libraries. vLLM and SGLang keep lists of tested models instead
(vLLM #27433).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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
TOO_FAR = 0.1  # of the largest logit; a movement above it is no rounding
KEPT = "promises.json"
LIBRARIES = ("mlx", "mlx-lm", "numpy", "torch", "transformers")


class Refused(WeightsError):
    """A model that this engine can't run; the message is one sentence with the reason."""


@dataclass(frozen=True)
class Promise:
    """How far the logits of an opened model move with the batch."""

    apart: float  # the largest movement of a logit
    rows: int  # number of compared rows of logits
    moved: int  # number of those with a logit that moved

    @property
    def kind(self) -> str:
        """Return ``exact`` or ``margin``."""
        return kind_of(self.apart)

    def __str__(self) -> str:
        if not self.apart:
            return f"exact: no logit of {self.rows} rows moves with the batch"
        return (
            f"margin: logits of {self.moved} of {self.rows} rows move by up to {self.apart:.2g} "
            "with the batch"
        )


def kind_of(apart: float) -> str:
    """Return the class of a model with logits that move by up to ``apart``."""
    return "margin" if apart else "exact"


def is_allowed(margin: float | None, apart: float | None) -> bool:
    """Return whether rounding explains another token, where two logits were ``margin`` apart."""
    return bool(apart) and margin is not None and margin <= TIMES * (apart or 0.0)


# -- Measured once for each checkpoint -------------------------------------------------------------


def promise_of(model: Model, device: str, directory: Path | None = None) -> Promise:
    """Return the promise of a model on a device: kept by its directory, or measured now.

    A model without a directory, such as an object that the user has loaded, is always measured.

    Raises:
        Refused: logits are no numbers, or move by more than rounding explains.
    """
    key = fingerprint(model, device, directory) if directory else ""
    file = model_home() / KEPT
    if key and (known := read_kept(file).get(key)) is not None:
        return Promise(**known)
    opened = open_device(device)
    try:
        found = probe(model, opened)
    finally:
        opened.close()
    if key:
        keep(file, key, found)
    return found


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


def keep(file: Path, key: str, promise: Promise) -> None:
    """Add a measurement to the file; without a writable folder do nothing."""
    content = json.dumps({**read_kept(file), key: asdict(promise)}, indent=1)
    with suppress(ValueError):
        write_whole(file, content, with_folders=True)


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


def probe(model: Model, device: Device) -> Promise:
    """Measure how far a model's logits move with the other rows of a step.

    Two prompts are computed alone, each in one step: that gives the logits after every position.
    Rows of later steps begin with the keys and values of a prompt, and compute some of its
    positions again, next to other rows. All steps together have about 150 tokens.

    Raises:
        Refused: a step fails, or logits are no numbers, or move by more than rounding explains.
    """
    lengths = [min(length, model.context_len) for length in LENGTHS]
    random, length = Random(0), max(lengths)
    prompts = [[random.randrange(model.vocab_size) for _ in range(each)] for each in lengths]
    rows = len(prompts) + DECODES
    model.allocate(device, 1 + rows * length, length)
    table = device.memory("page table", rows * length)
    if isinstance(model, GraphModel):
        table = model.init_cuda_graphs(device, table, 0)
    stream, number = device.stream("forward"), count(1)

    def run(parts: list[ProbeRow], first_row: int, against: list[Any] | None) -> Any:
        """Run a step and return its logits; with ``against`` how far they are from those."""
        step = step_of(parts, first_row, prompts, length, next(number))
        inputs = make_forward_batch(step, device.xp, model.pad_to)

        def forward() -> Array:
            """Compute on the device."""
            table[inputs.table_index] = inputs.table_slots
            logits = model.forward(inputs, inputs.ids, table)
            return logits if against is None else distances(device, logits, parts, against)

        return stream.launch(forward, name="probe").synchronize()

    try:
        alone = [run([ProbeRow(at, 0, each)], at, None) for at, each in enumerate(lengths)]
        apart = [each for parts in steps_of(lengths) for each in run(parts, 2, alone).tolist()]
        highest = stream.launch(lambda: largest(device, alone), name="probe").synchronize().tolist()
    except Exception as error:  # of a library's model, which may raise any kind
        reason = reason_of(error).rstrip(".")
        raise Refused(f"{model.name} can't run here: a step of it fails ({reason}).") from error
    worst, scale = max(apart), max(map(abs, highest))
    if not all(map(isfinite, [*apart, *highest])) or worst > scale * TOO_FAR:
        raise Refused(
            f"{model.name} can't run here: the same tokens alone and in a batch give logits that "
            f"are {worst:.2g} apart, and the largest one is {scale:.2g}; no rounding is so large."
        )
    return Promise(worst, len(apart), sum(each > 0 for each in apart))


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
    is_decode = max(lens) == 1
    return ForwardBatch(
        number, ForwardMode.DECODE if is_decode else ForwardMode.EXTEND,
        tuple(map(str, rows)), rows, [part.start for part in parts], lens,
        sample_lens=lens, logit_lens=lens, sampling=[], ids=ids, future_slots=[],
        table_index=table_index, table_slots=table_slots,
    )  # fmt: skip


def distances(device: Device, logits: Array, parts: list[ProbeRow], alone: list[Array]) -> Array:
    """Return how far each row of logits is from that of the prompt alone, [num_tokens]."""
    xp: Any = device.xp
    truth = xp.lib.concatenate([
        alone[part.prompt][part.start : part.start + part.length] for part in parts
    ])  # fmt: skip
    one, other = xp.wide(logits), xp.wide(truth)
    zeros = xp.lib.zeros_like(one)
    return largest(device, [xp.where(one == other, zeros, xp.lib.abs(one - other))])


def largest(device: Device, logits: list[Array]) -> Array:
    """Return the largest number of each row, [num_rows]."""
    xp: Any = device.xp
    return xp.lib.concatenate([xp.largest(xp.wide(each), 1)[:, 0] for each in logits])
