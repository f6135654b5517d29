"""A peer that runs in a process and an environment of its own, asked one measurement at a time.

So measurements of several peers can take turns, although each needs other versions of packages.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class PeerError(RuntimeError):
    """The peer can't do it, or has ended; the sentence says why."""


class Peer:
    """One script, started with ``settings``; a context manager.

    ``script`` is a module of ``package``; ``python`` is the interpreter of its environment
    (``peers/environment.py``).

    Raises:
        PeerError: it could not start.
    """

    def __init__(
        self,
        python: Path,
        script: str,
        settings: Mapping[str, Any],
        env: Mapping[str, str],
        package: str = "minisched.bench.peers",
    ) -> None:
        self.script = script
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads would fill up)
        self.process = subprocess.Popen(
            [python, "-m", f"{package}.{script}"], env={**env},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip
        try:
            self.ask(settings)
        except BaseException:
            self.close()
            raise

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
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
            raise PeerError(f"{self.script} has ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.script}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _last_words(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"
