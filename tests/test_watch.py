"""``minisched watch``: each moment is what the trace says, and the terminal is left as it was."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from minisched.cli import watch, watch_keys
from minisched.cli.watch_screen import Player, screen
from minisched.export import native
from minisched.export.recipes import trace_of
from minisched.export.watch_frame import CURSOR, Watched, watched
from minisched.export.watch_source import HERE, line_at, listing, sources_of
from minisched.loops.registry import LOOPS
from minisched.trace import Trace
from tests.test_views import runs

REPOSITORY = Path(__file__).resolve().parents[1]
OVERLAP = str(REPOSITORY / "traces" / "overlap.json")
FAR = 300  # seconds; only ends a hang
law = settings(max_examples=20, deadline=None)


def at(trace: Trace, share: float) -> tuple[Watched, int]:
    """A run, and the moment so far into it."""
    run = watched(trace)
    return run, run.moments.at(round(share * trace.end))


# -- moments -----------------------------------------------------------------------------------


@law
@given(runs(), st.data())
def test_one_goes_through_every_moment_there_and_back(run: Any, data: st.DataObject) -> None:
    trace = run[0]
    moments = watched(trace).moments
    assert set(moments.times) == {0} | {t for s in trace.slices for t in (s.start, s.end)}
    seen = [moments.times[0]]
    while seen[-1] < moments.times[-1]:
        seen.append(moments.after(seen[-1]))
    assert seen == list(moments.times)
    back = [moments.times[-1]]
    while back[-1] > moments.times[0]:
        back.append(moments.before(back[-1]))
    assert back[::-1] == seen
    assert moments.after(seen[-1]) == seen[-1] and moments.before(0) == 0
    time = data.draw(st.sampled_from(seen))
    begun = {s.start for s in trace.slices if s.name == "forward"} & set(moments.steps)
    assert moments.next_step(time) == min((t for t in begun if t > time), default=seen[-1])
    assert moments.previous_step(time) == max((t for t in begun if t < time), default=0)


@law
@given(runs(), st.integers(1, 20))
def test_frames_are_spread_over_the_whole_run(run: Any, count: int) -> None:
    moments = watched(run[0]).moments
    found = moments.spread(0, count)
    assert found == sorted(set(found)) and found[0] == 0
    assert len(found) == min(count, len(moments.times))
    assert len(found) == 1 or found[-1] == moments.times[-1]


# -- frames ------------------------------------------------------------------------------------


@law
@given(runs(), st.floats(0, 1))
def test_a_frame_says_what_begins_and_ends(run: Any, share: float) -> None:
    watch, time = at(run[0], share)
    now = watch.happens(time)
    slices = [s for s in run[0].slices if s.duration]
    touched = {f"{s.name} ends" for s in slices if s.end == time}
    touched |= {f"{s.name} begins" for s in slices if s.start == time}
    said = re.findall(r"([a-z ]+?)(?: \d+)? (ends|begins)", now.removeprefix("now: "))
    assert {f"{name.strip()} {what}" for name, what in said} <= touched
    assert bool(said) == bool(touched)


@law
@given(runs(), st.floats(0, 1), st.integers(60, 160))
def test_a_frame_is_as_wide_as_asked_and_its_cursor_is_where_time_is(
    run: Any, share: float, columns: int
) -> None:
    watch, time = at(run[0], share)
    frame = watch.frame(time, columns, state=44)
    assert max(map(len, [frame.title, frame.now, *frame.lanes])) <= columns
    assert max(map(len, frame.state)) <= 44
    view = watch.around(time)
    assert view.start <= time <= view.end
    lanes = frame.lanes[: len(view.lanes)]
    (column,) = {line.index(CURSOR) for line in lanes}
    margin = lanes[0].index("│") + 1
    cells = columns - margin
    assert abs((column - margin) / cells - (time - view.start) / max(1, view.duration)) <= 1 / cells


@law
@given(runs(), st.floats(0, 1))
def test_the_state_is_that_of_the_counters(run: Any, share: float) -> None:
    """Each counter is said as it was last recorded, in its unit, under the name it has there.

    That panels and counters agree is a law of its own (``test_stepper_state.py``).
    """
    trace = run[0]
    watch, time = at(trace, share)
    words = " ".join(line.strip() for line in counters_of(watch.frame(time).state))
    said = re.findall(r"(?:^|, )([a-z ]+?) (-?[\d.]+)(?: ([a-z]+))?", words)
    units = {"kv used": "tokens", "kv cached": "tokens", "running": "requests",
             "waiting": "requests"}  # fmt: skip
    wanted = []
    for name in dict.fromkeys(item.name for item in trace.counters):
        values = [item.value for item in trace.counters if item.name == name and item.time <= time]
        value, title = values[-1] if values else 0, name
        if name == "new token ratio":
            value /= 1000
        if name == "future slots":
            title = "next future slot"
        wanted.append((title, f"{value:g}", units.get(name, "")))
    assert said == wanted


def test_the_state_says_who_is_where_and_of_both_sides() -> None:
    """Of a pair each side has its own part; a request whose KV has not arrived does not run."""
    run = watched(trace_of("pd"))
    state = run.frame(run.moments.at(10_000_000), state=200).state
    prefill, decode = state.index("-- prefill side --"), state.index("-- decode side --")
    assert "running set: a, b, c" in state[prefill:decode]
    waits = ", ".join(f"{rid} (its KV is on its way)" for rid in "abc")
    assert f"running set: {waits}" in state[decode:]
    assert re.search("decode kv used [1-9][0-9]* tokens", "".join(state))


def test_the_state_tells_cached_and_in_use_from_cached_only() -> None:
    """What the counters say about the pages, in words; nodes say which tokens they hold."""
    run = watched(trace_of("page_allocator"))
    seen = set()
    for time in run.moments.times:
        frame = run.frame(time, state=400)
        (line,) = [line for line in frame.state if line.startswith("KV pages: ")]
        found = re.findall(r"(cached, locked|cached, evictable|[a-z]( \(zombie\))?) (\d+)", line)
        seen |= {name for name, _, _ in found}
        values = {c.name: c.value for c in run.trace.counters if c.time <= time}
        if any(c.time == time for c in run.trace.counters if c.name == "kv cached"):
            free = [int(count) for name, _, count in found if name == "cached, evictable"]
            assert sum(free) * 4 == values["kv cached"]  # four tokens a page
        nodes = [line for line in frame.state if ": tokens " in line]
        assert all(re.search(r"[▓░] node \d+: tokens [\d …]+; \d+ page", line) for line in nodes)
    assert {"cached, locked", "cached, evictable", "a (zombie)"} <= seen


def test_the_signs_are_explained() -> None:
    lanes, state = watched(trace_of("page_allocator")).frame(0, 400).signs
    assert "s schedule" in lanes and "F forward" in lanes and "idle" in lanes
    for sign in (
        "█ a request's page",
        "╳ a zombie's, which",
        "▓ cached, locked",
        "░ cached, evictable",
    ):
        assert sign in state
    assert "has ended or was retracted, but a launched step still names it" in state


def counters_of(state: list[str]) -> list[str]:
    first = next(at for at, line in enumerate(state) if line.startswith("counters: "))
    return [state[first].removeprefix("counters: "), *state[first + 1 :]]


@cache
def small_run(loop: str) -> Watched:
    """What ``minisched watch --loop LOOP`` shows."""
    return watch.open_run(None, loop)


@law
@given(st.sampled_from([loop for loop in LOOPS if loop != "pd"]), st.floats(0, 1))
def test_the_marked_line_is_where_the_loop_was(loop: str, share: float) -> None:
    run = small_run(loop)
    trace, time = run.trace, run.moments.at(round(share * run.trace.end))
    source = sources_of(trace)["host"]
    begun = [s.attrs["line"] for s in trace.slices
             if s.lane == "host" and s.start <= time and "line" in s.attrs]  # fmt: skip
    (line,) = [line for line in run.frame(time).source if line.startswith(HERE)]
    number = source.first_line + int(begun[-1])
    text = (REPOSITORY / source.path).read_text(encoding="utf-8").splitlines()[number - 1]
    assert line == f"{HERE} {number:3} {text}"
    assert run.frame(time).source[0] == f"{source.path}:{number}"


@pytest.mark.parametrize("share", [0, 1, 5, 30, -1])
def test_a_listing_keeps_the_line_in_sight(share: int) -> None:
    source = sources_of(trace_of("overlap"))["host"]
    line = share % len(source.lines)
    for most in (3, 8, 20, 500):
        lines = listing(source, line, most)
        assert len(lines) <= most
        assert [text.startswith(HERE) for text in lines].count(True) == bool(line)


@pytest.mark.parametrize("loop", [*LOOPS, "vllm_async:pool:depth=4"])
def test_every_loop_can_be_watched(loop: str) -> None:
    run = small_run(loop)
    frames = [run.frame(time).plain() for time in run.moments.spread(0, 6)]
    assert len(set(frames)) == 6 and all(HERE in frame for frame in frames[1:])
    assert frames == [run.frame(time).plain() for time in run.moments.spread(0, 6)]


def test_the_state_at_the_end_is_what_is_left() -> None:
    """What is in the cache at the end of a run is still there when it is looked at."""
    run = watched(trace_of("overlap"))
    state = "\n".join(run.frame(run.moments.times[-1]).state)
    assert "waiting_queue: empty" in state
    assert re.search(r"KV pages: \d+ of 1024 in use: .*cached, evictable \d\d", state)
    assert re.search(r"radix tree: [1-9]\d* node", state)


def test_a_foreign_loop_has_no_source_but_everything_else() -> None:
    trace = trace_of("overlap")
    other = watched(Trace("elsewhere", *(getattr(trace, n) for n in (
        "device", "model", "clock", "slices", "edges", "counters", "marks"))))  # fmt: skip
    frame = other.frame(20_000_000)
    assert frame.source == ["the loop 'elsewhere' is not one of ours: no source to show"]
    assert frame.lanes == watched(trace).frame(20_000_000).lanes
    assert line_at(trace, "host", -1) == 0


# -- keys --------------------------------------------------------------------------------------


def test_a_player_does_what_its_keys_say() -> None:
    run = watched(trace_of("overlap"))
    player, moments = Player(run, 0), run.moments
    for key, time in (
        ("next", moments.times[1]), ("next", moments.times[2]), ("back", moments.times[1]),
        ("next step", moments.steps[0]), ("next step", moments.steps[1]),
        ("previous step", moments.steps[0]), ("end", moments.times[-1]),
        ("next", moments.times[-1]), ("", moments.times[-1]), ("home", 0), ("back", 0),
    ):  # fmt: skip
        player.press(key)
        assert player.time == time
    player.press("play")
    player.tick()
    assert (player.time, player.is_playing) == (moments.times[1], True)
    player.press("next")
    assert (player.time, player.is_playing) == (moments.times[2], False)
    player.tick()
    assert player.time == moments.times[2]
    player.time, player.is_playing = moments.times[-2], True
    player.tick()
    assert (player.time, player.is_playing) == (moments.times[-1], False)


def test_a_burst_of_keys_is_read_one_by_one() -> None:
    pressed = "\x1b[C \x1bOD\x1b[B\x1b[Aq\x1bx\x1b[1~NP"
    found = [watch_keys.NAMES.get(key, "") for key in watch_keys.SEQUENCE.findall(pressed)]
    assert found == ["next", "next", "back", "next step", "previous step", "quit", "", "", "home",
                     "next step", "previous step"]  # fmt: skip


def test_the_screen_fits_any_terminal() -> None:
    run = watched(trace_of("pd"))
    for columns, rows in ((60, 14), (60, 12), (80, 24), (120, 40), (200, 60)):
        console = Console(width=columns, height=rows, record=True, file=StringIO())
        player = Player(run, run.moments.times[40])
        console.print(screen(player, columns, rows), end="")
        lines = console.export_text().splitlines()
        assert len(lines) <= rows and max(map(len, lines)) <= columns
        assert "n next" in lines[-1] and "q quit" in lines[-1]
        assert any(line.startswith("lanes: ") for line in lines) == (rows >= 19)
        assert ("" in lines[:4]) == (rows >= 24)
        assert sum(CURSOR in line for line in lines) == 7


# -- the command, where there is no terminal ---------------------------------------------------


@pytest.fixture
def command(minisched: Any) -> Any:
    """``minisched watch``; gives exit code, stdout and stderr."""
    return partial(minisched, "watch")


def test_without_a_terminal_it_prints_frames_and_ends(command: Any) -> None:
    code, out, err = command(OVERLAP)
    assert (code, err) == (0, "") and "\x1b" not in out
    assert len(re.findall(r"^overlap on sim, .* event \d+ of \d+$", out, re.M)) == 8
    code, out, err = command(OVERLAP, "--frames", "2", "--at", "100")
    assert out.splitlines()[0].count(" (the last event before 100) of ") == 1
    times = re.findall(r"^overlap on sim, ([\d.]+) ", out, re.M)
    assert code == 0 and 95 < float(times[0]) <= 100 and float(times[1]) > 300
    assert command(OVERLAP, "--frames", "2", "--at", "100")[1] == out


def test_without_a_trace_a_small_run_is_made(command: Any) -> None:
    code, out, err = command("--frames", "1", "--loop", "mlx_async", "--at", "50")
    assert (code, err) == (0, "") and out.startswith("mlx_async on sim")


def test_bad_input_is_one_sentence(command: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(native.to_json(Trace("serial", "sim", "hash", "virtual", (), (), (), ())))
    for arguments, words in (
        (("missing.json",), "missing.json can't be read: No such file"),
        ((str(REPOSITORY / "pyproject.toml"),), "is not a minisched trace"),
        ((str(empty),), "can't be watched: the trace has no slice"),
        (("--loop", "nope"), "unknown loop 'nope'; the loops are serial, "),
        ((OVERLAP, "--loop", "serial"), "--loop is 'serial', but "),
        (
            (OVERLAP, "--at", "9999"),
            "--at is 9999, but it must be between 0 and 306.1 ms, the run's end.",
        ),
        ((OVERLAP, "--at", "-1"), "--at is -1, but it must be between 0 and "),
        ((OVERLAP, "--at", "nan"), "--at is nan, but it must be between 0 and "),
        ((OVERLAP, "--delay", "-1"), "--delay is -1, but it must be between 0 and 60 seconds."),
        ((OVERLAP, "--frames", "0"), "--frames is 0, but it must be at least 1."),
    ):
        code, out, err = command(*arguments)
        assert (code, out) == (2, "") and words in err, err
        assert err.count("\n") == 1 and "Traceback" not in err


def test_without_single_keys_a_line_is_a_key(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: Iterator[str] = iter(["", "", "b", "what", "q"])
    monkeypatch.setattr(watch, "has_keys", lambda: False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: next(lines))
    code, out, err = command(OVERLAP)
    assert (code, err) == (0, "")
    assert re.findall(r"event (\d+) of", out) == ["1", "2", "3", "2", "2"]


# -- the command, in a terminal ----------------------------------------------------------------


class Terminal:
    """A real pseudo-terminal with ``minisched watch`` in it."""

    def __init__(self, *arguments: str) -> None:
        self.ours, self.theirs = pty.openpty()
        size = b"\x28\x00\x78\x00\x00\x00\x00\x00"  # 40 rows, 120 columns
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        self.before = termios.tcgetattr(self.theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minisched", "watch", *arguments],
            stdin=self.theirs, stdout=self.theirs, stderr=self.theirs, cwd=REPOSITORY,
            env={**os.environ, "TERM": "xterm"}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.text = ""

    def until(self, words: str, seconds: float = FAR) -> None:
        """Read until the screen has said something."""
        end = clock.monotonic() + seconds
        while words not in self.text:
            assert clock.monotonic() < end, f"{words!r} never came: {self.text[-2000:]}"
            if select.select([self.ours], [], [], 0.2)[0]:
                self.text += os.read(self.ours, 65536).decode(errors="replace")

    def press(self, keys: str) -> None:
        """Type; what was on the screen before is forgotten."""
        self.text = ""
        os.write(self.ours, keys.encode())

    def end(self) -> int:
        """Wait until it has ended, and read the rest; gives the exit code."""
        code = self.process.wait(FAR)
        while select.select([self.ours], [], [], 0.2)[0]:
            self.text += os.read(self.ours, 65536).decode(errors="replace")
        return code

    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its modes, its screen, its cursor."""
        shown = self.text.rfind("\x1b[?25h") > self.text.rfind("\x1b[?25l")
        left = self.text.rfind("\x1b[?1049l") > self.text.rfind("\x1b[?1049h")
        return termios.tcgetattr(self.theirs) == self.before and shown and left

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_keys_move_through_the_run_and_q_restores_the_terminal(terminal: Any) -> None:
    here = terminal(OVERLAP)
    here.until("event 1 of")
    assert termios.tcgetattr(here.theirs) != here.before
    for keys, number in (("\x1b[C", 2), ("  ", 4), ("b", 3), ("\x1bOD", 2), ("n", 3)):
        here.press(keys)
        here.until(f"event {number} of")
    moments = watched(trace_of("overlap")).moments
    here.press("N")
    here.until(f"event {moments.number(moments.steps[0])} of")
    here.press("\x1b[F")
    here.until(f"event {len(moments.times)} of")
    here.press("\x1b[H")
    here.until("event 1 of")
    here.press("q")
    assert here.end() == 0
    assert here.is_restored() and "Traceback" not in here.text


