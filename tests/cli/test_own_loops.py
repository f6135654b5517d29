"""A loop of one's own in every command, and in ``minisched``'s functions."""

from __future__ import annotations

import base64
import gzip
import json
import linecache
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minisched as ms
from minisched.engine.engine import Engine
from minisched.export.html import listings
from minisched.loops.design import LOOPS, Design
from minisched.own_loops import add_loop, known

LOOP = """
def {name}(engine{options}):
    flight = deque()
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            flight.append(engine.{run}(batch))
            if len(flight) > {ahead}:
                engine.process_batch_result(flight.{pop}())
        elif flight:
            engine.process_batch_result(flight.popleft())
        else:
            engine.on_idle()
        yield batch
"""
SCHEDULER = """
class {name}:
    def __init__(self):
        self.waiting, self.running = [], []

    def receive(self, req):
        self.waiting.append(req)

    def ended(self, req):
        for queue in (self.waiting, self.running):
            if req in queue:
                queue.remove(req)

    def next_batch(self, room):
        {body}
"""
ONE_AT_A_TIME = """if self.running:
            return [], [req for req in self.running if room.may_run(req)]
        if not self.waiting:
            return [], []
        self.running = [self.waiting.pop()]  # last come, first served
        return [(self.running[0], self.running[0].extend_len)], []"""


def loop(name: str, ahead: int = 0, pop: str = "popleft", run: str = "run_batch",
         options: str = "") -> str:  # fmt: skip
    """Return the text of a loop with so many steps left in flight."""
    return LOOP.format(name=name, ahead=ahead, pop=pop, run=run, options=options)


def scheduler(name: str, body: str = ONE_AT_A_TIME) -> str:
    """Return the text of a class that decides the batches."""
    return SCHEDULER.format(name=name, body=body)


HEAD = "from collections import deque\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with four loops, in the folder in which commands run."""
    monkeypatch.chdir(tmp_path)
    loops = [loop("one"), loop("two", 1), loop("reversed", 1, "pop"), loop("typo", run="run_batsh")]
    Path("my.py").write_text(HEAD + "".join(loops), "utf-8")
    return Path("my.py")


@pytest.fixture(autouse=True)
def every_loop_is_forgotten() -> Iterator[None]:
    before = dict(LOOPS)
    yield
    assert before == LOOPS


# -- the commands ----------------------------------------------------------------------------------


def test_run_and_compare_take_a_loop_of_a_file(cli: Any, mine: Path) -> None:
    code, out, err = cli("run --loop my.py:two --requests 2 --max-new-tokens 4")
    assert code == 0 and "steps of the loop two" in out, err
    code, out, err = cli("compare --loops my.py:two:pool,overlap --requests 2 --json")
    assert code == 0, err
    found = json.loads(out)
    assert found["identical"] and list(found["speedup"]) == ["serial", "two:pool", "overlap"]
    assert found["speedup"]["two:pool"] == found["speedup"]["overlap"] > 1.5
    assert Path("out/two-pool.json").is_file()


def test_the_page_of_a_run_shows_the_source_of_the_loop(cli: Any, mine: Path) -> None:
    assert cli("compare --loops my.py:two --requests 2")[0] == 0
    mine.unlink()  # the trace contains the text
    assert cli("stepper out/two.json --out page.html")[0] == 0
    packed = re.findall(r"H4sI[A-Za-z0-9+/=]{5000,}", Path("page.html").read_text("utf-8"))[0]
    (run,) = json.loads(gzip.decompress(base64.b64decode(packed)))["runs"]
    listing = run["listings"]["host"]
    assert listing["where"] == "my.py:two" and listing["lines"] == loop("two", 1).split("\n")[1:-1]
    line = next(it["line"] for lane in run["lanes"] for it in lane["slices"] if "line" in it)
    assert listing["lines"][line].strip().startswith("engine.")


def test_the_stepper_runs_a_loop(cli: Any, mine: Path) -> None:
    assert cli("stepper serial my.py:two --out page.html")[0] == 0
    code, _, err = cli("stepper my.py:typo")
    assert code == 2 and "typo stopped with AttributeError" in err and "line" in err


@pytest.mark.thorough
def test_replay_and_sweep_take_it_in_other_processes_too(cli: Any, mine: Path) -> None:
    head = "arrived_at,num_prefill_tokens,num_decode_tokens"
    Path("requests.csv").write_text(f"{head}\n0.0,20,3\n", "utf-8")
    code, out, err = cli("replay requests.csv --loop my.py:two --json")
    assert code == 0 and json.loads(out)["loop"] == "two", err
    Path("grid.toml").write_text('grid = {loop = ["serial", "my.py:two"]}\n', "utf-8")
    code, out, err = cli("sweep grid.toml --jobs 2 --json")
    assert code == 0 and json.loads(out)["states"] == {"ok": 2}, (out, err)


