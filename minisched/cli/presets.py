"""``minisched presets``: the published classes of GPUs and what each is told."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..scheduler.presets import PRESETS, Preset
from .layout import Fitted

COLUMNS = ("preset", "GiB", "TP", "chunk", "graphs", "ratio", "such as")
LEGEND = (
    "TP: GPUs that share a model. chunk: the most prompt tokens of one step. graphs: the largest "
    "decode batch that is captured. ratio: chunk / graphs, prompt tokens for each decoded token."
)


def run_presets(as_json_only: bool) -> None:
    """Print the table, and below it the recommendations."""
    if as_json_only:
        print(json.dumps({"presets": [as_json(preset) for preset in PRESETS]}))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in COLUMNS:
        is_text = column in ("preset", "such as")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for preset in PRESETS:
        table.add_row(*cells(preset))
    console = Console(highlight=False)
    console.print(Fitted(table))
    console.print(LEGEND)
    for preset in PRESETS:
        console.print(f"[bold]{preset.name}[/bold]: {preset.recommendation}")


def cells(preset: Preset) -> list[str]:
    """One row of the table."""
    return [
        preset.name,
        memory(preset),
        "any" if preset.min_tensor_parallel == 1 else f"{preset.min_tensor_parallel}+",
        str(preset.chunked_prefill_size),
        str(preset.cuda_graph_max_bs),
        f"{preset.prefill_decode_ratio:.1f}",
        ", ".join(preset.gpus),
    ]


def memory(preset: Preset) -> str:
    """The class's range of GPU memory."""
    if preset.min_gib == 0:
        return f"<{preset.below_gib:g}"
    if preset.below_gib == inf:
        return f"{preset.min_gib:g}+"
    return f"{preset.min_gib:g}-{preset.below_gib:g}"


def as_json(preset: Preset) -> dict[str, object]:
    """A preset with its ratio; JSON knows no infinity, so no upper end is null."""
    below = None if preset.below_gib == inf else preset.below_gib
    ratio = preset.prefill_decode_ratio
    return {**asdict(preset), "below_gib": below, "prefill_decode_ratio": ratio}
