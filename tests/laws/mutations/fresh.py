"""Mutations that nobody chose: random changes by operators, and the share that the laws see.

``python -m tests.laws.mutations --fresh 100 --seed 1`` draws them over the lines that the first
workloads enter, and judges each as ``minisched check --workloads 150`` does: case after case, up to
the first broken law. A case that never enters the changed statement can't differ, so it is skipped.
Only code that can change a run counts. By the rule of ``records.py``, no mutation changes a value
or a statement that only the recorder gets: the golden traces compare the trace byte by byte.
"""

from __future__ import annotations

import builtins
import difflib
import hashlib
import json
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
import tomllib
from ast import FunctionDef, NodeTransformer, fix_missing_locations, parse, stmt, unparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from minisched.checks.draw import all_designs
from minisched.museum.patch import Edit, StalePatch, function_at, put_in, source_of
from tests.laws.mutations.mutation import HERE, Mutation, Place, broken_laws, places, read
from tests.laws.mutations.operators import (
    Change,
    Function,
    Siblings,
    bodies,
    changes_at,
    functions_in,
    siblings_in,
    statements,
)
from tests.laws.mutations.records import Recorded, is_text

PACKAGE = Path(__file__).resolve().parents[3] / "minisched"
FOLDERS = ("scheduler", "memory", "policy", "relay", "worker", "features", "engine", "loops")
FILES = ("devices/base.py", "devices/cost.py", "devices/sim.py")
SHOWN = ("engine.log:", "worker.recording:Recording.", "worker.recording:TokenEdges.")
"""Classes of the log and the trace: what they keep, only they read."""
LONGEST = 900  # seconds of one mutation
MEMORY = 4 * 2**30  # bytes of the process that judges one
SURVIVORS = "fresh_survivors.toml"
PROBE = "entered_statements"

T = TypeVar("T")

# -- The code that may change ----------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A function that may get a mutation, as ``museum/patch.py`` names it."""

    where: str
    source: str

    @property
    def owner(self) -> str:
        """Return the class of a method."""
        return self.where.partition(":")[2].rpartition(".")[0]


def candidates() -> list[Candidate]:
    """Return the functions of the folders, except those that only print."""
    found = []
    files = [*FILES, *(f"{it}/{path.name}" for it in FOLDERS for path in sources_in(it))]
    for file in files:
        module = file.removesuffix(".py").replace("/", ".")
        for name, source, _line in functions_in((PACKAGE / file).read_text("utf-8")):
            where = f"{module}:{name}"
            is_text = name.rpartition(".")[2] in ("__str__", "__repr__")
            is_shown = is_text or where.startswith(SHOWN)
            try:
                is_there = source_of(function_at(where)) == source
            except (StalePatch, OSError):
                is_there = False
            if is_there and not is_shown:
                found.append(Candidate(where, source))
    return found


def sources_in(folder: str) -> list[Path]:
    """Return the modules of a folder of the package."""
    return sorted((PACKAGE / folder).glob("[!_]*.py"))


def all_siblings() -> Siblings:
    """Return the attributes of the package that could be taken for each other."""
    files = sorted(path for it in (*FOLDERS, "core", "devices") for path in sources_in(it))
    return siblings_in([path.read_text("utf-8") for path in files])


@cache
def all_recorded() -> Recorded:
    """Return what only the recorder gets, in the folders and in what they call."""
    folders = (*FOLDERS, "core", "devices", "models", "grammar", "trace")
    return Recorded(path.read_text("utf-8") for it in folders for path in sources_in(it))


# -- The cases that enter a statement --------------------------------------------------------------


class Probes(NodeTransformer):
    """Puts a probe before each statement of a function; ``lines`` are those of the probes."""

    def __init__(self, function: Function, first: int) -> None:
        self.lines, self.first = list[int](), first
        self.wanted = {id(body[at]) for body, at in statements(function)}
        self.bodies = [body for body in bodies(function)]

    def generic_visit(self, node: Any) -> Any:
        """Add the probes to each body of a node."""
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list):
                setattr(node, name, [new for old in body for new in self.probed(old)])
        super().generic_visit(node)
        return node

    def probed(self, node: stmt) -> list[stmt]:
        """Return a statement with its probe before it."""
        if id(node) not in self.wanted:
            return [node]
        self.lines.append(node.lineno)
        text = f"{PROBE}[{self.first + len(self.lines) - 1}] = 1"
        return [*parse(text).body, node]


