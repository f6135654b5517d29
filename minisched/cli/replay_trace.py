"""The file that ``replay --trace`` leaves: the run's trace, written while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..export.native_stream import StreamRecorder
from ..replay.tally import RecordedTally, Tally


@contextmanager
def tally_into(path: Path | None, loop: str) -> Iterator[Tally]:
    """What adds a replay up, and writes its trace to ``path`` if there is one.

    Raises:
        ValueError: the file can't be written.
    """
    if path is None:
        yield Tally()
        return
    try:
        recorder = StreamRecorder(path, loop, "sim", "length")
        try:
            yield RecordedTally(recorder)
        except OSError:
            recorder.drop()
            raise
        except BaseException:  # what ran until then is a trace, too
            recorder.close()
            raise
        recorder.close()
    except OSError as error:
        raise ValueError(f"--trace {path} can't be written: {error.strerror}.") from error
