"""nano-vllm's scheduler and block manager, loaded from a checkout without the rest of it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

PACKAGE = "nanovllm"
NEEDED = ("engine/scheduler.py", "engine/block_manager.py", "engine/sequence.py")


class NanoVllm(NamedTuple):
    """The classes that are measured (nano-vllm ``engine/`` and ``sampling_params.py``)."""

    Scheduler: Any
    BlockManager: Any
    Sequence: Any
    SamplingParams: Any
    version: str

    def sequence(self, prompt: list[int], max_tokens: int) -> Any:
        """A request that runs to its length."""
        return self.Sequence(prompt, self.SamplingParams(max_tokens=max_tokens, ignore_eos=True))

    def scheduler(self, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int) -> Any:
        """A scheduler over blocks of ``Sequence.block_size`` tokens.

        Its own ``Config`` would ask for a model's directory.
        """
        return self.Scheduler(
            SimpleNamespace(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                eos=-1,
                kvcache_block_size=self.Sequence.block_size,
                num_kvcache_blocks=num_blocks,
            )
        )


def find_nano_vllm(folder: Path | None) -> tuple[NanoVllm | None, str]:
    """The classes, or the reason why there are none.

    Raises:
        ValueError: ``folder`` is not a checkout.
    """
    if folder is None:
        return None, "no checkout of nano-vllm was given with --nano-vllm"
    try:
        return load_nano_vllm(folder), ""
    except ModuleNotFoundError as error:
        return None, f"nano-vllm needs the package {error.name!r}, which is not installed"


def load_nano_vllm(folder: Path) -> NanoVllm:
    """The classes of the checkout in ``folder``; nothing of it stays in ``sys.modules``.

    Raises:
        ModuleNotFoundError: a package that these files import is not installed.
        ValueError: ``folder`` is not a checkout, or one too old to know chunked prefill.
    """
    missing = [name for name in NEEDED if not (folder / PACKAGE / name).is_file()]
    if missing:
        raise ValueError(
            f"--nano-vllm is {str(folder)!r}, which is no checkout of nano-vllm: "
            f"it has no {PACKAGE}/{missing[0]}."
        )
    with stub_package(folder):
        scheduler = importlib.import_module(f"{PACKAGE}.engine.scheduler")
        params = importlib.import_module(f"{PACKAGE}.sampling_params")
    classes = (scheduler.Scheduler, scheduler.BlockManager, scheduler.Sequence)
    if not hasattr(scheduler.BlockManager, "hash_blocks"):
        raise ValueError(
            f"--nano-vllm is {str(folder)!r}, an older nano-vllm: "
            "its BlockManager has no hash_blocks."
        )
    return NanoVllm(*classes, params.SamplingParams, version_of(folder))


def version_of(folder: Path) -> str:
    """What the checkout says of itself."""
    file = folder / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return str(project.get("project", {}).get("version", "unknown"))


@contextmanager
def stub_package(folder: Path) -> Iterator[None]:
    """Stand in for the package and its configuration, which import torch and transformers."""
    package, config = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.config")
    package.__path__ = [str(folder / PACKAGE)]
    config.Config = SimpleNamespace  # type: ignore[attr-defined]
    before = take_out()
    sys.modules.update({package.__name__: package, config.__name__: config})
    try:
        yield
    finally:
        take_out()
        sys.modules.update(before)


def take_out() -> dict[str, ModuleType]:
    """Remove the package from ``sys.modules``; what was there."""
    names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}
