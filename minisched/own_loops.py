"""Loops of one's own: a function, a ``Design``, or a file that has one.

``add_loop`` registers one under a name, ``known`` does so for a block. On a command line a file is
``FILE.py``, ``FILE.py:NAME`` or ``FILE.py:NAME:RELAY:OPTION=VALUE``. A class of the file that
decides the batches, as in lesson 13, decides for every loop of that file.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from .defaults import check_names, in_words
from .engine.engine import Engine
from .learn.guard import blame, is_loop
from .loops.design import LOOPS, Design, LoopSource, Turns, first_line, loops_as_before
from .relay import RELAYS
from .scheduler import Scheduler

OwnLoop = Design | Callable[[Engine], Turns]
FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<rest>.*))?", re.S)
AS_IN_THE_LESSON = {"disable_radix_cache": True, "run_first": "", "rules": "sglang"}
NO_DRAFTS = dict.fromkeys(
    ("NGRAM", "NGRAM_GPU", "STANDALONE"), "a scheduler of your own plans no drafts"
)
"""A scheduler of one's own knows no prefix cache and no drafts, as in lesson 13."""
DECIDES = ("receive", "ended", "next_batch")  # the methods of a scheduler of one's own
RESERVED = ("all",)  # a name that stands for several loops
USUAL_DEPTH = 2  # steps in flight of a function that names no other number, as ``overlap`` has


def is_own(loop: object) -> bool:
    """Return whether something is a loop of one's own: a function, a design, or one in a file."""
    if isinstance(loop, str):
        return FILE.fullmatch(loop) is not None
    return isinstance(loop, Design) or callable(loop)


def check_loops(loops: object) -> list[str | OwnLoop]:
    """Return the loops of an argument, if it is a list of names, functions or designs.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(loops, str) or not isinstance(loops, Iterable):
        return list(check_names("loops", loops, "overlap"))
    found = list(loops)
    check_names("loops", [loop for loop in found if not is_own(loop)], "overlap")
    return found


def add_loop(loop: str | OwnLoop) -> str:
    """Register a loop of one's own and return its name; the name of any other loop is returned.

    The name is the function's, or ``your_NAME`` where a loop has that name already. The same loop
    keeps its name.

    Raises:
        ValueError: the file can't be run or has no such loop, or the function is no loop.
    """
    if isinstance(loop, str):
        found = FILE.fullmatch(loop)
        if found is None:
            return loop
        design, rest = loop_in_file(found["path"], (found["rest"] or "").split(":"))
    elif is_own(loop):
        run = loop.run if isinstance(loop, Design) else loop
        name = str(getattr(run, "__name__", "")).strip("<>") or "your_loop"
        design, rest = with_source(design_of(loop), name), []
    else:
        raise ValueError(
            f"loop is a name, such as 'overlap', a function or a Design, not {in_words(loop)}."
        )
    name = free_name(design)
    LOOPS[name] = design
    return ":".join([name, *rest])


@contextmanager
def known(loops: Iterable[str | OwnLoop]) -> Iterator[list[str]]:
    """Register loops of one's own inside the block; it receives the name of each loop.

    Raises:
        ValueError: see ``add_loop``.
    """
    with loops_as_before():
        yield [add_loop(loop) for loop in loops]


def add_files(files: Iterable[str]) -> None:
    """Register the loops of files in another process, which then has the same names."""
    for file in files:
        add_loop(file)


def in_each_process(loops: Iterable[object]) -> Callable[[], None] | None:
    """Return what registers the loops of files in another process; None if there are none.

    Raises:
        ValueError: one is a function or a ``Design``, which no other process has.
    """
    given = list(loops)
    for loop in given:
        if not isinstance(loop, str):
            name = getattr(loop, "__name__", "your_loop")
            raise ValueError(
                f"{in_words(loop)} runs in this process alone; for more jobs put it into a file, "
                f"and name it 'FILE.py:{name}'."
            )
    files = [FILE.fullmatch(str(loop)) for loop in given]
    texts = [
        ":".join(filter(None, [str(Path(found["path"]).resolve()), found["rest"]]))
        for found in files
        if found
    ]
    return partial(add_files, texts) if texts else None


def typed(loop: str) -> str:
    """Return the name of a registered loop as a command line takes it, in any process."""
    name, *rest = loop.split(":")
    own = LOOPS[name].source
    return ":".join([own.path, own.name, *rest]) if own is not None and own.path else loop


def free_name(design: Design) -> str:
    """Return the name of a loop that is registered already, or a name that is free."""
    name = design.source.name if design.source else ""
    numbered = (f"your_{name}_{number}" for number in count(2))
    for free in (name, f"your_{name}", *(next(numbered) for _ in LOOPS)):
        if free not in RESERVED and LOOPS.get(free, design) == design:
            return free
    raise AssertionError("there are more numbers than loops")


# -- A function, as a design -----------------------------------------------------------------------


def design_of(loop: OwnLoop) -> Design:
    """Return the design of a loop.

    A function has two steps in flight, or as many as its option ``depth``, and a ring.

    Raises:
        ValueError: it can't be called with an engine, or has no ``yield``.
    """
    if isinstance(loop, Design):
        return loop
    name = str(getattr(loop, "__name__", "your_loop"))
    if problem := is_loop(loop, name):
        raise ValueError(f"{problem.rstrip('.')}.")
    depth = inspect.signature(loop).parameters.get("depth")
    steps = depth.default if depth and isinstance(depth.default, int) else USUAL_DEPTH
    return Design(loop, ("ring", "pool"), depth=steps, pins=steps)


def with_source(design: Design, name: str, path: str = "") -> Design:
    """Return a design with the text of its loop, which its traces then contain."""
    code = getattr(inspect.unwrap(design.run), "__code__", None)
    first, lines = 0, list[str]()
    if code is not None:
        path = path or (code.co_filename if Path(code.co_filename).is_file() else "")
        try:
            text, begin = inspect.getsourcelines(code)
        except (OSError, TypeError):  # typed at Python's own prompt
            pass
        else:
            first = first_line(code)
            lines = [line.rstrip() for line in text[first - begin :]]
    return replace(design, source=LoopSource(name, path, first, tuple(lines)))


# -- A loop in a file ------------------------------------------------------------------------------


def loop_in_file(path: str, parts: list[str]) -> tuple[Design, list[str]]:
    """Return the loop that a command line names by its file, and the rest of its name.

    Without a name it is ``loop``, or the only loop of the file.

    Raises:
        ValueError: see ``add_loop``.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or error}.") from None
    names, designs = loops_of(path, Path(path).resolve(), status.st_mtime_ns)
    asked, *rest = parts
    if "=" in asked or (asked in RELAYS and asked not in designs):
        asked, rest = "", parts
    if asked and asked not in designs and asked in names:  # its argument has another name
        found = decided_by(scheduler_in(names, path), design_of(names[asked]))
        return with_source(found, asked, path), rest
    has = f"it has {', '.join(designs)}" if designs else "it has none"
    if not asked and len(designs) > 1 and "loop" not in designs:
        raise ValueError(f"{path} has {len(designs)} loops: name one, as {path}:{min(designs)}; "
                         f"{has}.")  # fmt: skip
    asked = asked or ("loop" if "loop" in designs else next(iter(designs), ""))
    if asked not in designs:
        what = f"loop {asked!r}" if asked else "loop: a generator that takes `engine`"
        raise ValueError(f"{path} has no {what}; {has}.")
    return designs[asked], rest


