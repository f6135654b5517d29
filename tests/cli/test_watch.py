"""``minisched watch``: each moment is what the trace says, and the terminal is left as it was."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time as clock
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from minisched.cli import watch, watch_keys
from minisched.cli.watch_screen import Player, screen
from minisched.devices.sim import SimDevice
from minisched.export.recipes import trace_of
from minisched.export.watch_frame import CURSOR, Watched, watched
from minisched.export.watch_source import HERE, sources_of
from minisched.loops.registry import LOOPS
from minisched.trace import Trace
from tests.support import COST, LOOP_OPTIONS, hash_model, play, workloads

ROOT = Path(__file__).resolve().parents[2]
OVERLAP = str(ROOT / "traces" / "overlap.json")
FAR = 300  # seconds; only ends a hang


@st.composite
def runs(draw: st.DrawFn) -> Trace:
    """A small random run under any policy, through any loop."""
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload, device = draw(workloads(max_requests=5)), SimDevice()
    play(workload, loop, relay, options, device, hash_model("sim", workload.eos_ids), COST)
    return device.recorder.trace(loop, "sim", "hash", "virtual")


@cache
def small_run(loop: str) -> Watched:
    """What ``minisched watch --loop LOOP`` shows."""
    return watch.open_run(None, loop)


# -- moments and frames ------------------------------------------------------------------------


@given(runs(), st.data())
def test_one_goes_through_every_moment_there_and_back(trace: Trace, data: st.DataObject) -> None:
    moments = watched(trace).moments
    assert list(moments.times) == sorted({0} | {t for s in trace.slices for t in (s.start, s.end)})
    last = moments.times[-1]
    assert [*map(moments.before, moments.times)] == [0, *moments.times[:-1]]
    assert [*map(moments.after, moments.times)] == [*moments.times[1:], last]
    time = data.draw(st.sampled_from(moments.times))
    begun = {s.start for s in trace.slices if s.name == "forward"} & set(moments.steps)
    assert moments.next_step(time) == min((t for t in begun if t > time), default=last)
    assert moments.previous_step(time) == max((t for t in begun if t < time), default=0)
    count = data.draw(st.integers(1, 20))
    found = moments.spread(0, count)
    assert found == sorted(set(found)) and found[0] == 0
    assert len(found) == min(count, len(moments.times)) and (len(found) == 1 or found[-1] == last)


@given(runs(), st.floats(0, 1), st.integers(60, 160))
def test_a_frame_says_what_happens_and_its_cursor_is_where_time_is(
    trace: Trace, share: float, columns: int
) -> None:
    run = watched(trace)
    time = run.moments.at(round(share * trace.end))
    slices = [s for s in trace.slices if s.duration]
    touched = {f"{s.name} ends" for s in slices if s.end == time}
    touched |= {f"{s.name} begins" for s in slices if s.start == time}
    now = run.happens(time).removeprefix("now: ")
    said = re.findall(r"([a-z ]+?)(?: \d+)? (ends|begins)", now)
    assert {f"{name.strip()} {what}" for name, what in said} <= touched
    assert bool(said) == bool(touched)
    frame = run.frame(time, columns, state=44)
    assert max(map(len, [frame.title, frame.now, *frame.lanes])) <= columns
    assert max(map(len, frame.state)) <= 44
    view = run.around(time)
    assert view.start <= time <= view.end
    lanes = frame.lanes[: len(view.lanes)]
    (column,) = {line.index(CURSOR) for line in lanes}
    margin = lanes[0].index("│") + 1
    cells = columns - margin
    assert abs((column - margin) / cells - (time - view.start) / max(1, view.duration)) <= 1 / cells


@given(runs(), st.floats(0, 1))
def test_counters_are_as_they_were_last_recorded(trace: Trace, share: float) -> None:
    run = watched(trace)
    time = run.moments.at(round(share * trace.end))
    state = run.frame(time).state
    first = next(at for at, line in enumerate(state) if line.startswith("counters: "))
    words = " ".join(line.strip() for line in state[first:]).removeprefix("counters: ")
    said = re.findall(r"(?:^|, )([a-z ]+?) (-?[\d.]+)", words)
    last = {counter.name: counter.value for counter in trace.counters if counter.time <= time}
    named = {"future slots": "next future slot"}
    names = dict.fromkeys(counter.name for counter in trace.counters)
    assert said == [
        (named.get(name, name), f"{last.get(name, 0) / (1000 if 'ratio' in name else 1):g}")
        for name in names
    ]


@pytest.mark.parametrize("loop", [*LOOPS, "vllm_async:pool:depth=4"])
def test_every_loop_can_be_watched_and_its_line_is_marked(loop: str) -> None:
    run = small_run(loop)
    times = run.moments.spread(0, 6)
    assert len({run.frame(time).plain() for time in times}) == 6
    if loop == "pd":
        return  # whose two engines have a source each
    source = sources_of(run.trace)["host"]
    lines = (ROOT / source.path).read_text(encoding="utf-8").splitlines()
    for time in times[1:]:
        begun = [s.attrs["line"] for s in run.trace.slices
                 if s.lane == "host" and s.start <= time and "line" in s.attrs]  # fmt: skip
        number = source.first_line + int(begun[-1])
        (line,) = [line for line in run.frame(time).source if line.startswith(HERE)]
        assert line == f"{HERE} {number:3} {lines[number - 1]}"


# -- keys --------------------------------------------------------------------------------------


def test_a_player_does_what_its_keys_say() -> None:
    run = watched(trace_of("overlap"))
    player, times, steps = Player(run, 0), run.moments.times, run.moments.steps
    for key, time in (
        ("next", times[1]), ("next", times[2]), ("back", times[1]), ("next step", steps[0]),
        ("next step", steps[1]), ("previous step", steps[0]), ("end", times[-1]),
        ("next", times[-1]), ("", times[-1]), ("home", 0), ("back", 0),
    ):  # fmt: skip
        player.press(key)
        assert player.time == time
    player.press("play")
    player.tick()
    assert (player.time, player.is_playing) == (times[1], True)
    player.press("next")
    player.tick()
    assert (player.time, player.is_playing) == (times[2], False)
    player.time, player.is_playing = times[-2], True
    player.tick()
    assert (player.time, player.is_playing) == (times[-1], False)


def test_a_burst_of_keys_is_read_one_by_one() -> None:
    pressed = "\x1b[C \x1bOD\x1b[B\x1b[Aq\x1bx\x1b[1~NP"
    found = [watch_keys.NAMES.get(key, "") for key in watch_keys.SEQUENCE.findall(pressed)]
    assert found == ["next", "next", "back", "next step", "previous step", "quit", "", "", "home",
                     "next step", "previous step"]  # fmt: skip


@pytest.mark.parametrize(("columns", "rows"), [(60, 12), (60, 14), (80, 24), (120, 40)])
def test_the_screen_fits_any_terminal(columns: int, rows: int) -> None:
    run = watched(trace_of("pd"))
    console = Console(width=columns, height=rows, record=True, file=StringIO())
    console.print(screen(Player(run, run.moments.times[40]), columns, rows), end="")
    lines = console.export_text().splitlines()
    assert len(lines) <= rows and max(map(len, lines)) <= columns
    assert "n next" in lines[-1] and "q quit" in lines[-1]
    assert sum(CURSOR in line for line in lines) == 7


def test_without_single_keys_a_line_is_a_key(
    minisched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["", "", "b", "what", "q"])
    monkeypatch.setattr(watch, "has_keys", lambda: False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: next(lines))
    code, out, err = minisched("watch", OVERLAP)
    assert (code, err) == (0, "")
    assert re.findall(r"event (\d+) of", out) == ["1", "2", "3", "2", "2"]


# -- a terminal --------------------------------------------------------------------------------


class Terminal:
    """A real pseudo-terminal with ``minisched watch`` in it."""

    def __init__(self, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, b"\x28\x00\x78\x00\0\0\0\0")  # 40 x 120
        self.before = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minisched", "watch", *arguments],
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, cwd=ROOT,
            env={**os.environ, "TERM": "xterm"}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.text = ""

    def until(self, words: str) -> None:
        """Read until the screen has said something."""
        end = clock.monotonic() + FAR
        while words not in self.text:
            assert clock.monotonic() < end, f"{words!r} never came: {self.text[-2000:]}"
            if select.select([self.ours], [], [], 0.2)[0]:
                self.text += os.read(self.ours, 65536).decode(errors="replace")

    def press(self, keys: str) -> None:
        """Type; what was on the screen before is forgotten."""
        self.text = ""
        os.write(self.ours, keys.encode())

    def check_end(self, code: int) -> None:
        """It ends so, and the terminal is as it was: its modes, its screen, its cursor."""
        assert self.process.wait(FAR) == code
        while select.select([self.ours], [], [], 0.2)[0]:
            self.text += os.read(self.ours, 65536).decode(errors="replace")
        assert self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l")
        assert self.text.rfind("\x1b[?1049l") > self.text.rfind("\x1b[?1049h")
        assert termios.tcgetattr(self.theirs) == self.before and "Traceback" not in self.text


@pytest.fixture
def terminal() -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()
        one.process.wait()
        os.close(one.ours)
        os.close(one.theirs)


def test_keys_move_through_the_run_and_q_restores_the_terminal(terminal: Any) -> None:
    here = terminal(OVERLAP)
    here.until("event 1 of")
    assert termios.tcgetattr(here.theirs) != here.before
    for keys, number in (("\x1b[C", 2), ("  ", 4), ("b", 3), ("\x1bOD", 2), ("\x1b[H", 1)):
        here.press(keys)
        here.until(f"event {number} of")
    here.press("q")
    here.check_end(0)


@pytest.mark.parametrize("how", ["ctrl-c", "told to end"])
def test_being_ended_restores_the_terminal_without_a_traceback(terminal: Any, how: str) -> None:
    here = terminal("--at", "30", "--loop", "serial")
    here.until("serial on sim")
    if how == "ctrl-c":
        here.press("\x03")
        here.check_end(130)
    else:
        here.process.send_signal(signal.SIGTERM)
        here.check_end(128 + signal.SIGTERM)
