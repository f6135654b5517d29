"""Every file that is read may be in gzip; and large traces are read event by event."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisched.checks.foreign.foreign import read_foreign
from minisched.checks.foreign.json_events import PIECE, Damaged, JsonEvents
from minisched.checks.overlap.course import course_of
from minisched.checks.overlap.replay import replay, replayed_end
from minisched.checks.overlap.report import report
from minisched.checks.overlap.what_if import makespan_of, unchanged
from minisched.trace.files import DamagedGzip, read_text, unpacked
from tests.foreign_files import to_kineto, to_nsys
from tests.test_foreign_traces import run

ROOT = Path(__file__).resolve().parents[1]
CSV = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n0.2,396,109\n"
LINE = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}


def files(folder: Path) -> dict[str, tuple[str, bytes]]:
    """A command for each kind of file, with FILE in the place of its name; and what is in it."""
    to_nsys(run("serial"), folder / "made.sqlite")
    return {
        "trace.json": ("check FILE", (ROOT / "traces/overlap.json").read_bytes()),
        "stepped.json": ("stepper FILE", (ROOT / "traces/overlap.json").read_bytes()),
        "seen.json": ("view decode FILE --form text", (ROOT / "traces/decode.json").read_bytes()),
        "watched.json": ("watch FILE --frames 2", (ROOT / "traces/overlap.json").read_bytes()),
        "kineto.json": ("check FILE", to_kineto(run("serial")).encode()),
        "nsys.sqlite": ("check FILE", (folder / "made.sqlite").read_bytes()),
        "mooncake.jsonl": ("replay FILE", json.dumps(LINE).encode()),
        "lengths.csv": ("replay FILE", CSV.encode()),
        "prompts.txt": ("run --prompts FILE --max-new-tokens 2", b"one\ntwo\n"),
    }


def without_times(text: str) -> str:
    return re.sub(r"The simulation took .*", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", [
    "trace.json", "stepped.json", "seen.json", "watched.json", "kineto.json", "nsys.sqlite",
    "mooncake.jsonl", "lengths.csv", "prompts.txt",
])  # fmt: skip
def test_what_is_in_gzip_is_read_as_if_it_were_not(cli: Any, tmp_path: Path, name: str) -> None:
    line, data = files(tmp_path)[name]
    told = []
    for packed in (False, True):
        (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
        code, out, err = cli(line.replace("FILE", name))
        assert code == 0, err
        told.append(without_times(out))
    assert told[0] == told[1] and told[0]
    (tmp_path / name).write_bytes(gzip.compress(data)[:-9])
    code, out, err = cli(line.replace("FILE", name))
    assert (code, out) == (2, "") and "its gzip is damaged" in err and len(err.splitlines()) == 1


def test_a_profile_in_gzip(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(b"{}"))
    assert "is no cost profile" in cli("compare --profile p.json.gz")[2]


def test_what_is_no_gzip_and_short(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert read_text(tmp_path / "a") == ""
    (tmp_path / "a").write_bytes(b"\x1f\x8b")
    with pytest.raises(DamagedGzip), unpacked(tmp_path / "a") as file:
        file.read()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


class Slow(io.BytesIO):
    """Gives a few bytes at a time, so that every value is cut somewhere."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(3)


@given(events=st.lists(JSON, max_size=5), beside=st.dictionaries(st.text(max_size=4), JSON),
       indent=st.sampled_from([None, 1]), first=st.booleans())  # fmt: skip
def test_event_by_event_is_what_json_reads(
    events: list[Any], beside: dict[str, Any], indent: int | None, first: bool
) -> None:
    beside.pop("traceEvents", None)
    whole = {"traceEvents": events, **beside} if first else {**beside, "traceEvents": events}
    text = json.dumps(whole, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
    for file in (io.BytesIO(text), Slow(text)):
        read = JsonEvents(file)
        assert list(read) == events and read.about == beside and read.has_events
    alone = json.dumps(events).encode()
    assert list(JsonEvents(Slow(alone))) == events


@given(value=JSON, cut=st.integers(0, 200), junk=st.sampled_from(["", "]", "}", ",", "x", ' "']))
def test_what_json_refuses_is_refused(value: Any, cut: int, junk: str) -> None:
    text = json.dumps({"a": 1, "traceEvents": [value]})[:cut] + junk
    try:
        json.loads(text)
    except ValueError:
        with pytest.raises(Damaged, match="at character"):
            list(JsonEvents(Slow(text.encode())))
    else:
        list(JsonEvents(Slow(text.encode())))


def large(path: Path, megabytes: int) -> None:
    """A trace of that size, made of one that repeats itself."""
    events = json.loads(to_kineto(run("serial")))["traceEvents"]
    span = 300_000
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        turn, comma = 0, ""
        while file.tell() < megabytes << 20:
            for event in events:
                moved = {**event, "ts": event.get("ts", 0) + turn * span}
                if "correlation" in event.get("args", {}):
                    number = event["args"]["correlation"] + turn * 10_000
                    moved["args"] = {**event["args"], "correlation": number}
                file.write(comma + json.dumps(moved))
                comma = ",\n"
            turn += 1
        file.write("]}")


def test_reading_takes_a_small_multiple_of_the_file(tmp_path: Path) -> None:
    """As a list of dictionaries its events take five times the file before the first is looked at.

    Python's own count of its memory, so that no other process and no allocator has a say.
    """
    path = tmp_path / "large.json"
    large(path, 6)
    assert path.stat().st_size > 20 * PIECE
    tracemalloc.start()
    try:
        found = read_foreign(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.trace.slices) > 10_000
    assert most < 4 * path.stat().st_size


@pytest.mark.parametrize("loop", ["serial", "overlap"])
def test_the_end_alone_is_that_of_all(loop: str) -> None:
    lanes = unchanged(course_of(run(loop)))
    assert replayed_end(lanes) == makespan_of(replay(lanes)) > 0


@pytest.mark.parametrize("annotated", [True, False])
def test_a_foreign_trace_gets_the_advice_of_one_s_own(tmp_path: Path, annotated: bool) -> None:
    """Whether or not anybody said what the host did between a result and the next launch."""
    ours = run("serial")
    data = json.loads(to_kineto(ours))
    if not annotated:
        data["traceEvents"] = [
            event for event in data["traceEvents"] if event.get("cat") != "user_annotation"
        ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    theirs = report(read_foreign(path).trace).largest
    own = report(ours).largest
    assert own is not None and theirs is not None
    assert theirs.removals[0].change == own.removals[0].change
    assert own.removals[0].change.startswith("launch each step before the one before it is proc")


def test_progress_on_a_terminal_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    large(path, 3)
    command = [sys.executable, "-m", "minisched", "check", "large.json"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    quiet = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert quiet.returncode == 0 and quiet.stderr == ""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs, env=env
    ) as started:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65536):
                said += piece
        except OSError:  # how Linux says that nobody has the other end
            pass
        os.close(ours)
        assert started.stdout is not None
        assert started.stdout.read().decode() == quiet.stdout
    assert b"reading large.json" in said
