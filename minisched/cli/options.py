"""The options that ``compare`` and ``run`` share, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from ..core import Request, SamplingParams
from ..devices.cost import MILLISECOND, NO_COST, SIM_COST, CostModel
from ..models.base import Model
from ..models.registry import open_model
from ..models.tokenizer import ByteTokenizer, TextCodec
from ..scheduler import SchedulerConfig
from .prompts import read_prompts

DeviceName = Annotated[str, typer.Option("--device", help="sim, thread, cuda or mlx.")]
ModelName = Annotated[
    str, typer.Option("--model", help="hash, smollm2, a directory, or a Hugging Face id.")
]
Requests = Annotated[int | None, typer.Option(help="How many requests; prompts go round again.")]
Prompts = Annotated[list[str] | None, typer.Option("--prompt", help="A prompt; repeatable.")]
PromptFile = Annotated[Path | None, typer.Option("--prompts", help="A file, one prompt a line.")]
MaxNewTokens = Annotated[int, typer.Option(help="The most tokens that a request may produce.")]
Chunk = Annotated[int, typer.Option(help="The most prompt tokens of one prefill batch.")]
Pool = Annotated[int | None, typer.Option(help="KV slots; default: room for every request.")]
PageSize = Annotated[int, typer.Option(help="KV slots to a page.")]
MaxRunning = Annotated[int, typer.Option("--max-running", help="Requests that run at once.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Keep the tokens that make up this probability.")]
TopK = Annotated[int, typer.Option(help="Keep this many tokens; -1 keeps all.")]
Seed = Annotated[int, typer.Option(help="Decides every random draw, if temperature is above 0.")]
HostWork = Annotated[float, typer.Option(help="Milliseconds of host work to add to each step.")]


MOST_HOST_WORK = 60_000  # milliseconds a step


@dataclass(frozen=True)
class Options:
    """What to run. Raises ValueError, with one sentence, where an option can't be."""

    device: str = "sim"
    model: str = "hash"
    requests: int | None = None
    prompts: list[str] = field(default_factory=list)
    prompt_file: Path | None = None
    chunk: int = 128
    pool: int | None = None
    page_size: int = 1
    max_running: int = 16
    host_work: float = 0.0
    sampling: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        for name in ("chunk", "page_size", "pool", "max_running"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{flag(name)} is {value}, but it must be at least 1.")
        if self.pool is not None and self.pool < self.page_size:
            raise ValueError(
                f"--pool is {self.pool}, but it must hold at least one page of {self.page_size}."
            )
        if not 0 <= self.host_work <= MOST_HOST_WORK:
            raise ValueError(
                f"--host-work is {self.host_work}, but it must be between 0 and {MOST_HOST_WORK}."
            )
        if problem := self.sampling.problem():
            name, rest = problem.split(" ", 1)
            raise ValueError(f"--{flag(name)} {rest}")
        read_prompts(self.prompts, self.prompt_file, self.requests)

    def open_model(self) -> Model:
        """The model, for the device."""
        return open_model(self.model, self.device)

    def make_requests(self, model: Model) -> list[Request]:
        """The requests, tokenized."""
        texts = read_prompts(self.prompts, self.prompt_file, self.requests)
        tokenizer = text_codec(model)
        return [Request(f"r{i}", tokenizer.encode(t), self.sampling) for i, t in enumerate(texts)]

    def make_config(self, model: Model, requests: list[Request]) -> SchedulerConfig:
        """Room for every request, unless ``--pool`` says less.

        Rows of the page table are as long as the longest request, because real models pay for
        it; a request beyond the model's context is refused, and named, by the scheduler.
        """
        lengths = [min(request.max_device_len, model.context_len) for request in requests]
        pages = [-(-length // self.page_size) for length in lengths]
        room = sum(sorted(pages)[-self.max_running :])
        return SchedulerConfig(
            num_pages=room if self.pool is None else max(1, self.pool // self.page_size),
            page_size=self.page_size,
            max_running_requests=min(self.max_running, len(requests)),
            chunk_size=self.chunk,
            context_len=max(lengths),
        )

    def cost(self) -> CostModel:
        """The cost model of ``sim``, or none; with the added host work in either."""
        cost = SIM_COST if self.device == "sim" else NO_COST
        half = round(self.host_work * MILLISECOND / 2)
        host = {name: cost.host.get(name, 0) + half for name in ("schedule", "process")}
        return replace(cost, host={**cost.host, **host})


def flag(name: str) -> str:
    """An option's spelling on the command line."""
    return name.replace("_", "-")


def text_codec(model: Model) -> TextCodec:
    """What turns prompts into the model's tokens; the hash model reads UTF-8 bytes.

    Raises:
        ValueError: the model came without a tokenizer.
    """
    if model.tokenizer is None and model.name != "hash":
        raise ValueError(f"model {model.name!r} has no tokenizer.json, so it can't read prompts.")
    codec: TextCodec = model.tokenizer or ByteTokenizer()
    return codec


def overlapped_loop(device: str) -> str:
    """The loop that overlaps on a device, unless told otherwise."""
    return "mlx_async" if device == "mlx" else "overlap"