def test_ctrl_c_restores_the_terminal_without_a_traceback(terminal: Any) -> None:
    here = terminal("--at", "30", "--loop", "serial")
    here.until("serial on sim")
    here.press("\x03")
    assert here.end() == 130
    assert here.is_restored() and "Traceback" not in here.text


def test_being_told_to_end_restores_the_terminal(terminal: Any) -> None:
    here = terminal(OVERLAP)
    here.until("event 1 of")
    here.process.send_signal(signal.SIGTERM)
    assert here.end() == 128 + signal.SIGTERM
    assert here.is_restored() and "Traceback" not in here.text


def test_it_plays_by_itself_to_the_end(terminal: Any) -> None:
    run = watched(trace_of("overlap"))
    last = len(run.moments.times)
    start = run.moments.times[-6] / 1_000_000
    here = terminal(OVERLAP, "--delay", "0.01", "--at", f"{start}")
    here.until(f"event {last - 5} of")
    here.until(f"event {last} of")
    here.press("q")
    assert here.end() == 0 and here.is_restored()


def test_an_error_restores_the_terminal_too() -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    program = (
        "from minisched.cli.watch_keys import single_keys\n"
        "with single_keys():\n"
        "    raise ValueError('broken')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdin=theirs, capture_output=True,
                          cwd=REPOSITORY)  # fmt: skip
    assert done.returncode == 1 and b"broken" in done.stderr
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