@pytest.mark.thorough
def test_map_takes_it(cli: Any, mine: Path) -> None:
    code, out, err = cli("map --loops my.py:two --jobs 2")
    assert code == 0 and "unknown loop" not in out, err


@pytest.mark.thorough
def test_check_leaves_the_trace_and_the_picture_and_its_line_repeats_the_failure(
    cli: Any, mine: Path
) -> None:
    code, out, err = cli("check --loop my.py:reversed --workloads 9 --jobs 2 --out found")
    assert code == 1 and err == "", err
    written = sorted(path.name for path in Path("found").iterdir())
    stem = "seed-0-reversed"
    assert written == [f"{stem}-oracle.json", f"{stem}.json", f"{stem}.svg"]
    again = re.findall(r"^ +minisched (check --workloads .*)$", out, re.M)[0]
    assert "--loop my.py:reversed" in again
    code, repeated, _ = cli(again)
    first = next(line for line in out.splitlines() if line.startswith("✗ seed"))
    assert code == 1 and first in repeated.splitlines()
    assert cli(f"check found/{stem}-oracle.json found/{stem}.json")[0] == 1


def test_check_stops_at_a_typo_and_shows_the_line(cli: Any, mine: Path) -> None:
    code, out, _ = cli("check --loop my.py:typo --workloads 5")
    assert code == 1 and "1 of 1 case broke a law: 1 random workload on typo" in out
    assert "The check stopped here: the error is in the loop itself." in out
    line = (
        mine.read_text("utf-8")
        .splitlines()
        .index("            flight.append(engine.run_batsh(batch))")
    )
    where = f"at line {line + 1} of my.py: `flight.append(engine.run_batsh(batch))`"
    assert f"'Engine' object has no attribute 'run_batsh', {where}" in out
    code, _, err = cli("run --loop my.py:typo")
    assert code == 1 and where in err and "Traceback" not in err
    code, _, err = cli("compare --loops my.py:typo")
    assert code == 1 and where in err and "minisched check" in err


def test_a_loop_that_stops_working_ends_a_run(cli: Any, mine: Path) -> None:
    lost = loop("lost").replace("engine.process_batch_result(flight.popleft())", "pass", 1)
    mine.write_text(HEAD + lost.replace("elif flight:", "elif False:"), "utf-8")
    code, _, err = cli("run --loop my.py --requests 2")
    assert code == 1 and "turns in a row do nothing; these have not ended: r0, r1" in err
    mine.write_text("def once(engine):\n    yield engine.get_next_batch_to_run()\n", "utf-8")
    code, _, err = cli("run --loop my.py")
    assert code == 1 and "its turns have ended, but a loop must go on: `while True`" in err


def test_a_hint_helps_a_loop_with_more_steps_in_flight(cli: Any, mine: Path) -> None:
    mine.write_text(HEAD + loop("three", 2), "utf-8")
    out = cli("check --loop my.py --workloads 1 --seed 8")[1]
    assert "Ask engine.must_delay_sample(batch) before the launch" in out and "'Add a loop'" in out
    assert "Design(three, ('ring', 'pool'), depth=3, pins=3)" in out
    mine.write_text(HEAD + loop("three", 2, options=", depth=3"), "utf-8")
    out = cli("check --loop my.py --workloads 1 --seed 8")[1]
    assert "3 steps in flight, but the loop has at most" not in out


@pytest.mark.thorough
def test_a_hint_names_the_steps_in_flight_that_were_found(cli: Any, mine: Path) -> None:
    design = "from minisched.loops.design import Design\n"
    deep = "loop = Design(four, ('ring',), depth=3, pins=3)\n"
    mine.write_text(HEAD + design + loop("four", 3) + deep, "utf-8")
    out = cli("check --loop my.py --workloads 1")[1]
    assert "4 steps in flight, but the loop has at most 3" in out
    assert ", depth=4, pins=4)" in out


