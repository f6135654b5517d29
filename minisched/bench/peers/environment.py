"""Environments for peers: one for each, below the folder where models are kept, made once.

A peer's packages and their versions are written down here, so that a table can be made again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import minisched

from .peer import PeerError

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Packages:
    """What ``pip install`` is given for one peer; ``alone`` are installed without dependencies."""

    needed: tuple[str, ...]
    alone: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Changes with every version."""
        return hashlib.sha256(repr((self.needed, self.alone)).encode()).hexdigest()[:8]


# What importing the two schedulers needs; what a GPU needs has stand-ins (peers/missing.py).
VLLM_NEEDS = """
    numpy==2.4.6 transformers==5.19.0 fastapi==0.136.3 openai==3.54.0 openai-harmony==0.0.8
    aiohttp==3.14.5 cachetools==8.0.1 cbor2==6.2.1 cloudpickle==3.1.2 msgspec==0.22.0
    packaging==26.3 pillow==13.0.0 partial-json-parser==0.2.1.1.post7 prometheus-client==0.26.0
    psutil==7.2.2 py-cpuinfo==9.0.0 pybase64==1.5.1 pydantic==2.14.3 pyzmq==27.3.0
    regex==2026.11.15 requests==2.34.2 uvloop==0.23.0
"""
SGLANG_NEEDS = """
    numpy==2.4.6 transformers==5.19.0 fastapi==0.165.0 openai==2.8.0 aiohttp==3.14.5 dill==0.4.1
    distro==1.9.0 einops==0.8.2 msgspec==0.22.0 numba==0.65.1 orjson==3.13.0 packaging==26.3
    pillow==13.0.0 partial-json-parser==0.2.1.1.post7 prometheus-client==0.26.0 psutil==7.2.2
    pybase64==1.5.1 pydantic==2.14.3 python-multipart==0.0.34 pyzmq==27.3.0 regex==2026.11.15
    requests==2.34.2 scipy==1.17.1 setproctitle==1.3.8 uvicorn==0.54.0 uvloop==0.23.0
    xxhash==4.1.0
"""

PEERS: Mapping[str, Packages] = {
    "transformers": Packages((TORCH, "transformers==5.23.0", "accelerate==1.15.0")),
    "mlx-lm": Packages(("mlx[cpu]==0.32.4", "mlx-lm==0.32.2")),
    "llama-cpp": Packages(  # built from source, which takes about five minutes
        ("llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors==0.8.0", "numpy==2.4.6")
    ),
    "vidur": Packages(  # what importing a checkout of it needs
        ("numpy==2.4.6", "pandas==3.1.1", "scipy==1.17.1", "ddsketch==3.0.1")
    ),
    "vllm": Packages((TORCH, *VLLM_NEEDS.split()), alone=("vllm==0.33.0",)),
    "sglang": Packages((TORCH, *SGLANG_NEEDS.split()), alone=("sglang==0.5.23",)),
}


def environment(name: str, home: Path, report: Callable[[str], None] = lambda doing: None) -> Path:
    """The interpreter of a peer's environment below ``home``, which is made if need be.

    Raises:
        PeerError: it can't be made, for want of room, of pip or of a package; the sentence says.
    """
    packages = PEERS[name]
    folder = home / "peers" / f"{name}-{packages.key}"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        report(f"installing {name} into an environment of its own")
        try:
            venv.create(folder, clear=True, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:  # Debian has pip in python3-venv
            raise PeerError(
                f"{folder.name} can't be made below {folder.parent}: {error}"
            ) from error
        pip(python, *packages.needed)
        if packages.alone:
            pip(python, "--no-deps", *packages.alone)
        (folder / "done").touch()
    link(folder)
    return python


def pip(python: Path, *arguments: str) -> None:
    """Install packages.

    Raises:
        PeerError: pip could not.
    """
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *arguments], capture_output=True, text=True
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason was given"]
        raise PeerError(f"{' '.join(arguments)} can't be installed: {said[-1]}")


def link(folder: Path) -> None:
    """Let the environment import this very package, and nothing else from here."""
    site = next((folder / "lib").glob("python*/site-packages"))
    place = site / "minisched"
    if place.is_symlink():
        place.unlink()
    place.symlink_to(Path(minisched.__file__).parent)


def clean_env() -> dict[str, str]:
    """The environment variables of a peer: ours, less those that lead Python elsewhere."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