@cache
def loops_of(
    shown: str, path: Path, changed: int
) -> tuple[Mapping[str, Any], Mapping[str, Design]]:
    """Run a file; return all its names, and its loops by name. It is run once until it changes.

    Raises:
        ValueError: it can't be read or run, or several of its classes decide.
    """
    module = ModuleType(f"own_loops_in_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))  # a file may import its neighbours
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{shown} can't be read: {error.strerror or error}.") from None
    with loops_as_before():
        before = dict(LOOPS)
        try:
            exec(compile(text, str(path), "exec"), vars(module))
        except (Exception, SystemExit) as error:
            raise ValueError(f"{shown} stops with {blame(error)}") from None
        finally:
            sys.path.remove(str(path.parent))
        decorated = {name: spec for name, spec in LOOPS.items() if before.get(name) is not spec}
    names = vars(module)
    designs = {
        name: design_of(value)
        for name, value in names.items()
        if isinstance(value, Design) or takes_engine(value, module.__name__)
    }
    scheduler = scheduler_in(names, shown)
    return names, {
        name: with_source(decided_by(scheduler, spec), name, shown)
        for name, spec in {**designs, **decorated}.items()
    }


def takes_engine(value: object, module: str) -> bool:
    """Return whether a value is a generator of this module that is called with ``engine`` alone."""
    if not inspect.isgeneratorfunction(value) or value.__module__ != module:
        return False
    return value.__code__.co_varnames[:1] == ("engine",) and not is_loop(value, value.__name__)


def decided_by(kind: type[Any] | None, design: Design) -> Design:
    """Return a design whose batches a class of the file decides."""
    if kind is None:
        return design
    if issubclass(kind, Scheduler):
        return replace(design, scheduler=kind)
    from .learn.exercises.l13_capstone import AtOnce, OwnScheduler  # with all that checks need

    named = type(kind.__name__, (OwnScheduler,), {})
    return replace(
        design,
        scheduler=partial(named, kind, AtOnce()),
        settings={**design.settings, **AS_IN_THE_LESSON},
        refuses={**design.refuses, **NO_DRAFTS},
    )


def scheduler_in(names: Mapping[str, Any], path: str) -> type[Any] | None:
    """Return the class of a file that decides the batches, or None.

    Raises:
        ValueError: several classes decide and none is called Scheduler, or a method is missing.
    """
    own = [
        (name, value)
        for name, value in names.items()
        if isinstance(value, type) and not value.__module__.startswith("minisched.")
        if name == "Scheduler" or issubclass(value, Scheduler) or hasattr(value, DECIDES[-1])
    ]
    named = [value for name, value in own if name == "Scheduler"]
    chosen = list(dict.fromkeys(named or [value for _, value in own]))
    if len(chosen) > 1:
        listed = " and ".join(kind.__name__ for kind in chosen)
        raise ValueError(
            f"{path} has {len(chosen)} classes that decide batches, {listed}; "
            "call the one that is to decide Scheduler."
        )
    kind = next(iter(chosen), None)
    if kind is None or issubclass(kind, Scheduler):
        return kind
    if lacking := [method for method in DECIDES if not hasattr(kind, method)]:
        raise ValueError(
            f"the class {kind.__name__} of {path} lacks {' and '.join(lacking)}; a scheduler has "
            f"the methods {', '.join(DECIDES)}."
        )
    return kind