REFUSED = [
    ("run --loop none.py", "none.py can't be read: No such file or directory."),
    ("run --loop .", "unknown loop '.'"),
    ("run --loop my.py", "my.py has 4 loops: name one, as my.py:one; it has one, two,"),
    ("run --loop my.py:other", "my.py has no loop 'other'; it has one, two, reversed, typo."),
    ("run --loop my.py:deque", "deque"),
    ("run --loop my.py:one:wool", "unknown relay 'wool'"),
    ("compare --loops my.py:one:depth=3", "loop 'one' has no option 'depth'"),
    ("check --loop my.py:one --draw found.svg", "--draw is about recorded runs, but none is named; "
     "use --out FOLDER."),
    ("check --loop my.py:one --backend cloud", "backend is 'cloud'"),
    ("check --loop my.py:one --address tcp://x", "the backend processes runs on this machine"),
    ("check --loop my.py:one --jobs 0", "jobs is 0, but it must be at least 1."),
    ("check --loop my.py:one --out my.py", "--out my.py is a file, but it must be a folder."),
]  # fmt: skip


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_a_command_cannot_do_with_it_is_one_sentence(
    line: str, said: str, cli: Any, mine: Path
) -> None:
    code, _, err = cli(line)
    assert code == 2 and said in err and err.count("\n") == 1


TEXTS = [
    ("1 / 0", "my.py stops with ZeroDivisionError at your line `1 / 0`: division by zero."),
    ("import sys; sys.exit(3)", "my.py stops with SystemExit at your line `import sys; sys.ex"),
    ("def (", "my.py stops with SyntaxError: invalid syntax (my.py, line 1)."),
    ("x = 1", "my.py has no loop: a generator that takes `engine`; it has none."),
    (HEAD + loop("loop") + scheduler("A") + scheduler("B"),
     "my.py has 2 classes that decide batches, A and B; call the one that is to decide Scheduler."),
    (HEAD + loop("loop") + scheduler("A").replace("def ended", "def ends"),
     "the class A of my.py lacks ended; a scheduler has the methods receive, ended, next_batch."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), TEXTS, ids=[said for _, said in TEXTS])
def test_what_is_wrong_with_a_file_is_one_sentence(
    text: str, said: str, cli: Any, mine: Path
) -> None:
    mine.write_text(text, "utf-8")
    code, _, err = cli("run --loop my.py")
    assert code == 2 and said in err and err.count("\n") == 1


# -- its scheduler ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Scheduler", "S3"])
def test_the_class_of_the_file_decides_whatever_its_name(name: str, cli: Any, mine: Path) -> None:
    mine.write_text(HEAD + loop("loop") + scheduler(name), "utf-8")
    code, out, err = cli("compare --loops my.py --requests 3 --json")
    assert code == 0, err
    runs = {run["loop"]: run["steps"] for run in json.loads(out)["runs"]}
    assert runs["loop"] > 2.5 * runs["serial"]  # one request at a time
    out = cli("check --loop my.py --workloads 1")[1]
    for law in ("order", "progress"):
        assert f"? the law {law} does not know the rules of the scheduler {name}" in out
        assert not re.search(rf"✗ seed .*: {law}:", out)


def test_a_scheduler_called_so_decides_before_others_and_a_helper_is_none(
    cli: Any, mine: Path
) -> None:
    old = scheduler("Old", "raise KeyError('old')")
    helper = "\nclass Helper:\n    pass\n"
    mine.write_text(HEAD + loop("loop") + old + helper + scheduler("Scheduler"), "utf-8")
    assert cli("run --loop my.py --requests 1")[0] == 0
    mine.write_text(HEAD + loop("loop") + old + helper, "utf-8")
    code, _, err = cli("run --loop my.py --requests 1")
    assert code == 1 and "KeyError: 'old', at line" in err


def test_a_subclass_of_the_scheduler_of_the_package_decides(cli: Any, mine: Path) -> None:
    own = "from minisched.scheduler import Scheduler\nclass Mine(Scheduler):\n    def plan(self):\n"
    mine.write_text(HEAD + loop("loop") + own + "        raise KeyError('mine')\n", "utf-8")
    code, _, err = cli("run --loop my.py --requests 1")
    assert code == 1 and "KeyError: 'mine'" in err


# -- what a file may hold --------------------------------------------------------------------------


def test_a_design_and_a_decorated_loop_are_loops_of_the_file(cli: Any, mine: Path) -> None:
    design = "from minisched.loops.design import Design, design\n"
    deep = "deep = Design(three, ('pool',), depth=3, pins=3)\n"
    decorated = '@design(relays=("ring",), depth=2)' + loop("overlap", 1)
    mine.write_text(design + HEAD + loop("three", 2) + deep + decorated, "utf-8")
    with known(["my.py:deep", "my.py:overlap", "my.py:overlap", "serial"]) as names:
        assert names == ["deep", "your_overlap", "your_overlap", "serial"]
        assert LOOPS["deep"].relays == ("pool",) and LOOPS["deep"].in_flight == 3
        assert LOOPS["your_overlap"].relays == ("ring",)
    assert cli("run --loop my.py:deep --requests 1")[0] == 0


