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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any

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
def test_a_frame_says_what_happens_where_its_cursor_is(
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
    drawn, meant = Fraction(column - margin, cells), Fraction(time - view.start, view.duration or 1)
    assert abs(drawn - meant) <= Fraction(1, cells)


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


@contextmanager
def watching(code: int, *arguments: str) -> Iterator[tuple[int, Any, Callable[[str], None]]]:
    """The command in a pseudo-terminal, which it leaves as it was: its modes, screen and cursor."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, b"\x28\x00\x78\x00\0\0\0\0")  # 40 x 120
    before, said = termios.tcgetattr(theirs), list[str]()
    process = subprocess.Popen(
        [sys.executable, "-m", "minisched", "watch", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
        env={**os.environ, "TERM": "xterm"}, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip

    def until(words: str, wait: float = FAR) -> None:
        """Read until the screen has said something, whatever was on it before."""
        said.append("")
        while not words or words not in said[-1]:
            if not select.select([ours], [], [], wait)[0]:
                assert not words, f"{words!r} never came: {said}"
                return
            said[-1] += os.read(ours, 65536).decode(errors="replace")
        assert termios.tcgetattr(theirs) != before

    try:
        yield ours, process, until
        assert process.wait(FAR) == code
        until("", wait=0.2)
        text = "".join(said)
        assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
        assert text.rfind("\x1b[?1049l") > text.rfind("\x1b[?1049h")
        assert termios.tcgetattr(theirs) == before and "Traceback" not in text
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_keys_move_through_the_run_and_q_restores_the_terminal() -> None:
    with watching(0, OVERLAP) as (keyboard, _, until):
        until("event 1 of")
        for keys, number in (("\x1b[C", 2), ("  ", 4), ("b", 3), ("\x1bOD", 2), ("\x1b[H", 1)):
            os.write(keyboard, keys.encode())
            until(f"event {number} of")
        os.write(keyboard, b"q")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_ended_restores_the_terminal_without_a_traceback(number: signal.Signals) -> None:
    with watching(128 + number, "--at", "30", "--loop", "serial") as (keyboard, process, until):
        until("serial on sim")
        if number == signal.SIGINT:
            os.write(keyboard, b"\x03")  # as a key
        else:
            process.send_signal(number)
