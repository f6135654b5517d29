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
from io import StringIO
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from minisched.cli.watch_screen import Player, screen
from minisched.devices.sim import SimDevice
from minisched.export.recipes import trace_of
from minisched.export.watch_frame import CURSOR, watched
from minisched.trace import Trace
from tests.support import COST, LOOP_OPTIONS, hash_model, play, workloads

ROOT = Path(__file__).resolve().parents[2]
OVERLAP = str(ROOT / "traces" / "overlap.json")
FAR = 300  # seconds; only ends a hang


@st.composite
def runs(draw: st.DrawFn) -> Trace:
    loop, relay, options = draw(st.sampled_from(LOOP_OPTIONS))
    workload, device = draw(workloads(max_requests=5)), SimDevice()
    play(workload, loop, relay, options, device, hash_model("sim", workload.eos_ids), COST)
    return device.recorder.trace(loop, "sim", "hash", "virtual")


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
    view, lanes = run.around(time), run.frame(time, columns, state=44).lanes
    (column,) = {line.index(CURSOR) for line in lanes[: len(view.lanes)]}
    margin = lanes[0].index("│") + 1
    cells = columns - margin
    assert abs((column - margin) / cells - (time - view.start) / max(1, view.duration)) <= 1 / cells


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
    player.time = times[-2]
    player.tick()
    assert (player.time, player.is_playing) == (times[-1], False)


@pytest.mark.parametrize(("columns", "rows"), [(60, 12), (80, 24), (120, 40)])
def test_the_screen_fits_any_terminal(columns: int, rows: int) -> None:
    run = watched(trace_of("pd"))
    console = Console(width=columns, height=rows, record=True, file=StringIO())
    console.print(screen(Player(run, run.moments.times[40]), columns, rows), end="")
    lines = console.export_text().splitlines()
    assert len(lines) <= rows and max(map(len, lines)) <= columns and "q quit" in lines[-1]
    assert sum(CURSOR in line for line in lines) == 7


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)

    def until(self, words: str) -> None:
        """Read until the screen has said something."""
        while words not in self.text:
            assert select.select([self.ours], [], [], FAR)[0], f"{words!r} never came: {self.text}"
            self.text += os.read(self.ours, 65536).decode(errors="replace")

    def check_end(self, code: int) -> None:
        """It ends so, and the terminal is as it was: its modes, its screen, its cursor."""
        assert self.process.wait(FAR) == code
        while select.select([self.ours], [], [], 0.2)[0]:
            self.text += os.read(self.ours, 65536).decode(errors="replace")
        assert self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l")
        assert self.text.rfind("\x1b[?1049l") > self.text.rfind("\x1b[?1049h")
        assert termios.tcgetattr(self.theirs) == self.before and "Traceback" not in self.text


def test_keys_move_through_the_run_and_q_restores_the_terminal() -> None:
    with Terminal(OVERLAP) as here:
        here.until("event 1 of")
        assert termios.tcgetattr(here.theirs) != here.before
        for keys, number in (("\x1b[C", 2), ("  ", 4), ("b", 3), ("\x1bOD", 2), ("\x1b[H", 1)):
            here.text = ""  # what was on the screen before is forgotten
            os.write(here.ours, keys.encode())
            here.until(f"event {number} of")
        os.write(here.ours, b"q")
        here.check_end(0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_ended_restores_the_terminal_without_a_traceback(number: signal.Signals) -> None:
    with Terminal("--at", "30", "--loop", "serial") as here:
        here.until("serial on sim")
        if number == signal.SIGINT:
            os.write(here.ours, b"\x03")  # as a key
        else:
            here.process.send_signal(number)
        here.check_end(128 + number)