def test_a_file_is_read_again_when_it_changes_and_imports_its_neighbours(mine: Path) -> None:
    Path("neighbour.py").write_text("STEPS = 1\n", "utf-8")
    text = "from neighbour import STEPS\n" + HEAD + loop("loop", 1)
    mine.write_text(text, "utf-8")
    with known(["my.py"]):
        assert LOOPS["loop"].in_flight == 2
    mine.write_text(text.replace("(engine)", "(engine, depth=4)"), "utf-8")
    with known(["my.py"]):
        assert LOOPS["loop"].in_flight == 4


def test_a_loop_typed_in_a_notebook_is_shown_by_its_name() -> None:
    names: dict[str, Any] = {}
    text = HEAD + loop("typed", 1)
    linecache.cache["<a cell>"] = len(text), None, text.splitlines(keepends=True), "<a cell>"
    exec(compile(text, "<a cell>", "exec"), names)
    trace = ms.run(ms.requests(1), names["typed"]).trace
    listing = listings(trace)["host"]
    assert listing["where"] == "typed" and listing["lines"][0] == "def typed(engine):"


# -- in Python -------------------------------------------------------------------------------------


def turns(engine: Engine, at: int) -> Iterator[Any]:
    """Keep one step in flight while the next is scheduled; process the one ``at`` this place."""
    pending: list[Any] = []
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            pending.append(engine.run_batch(batch))
        if len(pending) == 2 or (pending and not batch):
            engine.process_batch_result(pending.pop(at))
        elif not batch:
            engine.on_idle()
        yield batch


def two(engine: Engine) -> Iterator[Any]:
    """Process the oldest result first."""
    yield from turns(engine, 0)


def last_first(engine: Engine) -> Iterator[Any]:
    """Process the newest result first, which is wrong."""
    yield from turns(engine, -1)


def test_run_compare_and_show_take_a_function_a_design_and_a_file(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ms.requests(2, ms.SamplingParams(max_new_tokens=6))
    one = ms.run(asked, two)
    assert one.loop == "two" and one.outputs == ms.run(asked, "my.py:one").outputs
    deep = Design(two, ("pool",), depth=3, pins=3)
    found = ms.compare(asked, [two, deep, "my.py:two", "overlap"])
    assert found.identical
    assert list(found.speedup) == ["serial", "two", "your_two", "your_two_2", "overlap"]
    ms.show(one)
    ms.show(two)
    assert capsys.readouterr().out.count("two: the device ") == 2


DEEP = Design(last_first, ("ring",), depth=3, pins=3)


@pytest.mark.parametrize("given", [last_first, DEEP], ids=["function", "design"])
def test_a_failure_in_python_has_a_line_of_python_that_repeats_it(given: Any) -> None:
    found: Any = ms.check(given, workloads=1)
    said = repr(found)
    assert found.holds is False and "--json" not in said and "minisched check" not in said
    line = next(it.strip() for it in found.lines if "ms.check(" in it)
    names = {"ms": ms, "Design": Design, "last_first": last_first}
    assert eval(line, names).tally.first[0] == found.tally.first[0]


def test_a_check_in_python_saves_its_failure(tmp_path: Path) -> None:
    files = ms.check(last_first, workloads=1).save(tmp_path)
    assert [Path(file).suffix for file in files] == [".json", ".json", ".svg"]
    assert all(Path(file).is_file() for file in files)
    assert ms.check(loops=["overlap"], workloads=1).save(tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
    said = repr(ms.check(loops=["overlap"], workloads=1))
    assert "minisched" not in said


WRONG: list[tuple[Any, str]] = [
    (lambda: ms.check(two, "out/serial.json"), "can't be checked together: one or the other."),
    (lambda: ms.check(two, workloads=9, jobs=2), "and name it 'FILE.py:two'."),
    (lambda: ms.run(loop=len), "len has no `yield`"),  # type: ignore[arg-type]
    (lambda: ms.run([]), "but it is empty; give at least one."),
    (lambda: ms.run(loop=3), "loop is a name, such as 'overlap', a function or a Design, not 3."),  # type: ignore[arg-type]
    (lambda: ms.compare(loops=two), "loops is a list of texts"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_a_function_cannot_take_is_one_sentence(call: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_that_is_taken_gets_another_one() -> None:
    with known([two]) as names:
        assert add_loop(two) == names[0] == "two" and shlex.quote(names[0]) == "two"
        assert add_loop(Design(two, ("pool",))) == "your_two"
