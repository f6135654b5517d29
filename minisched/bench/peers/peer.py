"""A peer: a script that names its packages, in an environment of its own, asked line by line.

Measurements of several peers can take turns, although each needs other versions of packages. A
script here begins with what it needs (PEP 723). ``venv`` and ``pip`` make an environment of that,
once, below the folder of the models.

Nothing here imports more than the standard library: both ends of the pipe do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

PACKAGE = Path(__file__).parents[2]  # this very package, which a peer may import too
HEADER = re.compile(r"(?m)^# /// script\n((?:#.*\n)+?)# ///$")
Answer = dict[str, Any]
Say = Callable[[str], None]


class PeerError(RuntimeError):
    """The peer can't do it, or has ended; the message is the reason."""


# -- The environment that a script asks for --------------------------------------------------------


def packages(module: str) -> tuple[list[str], list[str]]:
    """Return the packages of a script's head: those with dependencies, and those without.

    Packages without dependencies are listed under ``tool.uv``; stand-ins replace what they need.
    A script without a head needs no packages.
    """
    head = HEADER.search(path_of(module).read_text(encoding="utf-8"))
    if head is None:
        return [], []
    read = tomllib.loads("".join(line[2:] for line in head[1].splitlines(keepends=True)))
    metadata = read.get("tool", {}).get("uv", {}).get("dependency-metadata", [])
    bare = {each["name"] for each in metadata if not each["requires-dist"]}
    wanted = {name: name.partition("==")[0] in bare for name in read["dependencies"]}
    return [name for name in wanted if not wanted[name]], [name for name in wanted if wanted[name]]


def version_of(module: str, package: str) -> str:
    """Return the version of a package that a script's head names."""
    needed, alone = packages(module)
    return next(name[len(package) + 2 :] for name in needed + alone if name.startswith(package))


def version_in(checkout: Path) -> str:
    """Return the version in a checkout's pyproject.toml."""
    file = checkout / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return str(project.get("project", {}).get("version", "unknown"))


def path_of(module: str) -> Path:
    """The file of one of this package's modules, which is not imported."""
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def interpreter(module: str, report: Say) -> Path:
    """Return the Python of a script's environment, made on first use; ours without packages.

    Raises:
        PeerError: it can't be made for lack of disk space, of pip or of a package.
    """
    needed, alone = packages(module)
    if not needed:
        return Path(sys.executable)
    name = module.rpartition(".")[2]
    folder = home() / hashlib.sha256(repr((needed, alone)).encode()).hexdigest()[:8]
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        report(f"installing the packages of {name} on their own (about 1 GB, minutes)")
        try:
            venv.create(folder, clear=True, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:  # Debian has pip in python3-venv
            raise PeerError(
                f"an environment for {name} can't be made in {folder}: {error}"
            ) from error
        # Python compiles the few modules that are imported; pip would compile all of them.
        pip = (str(python), "-m", "pip", "install", "-q", "--no-compile")
        for wanted in (needed, ["--no-deps", *alone] if alone else []):
            if wanted:
                call(" ".join(wanted), *pip, *wanted)
        (folder / "done").touch()
    return python


def home() -> Path:
    """Where environments lie: beside fetched models."""
    from ...models.checkpoint import model_home

    return model_home() / "peers"


def call(name: str, *command: str) -> None:
    """Run a command.

    Raises:
        PeerError: it failed, so that ``name`` can't be installed.
    """
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason was given"]
        raise PeerError(f"{name} can't be installed: {lines[-1]}")


def environment() -> dict[str, str]:
    """Return our environment variables with a ``PYTHONPATH`` that leads to this package alone.

    Its folder contains only a link to this package: a peer must not see the other packages
    installed here. It keeps its bytecode, because pip has compiled none of it.
    """
    elsewhere = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    folder = home() / f"import-{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / PACKAGE.name).exists():
        (folder / PACKAGE.name).symlink_to(PACKAGE)
    return {**kept, "PYTHONPATH": str(folder)}


# -- Our end of the pipe ---------------------------------------------------------------------------


class Peer:
    """A process that is started with ``settings``, then asked; a context manager.

    Raises:
        PeerError: it could not start.
    """

    def __init__(
        self, name: str, command: Sequence[str], settings: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (an unread pipe would fill up)
        self.process = subprocess.Popen(
            command, env={**env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            text=True, encoding="utf-8",
        )  # fmt: skip
        try:
            self.ask(settings)
        except BaseException:
            self.close()
            raise

    def ask(self, question: Mapping[str, Any]) -> Answer:
        """Its answer to one line.

        Raises:
            PeerError: it answered with an error, or not at all.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin and stdout
        try:
            print(json.dumps(question), file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines() or [f"exit code {code}"]
            raise PeerError(f"{self.name} has ended: {lines[-1]}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self.close()


def start_peer(
    module: str,
    settings: Mapping[str, Any],
    report: Say,
    env: Mapping[str, str] | None = None,
    packages_of: str = "",
    or_here: Sequence[str] = (),
) -> Peer:
    """Start a script of this package, with ``env`` added, in the environment of its head.

    ``packages_of`` names another script with the head to use. If that environment can't be made,
    for example without a network, a script that runs with the packages ``or_here`` in any version
    takes those that are installed here.

    Raises:
        PeerError: its packages can't be installed, or it could not start.
    """
    name = module.rpartition(".")[2]
    try:
        python = interpreter(packages_of or module, report)
    except PeerError as error:
        if not or_here or not all(map(find_spec, or_here)):
            raise
        python = Path(sys.executable)
        report(f"{error}; {name} takes the {' and '.join(or_here)} that are installed here")
    report(f"starting {name}")
    return Peer(name, [str(python), "-m", module], settings, environment() | dict(env or {}))


# -- The peer's end --------------------------------------------------------------------------------


def serve(start: Callable[[Answer], Callable[[Answer], Answer]]) -> None:
    """Start with the first line and answer ``{"ready": true}``; then answer each question.

    Everything that the peer prints goes to stderr. An error is an answer: ``{"error": sentence}``.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library's own prints, those of its C code too, are no answers
    measure = None
    for line in sys.stdin:
        try:
            if measure is None:
                measure = start(json.loads(line))
                answer: Answer = {"ready": True}
            else:
                answer = measure(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
