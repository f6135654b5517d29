"""A run that is recorded straight into a file of minisched's own format, and not kept in memory."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..trace import Counter, Edge, Mark, Program, Recorder, Slice
from ..trace.files import WholeFile
from .native import FORMAT, VERSION, line_of

PIECE = 1 << 20  # characters that are copied at once


class StreamRecorder(Recorder):
    """Writes each event when it happens; ``close`` puts the lists together.

    For virtual clocks: on a wall clock, time 0 is known only at the end. No program is kept, so
    nobody can look for races in the file. An edge is held until both its slices have ended; one
    that never does leaves no edge. (On a thread of the host a call launches before it has ended.)

    Raises:
        OSError: the file, or one beside it for the time being, can't be written.
    """

    def __init__(self, path: Path, loop: str, device: str, model: str) -> None:
        super().__init__()
        self.program = Program(self.new_id, is_on=False)
        self._whole = WholeFile(path)
        self._file = self._whole.file
        about = {"loop": loop, "device": device, "model": model, "clock": "virtual"}
        said = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in about.items())
        self._file.write(f'{{\n"format": {json.dumps(FORMAT)}, "version": {VERSION},\n{said}')
        self._lists = {
            name: TemporaryFile("w+", encoding="utf-8", newline="\n", dir=path.parent)  # noqa: SIM115
            for name in ("slices", "edges", "counters", "marks")
        }
        self._to_come: set[int] = set()  # slices, and signals, which never end
        self._held: dict[int, set[Edge]] = {}  # by the slice that they wait for
        self._newest: set[Edge] = set()  # to one slice that has ended: each is written once
        self._begun: set[str] = set()  # lists that have an event

    def new_id(self) -> int:
        """An id for a slice to come."""
        number = super().new_id()
        self._to_come.add(number)
        return number

    def slice(self, item: Slice) -> None:
        """Write a slice that has ended, and the edges to it."""
        if item.lane == "host" and (line := self.line()):
            item.attrs["line"] = line
        self._write("slices", item)
        self._to_come.discard(item.id)
        for edge in sorted(self._held.pop(item.id, ())):
            self.edge(edge.kind, edge.src, edge.dst)

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Write an edge between slices that have ended, or hold it."""
        if not src:
            return  # launched outside every slice
        edge = Edge(src, dst, kind)
        for end in (dst, src):
            if end in self._to_come:
                self._held.setdefault(end, set()).add(edge)
                return
        if all(other.dst != dst for other in self._newest):
            self._newest.clear()
        if edge not in self._newest:
            self._newest.add(edge)
            self._write("edges", edge)

    def counter(self, name: str, value: int) -> None:
        """Write a number as it is now."""
        self._write("counters", Counter(name, self.now(), value))

    def keep(self, mark: Mark) -> None:
        """Write a moment."""
        self._write("marks", mark)

    def close(self) -> None:
        """Put the lists together; the file is whole after that, and has its name."""
        with self._whole as whole:
            for name, lines in self._lists.items():
                with lines:
                    lines.seek(0)
                    whole.write(f',\n"{name}": [')
                    while piece := lines.read(PIECE):
                        whole.write(piece)
                    whole.write("\n]")
            whole.write("\n}\n")

    def drop(self) -> None:
        """Give up: an event could not be written, so the file would lack it."""
        self._whole.drop()
        for lines in self._lists.values():
            with suppress(OSError):
                lines.close()

    def _write(self, name: str, event: Any) -> None:
        comma = "," if name in self._begun else ""
        self._begun.add(name)
        self._lists[name].write(f"{comma}\n{line_of(event)}")