Entered = dict[tuple[str, int], int]  # by function and line: a bit for each case that enters it


def probes_for(found: Iterable[Candidate]) -> tuple[list[Edit], list[tuple[str, int]]]:
    """Return the edits that put probes in, and the function and line of each probe."""
    edits, keys = [], list[tuple[str, int]]()
    for item in found:
        function = Function(item.source)
        probes = Probes(function, len(keys))
        tree = fix_missing_locations(probes.visit(function.tree))
        assert isinstance(tree, FunctionDef)
        tree.decorator_list = []
        keys += [(item.where, line) for line in probes.lines]
        edits.append(Edit(item.where, item.source, unparse(tree) + "\n"))
    return edits, keys


def measure(found: Sequence[Candidate], at: Sequence[Place], jobs: int) -> Entered:
    """Run every case once, and return which of them enter each statement."""
    edits, keys = probes_for(found)

    def run(part: range) -> list[tuple[int, bytes]]:
        """Run a part of the cases with probes."""
        entered, hits = [], bytearray(len(keys))
        setattr(builtins, PROBE, hits)
        with put_in(edits):
            for number in part:
                hits[:] = bytes(len(keys))
                broken_laws(at[number], "sim")
                entered.append((number, bytes(hits)))
        return entered

    total: Entered = dict.fromkeys(keys, 0)
    for _part, entered in in_children(
        [range(job, len(at), jobs) for job in range(jobs)], run, jobs
    ):
        if entered is None:
            raise RuntimeError("a process that measured the cases has failed; see above")
        for number, hits in entered:
            bit = 1 << number
            for key, hit in zip(keys, hits, strict=True):
                if hit:
                    total[key] |= bit
    return total


def measured_once(found: Sequence[Candidate], at: Sequence[Place], jobs: int) -> Entered:
    """Return what ``measure`` has found for this very code, from a file if there is one."""
    code = b"".join(path.read_bytes() for path in sorted(PACKAGE.rglob("*.py")))
    name = hashlib.sha256(code + repr(list(at)).encode()).hexdigest()[:20]
    kept = Path(tempfile.gettempdir()) / f"minisched-entered-{name}.json"
    if not kept.exists():
        say("which statements does each case enter? (once for this code, about two minutes)")
        entered = measure(found, at, jobs)
        rows = [[where, line, f"{bits:x}"] for (where, line), bits in entered.items()]
        kept.write_text(json.dumps(rows), "utf-8")
    rows = json.loads(kept.read_text("utf-8"))
    return {(where, line): int(bits, 16) for where, line, bits in rows}


# -- Draw mutations --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fresh:
    """A mutation that was drawn: the operator, the lines of the edit, the cases that enter it."""

    operator: str
    edit: Edit
    line: int  # of the statement in its function
    entered_by: int  # a bit for each case

    @property
    def diff(self) -> str:
        """Return the change as a diff, from the healthy code to the mutation."""
        both = self.edit.healthy.splitlines(), self.edit.bug.splitlines()
        lines = list(difflib.unified_diff(*both, n=1, lineterm=""))[3:]
        return "\n".join([f"@@ {self.edit.where} @@", *lines])


def smallest_edit(where: str, healthy: str, bug: str) -> Edit:
    """Return the lines that differ, with as many around them as make the healthy ones unique."""
    old, new = healthy.splitlines(keepends=True), bug.splitlines(keepends=True)
    pairs = enumerate(zip(old, new, strict=False))
    first = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    while healthy.count("".join(old[first : len(old) - last])) != 1 and (first or last):
        first, last = max(0, first - 1), max(0, last - 1)
    return Edit(
        where, "".join(old[first : len(old) - last]), "".join(new[first : len(new) - last])
    )  # fmt: skip


