"""``minisched presets``, and ``--preset``: the published classes of GPUs and their settings.

The numbers are those of SGLang ``server_args.py:_handle_gpu_memory_settings``. The advice follows
the chunked-prefill guide on them. The guide's own table differs in two places: it gives the RTX
4090 a decode batch of 16 (an older default; today 24), and it rounds 25.6 to 25.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from ..devices.registry import load
from .layout import JSON, print_json, say, say_table

AUTO, GIB = "auto", 1 << 30
MANY_GPUS = 4  # that share a model: from here on, graphs for larger batches are worth their memory


@dataclass(frozen=True)
class Preset:
    """The settings of a GPU with ``min_gib <= memory < below_gib``, in GiB of its memory."""

    name: str
    min_gib: float
    below_gib: float | None
    min_tensor_parallel: int  # GPUs that share the model; 1 where their number changes nothing
    chunked_prefill_size: int  # prompt tokens of one step
    cuda_graph_max_bs: int  # requests of the largest decode batch with a graph
    gpus: tuple[str, ...]  # examples
    recommendation: str

    @property
    def prefill_decode_ratio(self) -> float:
        """Return the prompt tokens for each decoded token, in the fullest step."""
        return self.chunked_prefill_size / self.cuda_graph_max_bs


PRESETS = (
    Preset("t4", 0, 20, 1, 2048, 8, ("T4", "RTX 4080"),
           "Keep chunks small and capture few graphs: both take memory from the KV pool."),
    Preset("rtx4090", 20, 35, 1, 2048, 24, ("A10", "RTX 4090", "RTX 5090"),
           "Small chunks. Mix them with decodes if prompts are long and users are many; if prompts "
           "are short, do not mix."),
    Preset("rtx4090-tp4", 20, 35, MANY_GPUS, 2048, 80, ("A10", "RTX 4090", "RTX 5090"),
           "Four GPUs or more that share a model have memory for graphs of larger batches. Without "
           "these graphs, decode steps would wait for launches."),
    Preset("a100-40gb", 35, 60, 1, 4096, 32, ("A100 40 GB", "L40"),
           "The balanced choice: mixed chunks of 4,096 tokens, and up to 256 running requests."),
    Preset("a100-40gb-tp4", 35, 60, MANY_GPUS, 4096, 160, ("A100 40 GB", "L40"),
           "As for one GPU, with graphs for batches five times as large."),
    Preset("h100", 60, 160, 1, 8192, 256, ("A100 80 GB", "H100", "H200"),
           "Chunks of 8,192 tokens: a long prompt takes half the steps, and no step is long."),
    Preset("h100-tp4", 60, 160, MANY_GPUS, 8192, 512, ("A100 80 GB", "H100", "H200"),
           "For many users: this class has the most decodes for a chunk."),
    Preset("b200", 160, None, 1, 16384, 512, ("B200", "MI300"),
           "Chunks of 16,384 tokens, with any number of GPUs that share a model."),
)  # fmt: skip


def preset_named(text: str) -> Preset:
    """Return a preset by its name, or by memory: ``24GiB`` is one such GPU, ``4x24GiB`` is four.

    ``auto`` is the first GPU that torch sees here, alone, as in SGLang's start.

    Raises:
        ValueError: there is no such preset, or torch is not there or sees no GPU.
    """
    for preset in PRESETS:
        if preset.name == text.lower():
            return preset
    size = re.fullmatch(r"(?:([1-9]\d*)x)?(\d{1,6}(?:\.\d+)?) ?gib", text, re.IGNORECASE)
    memory, gpus = (float(size[2]), int(size[1] or 1)) if size else (0.0, 1)
    if text.lower() == AUTO:
        wanted_by = "preset auto"  # ``in_words_of_options`` spells it as the command line does
        if not load("torch.cuda", "is_available", "torch", wanted_by)():
            raise ValueError(
                "preset is 'auto', but torch sees no GPU; give its name, or its memory as in 24GiB."
            )
        properties: Any = load("torch.cuda", "get_device_properties", "torch", wanted_by)
        memory = properties(0).total_memory / GIB
    if not memory:
        names = ", ".join(preset.name for preset in PRESETS)
        raise ValueError(
            f"preset is {text!r}, but it must be one of {names}, or an amount of GPU memory such "
            "as 24GiB or 4x24GiB."
        )
    fits = [it for it in PRESETS if it.min_gib <= memory < (it.below_gib or inf)
            and it.min_tensor_parallel <= gpus]  # fmt: skip
    return max(fits, key=lambda preset: preset.min_tensor_parallel)


LEGEND = (
    "TP: GPUs that share a model. chunk: the most prompt tokens of one step. graphs: the largest "
    "decode batch that is captured. ratio: chunk / graphs, prompt tokens for each decoded token."
)


def presets(json: bool = JSON) -> None:
    """List the classes of GPUs that --preset knows, with their sizes and settings."""
    if json:
        ratios = {it.name: {"prefill_decode_ratio": it.prefill_decode_ratio} for it in PRESETS}
        print_json({"presets": [asdict(it) | ratios[it.name] for it in PRESETS]})
        return
    rows = []
    for it in PRESETS:
        memory = f"{it.min_gib:g}-{it.below_gib:g}" if it.below_gib else f"{it.min_gib:g}+"
        parallel = "any" if it.min_tensor_parallel == 1 else f"{it.min_tensor_parallel}+"
        sizes = str(it.chunked_prefill_size), str(it.cuda_graph_max_bs)
        ratio = f"{it.prefill_decode_ratio:.1f}"
        rows.append((it.name, memory, parallel, *sizes, ratio, ", ".join(it.gpus)))
    heads = ("preset", ">GiB", ">TP", ">chunk", ">graphs", ">ratio", "such as")
    say_table(heads, rows, LEGEND)
    for it in PRESETS:
        say(f"{it.name}: {it.recommendation}")