def draw_mutations(
    number: int, seed: int, found: Sequence[Candidate], entered: Entered
) -> list[Fresh]:
    """Return different mutations of statements that some case enters, drawn by their lines."""
    rng, siblings = Random(seed), all_siblings()
    recorded = all_recorded()
    functions = {
        item.where: Function(item.source, siblings, item.owner, recorded) for item in found
    }
    spots = list[tuple[str, Sequence[stmt], int]]()
    for where, function in functions.items():
        for body, at in statements(function):
            if entered.get((where, body[at].lineno)):
                spots += [(where, body, at)] * lines_of(body[at])
    drawn, had = list[Fresh](), set[str]()
    while len(drawn) < number:
        where, body, at = rng.choice(spots)
        function = functions[where]
        by_operator = changes_at(function, body, at)
        if not by_operator:
            continue
        change: Change = rng.choice(by_operator[rng.choice(sorted(by_operator))])
        if change.source not in had:
            had.add(change.source)
            edit = smallest_edit(where, function.source, change.source)
            bits = entered[where, change.at]
            drawn.append(Fresh(change.operator, edit, change.at, bits))
    return drawn


def lines_of(node: stmt) -> int:
    """Return the lines of a statement, without those of the statements in it."""
    inner = getattr(node, "body", None)
    last = inner[0].lineno - 1 if inner and not is_text(inner[0]) else node.end_lineno
    return max(1, (last or node.lineno) - node.lineno + 1)


# -- Judge them ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    """What came of a mutation: ``caught``, ``hung``, ``survived`` or ``does not compile``."""

    outcome: str
    law: str = ""
    seed: int = -1
    loop: str = ""
    cases: int = 0  # of ``check`` up to the broken law
    entered: int = 0  # cases of all that enter the changed statement
    seconds: float = 0.0  # of the processor


def judge_one(fresh: Fresh, at: Sequence[Place]) -> Fate:
    """Judge the cases that enter the change, up to the first that breaks a law."""
    entered = [number for number in range(len(at)) if fresh.entered_by >> number & 1]
    start = time.process_time()
    fate = Fate("survived", cases=len(at), entered=len(entered))
    for number in entered:
        place = at[number]
        try:
            with put_in([fresh.edit]):
                broken = broken_laws(place, "sim")
        except (SyntaxError, StalePatch) as error:
            return Fate("does not compile", str(error))
        except Exception as error:  # ``check`` would end with a traceback
            broken = [f"check: {type(error).__name__}"]
        if broken and not broken_laws(place, "sim"):
            outcome = "hung" if broken[0] == "hang" else "caught"
            where = place.seed, place.loop
            fate = Fate(outcome, broken[0], *where, number + 1, len(entered))
            break
    return Fate(**{**asdict(fate), "seconds": round(time.process_time() - start, 1)})


def in_children(
    tasks: Sequence[T], run: Callable[[T], Any], jobs: int, longest: float = 24 * 3600.0
) -> Iterator[tuple[T, Any]]:
    """Run each task in a process of its own, and yield what it returns; None if it was too long.

    A mutation may leave threads, files or caches behind; a fresh process starts without them.
    """
    left, running = list(tasks), dict[int, tuple[T, int, float]]()  # by pipe: task, pid, start
    with selectors.DefaultSelector() as pipes:
        while left or running:
            while left and len(running) < jobs:
                task = left.pop(0)
                reads, writes = os.pipe()
                if not (pid := os.fork()):
                    os.close(reads)
                    answer_and_exit(writes, run, task)
                os.close(writes)
                running[reads] = task, pid, time.monotonic()
                pipes.register(reads, selectors.EVENT_READ)
            ready = {key.fd for key, _ in pipes.select(timeout=1)}
            for reads, (task, pid, start) in list(running.items()):
                is_late = time.monotonic() - start > longest
                if reads not in ready and not is_late:
                    continue
                answer = None
                if reads in ready:
                    with os.fdopen(os.dup(reads), "rb") as pipe:
                        data = pipe.read()
                    answer = pickle.loads(data) if data else None
                pipes.unregister(reads)
                os.close(reads)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                del running[reads]
                yield task, answer


def answer_and_exit(pipe: int, run: Callable[[T], Any], task: T) -> None:
    """Send the result of a task through a pipe, and end this process whatever is left in it."""
    try:
        import resource  # Unix alone has it

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        data = pickle.dumps(run(task))
        with os.fdopen(pipe, "wb") as file:
            file.write(data)
    except BaseException as error:
        print(f"a process of {task} failed: {error!r}", file=sys.stderr)
    finally:
        os._exit(0)


def say(words: str) -> None:
    """Print a line of progress."""
    print(words, file=sys.stderr, flush=True)


# -- The command -----------------------------------------------------------------------------------


def run_fresh(
    number: int, seed: int, workloads: int, jobs: int, folders: Sequence[str] = ()
) -> list[tuple[Fresh, Fate]]:
    """Draw mutations, perhaps of some folders only, and judge each, in the order of the draw."""
    all_designs()  # kept from now on, and not made by what is broken
    at = list(places(range(workloads), "sim"))
    found = candidates()
    entered = measured_once(found, at, jobs)
    alive = sum(bits > 0 for bits in entered.values())
    say(f"{alive} of {len(entered)} statements are entered by {len(at)} cases")
    found = [it for it in found if not folders or it.where.partition(".")[0] in folders]
    return judge_all(draw_mutations(number, seed, found, entered), at, jobs)


def judge_all(drawn: Sequence[Fresh], at: Sequence[Place], jobs: int) -> list[tuple[Fresh, Fate]]:
    """Judge every mutation, with a line of progress for each."""
    fates = dict[int, Fate]()
    numbers = range(len(drawn))
    for index, fate in in_children(numbers, lambda it: judge_one(drawn[it], at), jobs, LONGEST):
        fates[index] = fate or Fate("hung", "hang")
        done, item = fates[index], drawn[index]
        say(
            f"{len(fates)}/{len(drawn)} #{index} {item.operator}: {done.outcome} {done.law} "
            f"{done.seed} {done.loop} ({done.cases} cases, {done.seconds} s)\n{item.diff}"
        )
    return [(item, fates[index]) for index, item in enumerate(drawn)]


def as_table(judged: Sequence[tuple[Fresh, Fate]]) -> str:
    """Return the totals by operator, by folder and by law, then each survivor as a diff."""
    outcomes = Counter(fate.outcome for _, fate in judged)
    by_operator, by_folder = dict[str, Counter[str]](), dict[str, Counter[str]]()
    for item, fate in judged:
        folder = item.edit.where.partition(".")[0]
        by_operator.setdefault(item.operator, Counter())[fate.outcome] += 1
        by_folder.setdefault(folder, Counter())[fate.outcome] += 1
    lines = list[str]()
    for title, rows in (("operator", by_operator), ("folder", by_folder)):
        lines.append(f"{title:<20}{'all':>6}{'caught':>8}{'hung':>6}{'survived':>10}")
        for name, row in sorted(rows.items()):
            counts = f"{row['caught']:>8}{row['hung']:>6}{row['survived']:>10}"
            lines.append(f"{name:<20}{row.total():>6}{counts}")
        lines.append("")
    laws = Counter(fate.law for _, fate in judged if fate.outcome == "caught")
    lines.append(", ".join(f"{law} {count}" for law, count in laws.most_common()))
    for number, (item, fate) in enumerate(judged):
        if fate.outcome in ("survived", "hung"):
            lines += ["", f"#{number} {item.operator}: {fate.outcome}, entered by {fate.entered} "
                      f"cases", item.diff]  # fmt: skip
    share = 100 * (outcomes["caught"] + outcomes["hung"]) / max(1, len(judged))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    lines += ["", f"{counts}: {share:.0f} % caught or hung"]
    return "\n".join(lines)


def kept_draws() -> Iterator[tuple[dict[str, int], tuple[Mutation, ...]]]:
    """Yield the counts of each draw in ``fresh_survivors.toml``, and its survivors with reasons."""
    page, survivors = tomllib.loads((HERE / SURVIVORS).read_text("utf-8")), read(SURVIVORS)
    for name in (
        "draw",
        "later",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
    ):
        prefix = "survivor " if name == "draw" else f"{name} survivor "
        yield page[name], tuple(item for item in survivors if item.name.startswith(prefix))


def as_json(judged: Sequence[tuple[Fresh, Fate]]) -> str:
    """Return every mutation with its fate."""
    rows = [
        {"operator": item.operator, "edit": list(vars(item.edit).values()), **asdict(fate)}
        for item, fate in judged
    ]
    return json.dumps(rows, indent=1)
