"""An original's half of the lockstep: its stand-ins, its turns, and its launched steps.

It runs in an environment of its own, one JSON line for each case (``bench/peers/peer.py``).
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from ..bench.peers.peer import Answer, version_in
from ..bench.steps import HostEngine, HostWorkload, answer_with
from .case import (
    MOST_TURNS,
    NOTHING,
    QUIET,
    Arrival,
    FidelityCase,
    Schedule,
    ScheduledStep,
    trimmed,
)

# -- Stand-ins: parts of an original that are replaced here ----------------------------------------

DEVICE, SETTINGS, LISTENER, ENTRY = "device", "settings", "listener", "entry"
KERNELS = "it compiles or holds kernels of a GPU"
UNUSED = "what it is for is never reached by scheduling"


class StandIn(NamedTuple):
    """A part of an original that is replaced here: its name, its kind, and its replacement.

    ``device``: it would need or command a GPU; also packages that are imported but never called.
    ``settings``: values, either the default or from the case. ``listener``: it receives steps and
    returns nothing. ``entry``: requests enter and steps leave there, so it is replaced by the case
    and its tokens.
    """

    name: str  # a package, a module, or MODULE:NAME
    kind: str
    replaces: str


class Anything:
    """Can be called, indexed and asked for any attribute; as a decorator it changes nothing."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return itself; as a decorator, the decorated object."""
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self

    def __getattr__(self, name: str) -> Any:
        return attribute(name)

    def __getitem__(self, item: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class AnyClass(type):
    """A class with any attribute; it can be a base class."""

    def __getattr__(cls, name: str) -> Any:
        return attribute(name)


class AnyModule(ModuleType):
    """A module with any attribute: names that begin with a capital are classes."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        return AnyClass(name, (Anything,), {}) if name[0].isupper() else attribute(name)


def attribute(name: str) -> Any:
    """Return a stand-in's attribute; it has none of Python's own names."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything()


class Modules(MetaPathFinder, Loader):
    """Finds the named packages and modules, and everything below them: all are stand-ins."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a package, if it is one of those named."""
        known = any(f"{fullname}.".startswith(f"{name}.") for name in self.names)
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty module."""
        return AnyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


class Off:
    """Missing attributes are None; or, while ``depth`` is left, another group of None values."""

    def __init__(self, depth: int = 0, **given: Any) -> None:
        self.__dict__.update(given, _depth=depth)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        depth = self.__dict__.get("_depth")
        return Off(depth - 1) if depth else None


def stand_in(items: Sequence[StandIn], own: str) -> None:
    """Make the modules among ``items`` importable; those of the package ``own`` are replaced.

    All others are packages that are not installed. An installed one stays.
    """
    names = [item.name for item in items if ":" not in item.name]
    its = [name for name in names if name.startswith(f"{own}.")]
    sys.meta_path.insert(0, Modules(its))
    sys.meta_path.append(Modules([name for name in names if name not in its]))


# -- The turns of a case ---------------------------------------------------------------------------


class CaseOver(Exception):
    """All requests are served, or none can run; it ends a loop that has no other end."""


class Turns:
    """The turns of a case: an original's loop begins each, and reports its launched step."""

    def __init__(self, case: FidelityCase) -> None:
        self.case = case
        self.waiting = list(case.arrivals)
        self.by_rid = {arrival.rid: arrival for arrival in case.arrivals}
        self.steps: Schedule = []
        self.lost: dict[str, int] = {}
        self.quiet = 0

    def begin(self, is_done: bool, lost: dict[str, int]) -> list[Arrival]:
        """End the turn before, and begin one; return its arrivals.

        ``lost`` maps each request to the number of times that it has lost its memory so far.

        Raises:
            CaseOver: there is no further turn.
        """
        turn = len(self.steps)
        if turn:
            gone = sorted(rid for rid in lost if lost[rid] > self.lost.get(rid, 0))
            step = self.steps[-1] = self.steps[-1]._replace(retracted=tuple(gone))
            is_quiet = step == NOTHING and turn > self.case.last_turn
            self.quiet = self.quiet + 1 if is_quiet else 0
        self.lost = dict(lost)
        if turn == MOST_TURNS or (not self.waiting and (is_done or self.quiet == QUIET)):
            raise CaseOver
        coming = [arrival for arrival in self.waiting if arrival.turn <= turn]
        self.waiting = self.waiting[len(coming) :]
        self.steps.append(NOTHING)
        return coming

    def launched(self, step: ScheduledStep) -> None:
        """Record this turn's step."""
        self.steps[-1] = step

    def play(self, loop: Callable[[], Any]) -> Schedule:
        """Run a loop to the end of the case."""
        try:
            while True:
                loop()
        except CaseOver:
            pass
        except Exception as error:  # it is compared like any other step
            self.launched(ScheduledStep(f"{type(error).__name__}: {error}"))
        return trimmed(self.steps)


# -- One original: its source, its deciding modules, its setup and its turns -----------------------


class Driven(Protocol):
    """An original that was made for a case."""

    turns: Turns
    loop: Callable[[], Any]  # one turn of it, or all of them


@dataclass(frozen=True)
class Original:
    """A published system: its own code plays cases, in a process and an environment of its own.

    ``set_up`` imports it there with its stand-ins, and returns a class that is made for a case
    (``Driven``). ``deciding`` are the modules that decide what runs. ``engine_of`` is for ``bench
    host``.
    """

    name: str  # of its rules (policy/rules.py), and of its script
    title: str
    deciding: Sequence[str]
    stand_ins: Sequence[StandIn]
    set_up: Callable[[], Any]
    engine_of: Callable[[HostWorkload], HostEngine] | None = None
    distribution: str = ""  # its wheel; '' if a checkout is needed
    below: str = ""  # the folder of its package in a checkout
    packages_of: str = ""  # the original with the script that names its packages; '' if its own
    has_future_map: bool = False  # which is compared, too (future_map.py)

    def check_source(self, source: Path | None) -> None:
        """Check that a checkout was given if one is needed, and only then.

        Raises:
            ValueError: it was not.
        """
        if not self.distribution and source is None:
            raise ValueError(
                f"{self.title} has no wheel, so it takes a checkout of it: --source DIR."
            )
        if source is not None and self.distribution:
            raise ValueError(
                f"--source is {str(source)!r}, but {self.title} is installed from its wheel."
            )
        if source is not None and not source.is_dir():
            raise ValueError(f"--source is {str(source)!r}, but that is no folder.")

    def start(self, settings: Answer) -> Callable[[Answer], Answer]:
        """Set it up in its own process, from the checkout ``source`` if it has no wheel.

        The result answers ``{"case"}`` with its schedule, ``{"load"}`` with its time, and any other
        request with the versions and files that ran.
        """
        if not self.distribution:
            sys.path.insert(0, str(Path(settings["source"], self.below)))
        made = self.set_up()
        for name in self.deciding:
            import_module(name)

        def answer(question: dict[str, Any]) -> Answer:
            """Run a case of the question, or measure its load."""
            if "case" in question:
                driven: Driven = made(FidelityCase.from_json(question["case"]))
                return {"schedule": driven.turns.play(driven.loop)}
            if "load" in question and self.engine_of:
                return answer_with(self.engine_of, question)
            return {
                "version": self.version(settings["source"]),
                "files": {name: self.where(name) for name in self.deciding},
                "overridden": [
                    name for name, it in vars(made).items()
                    if callable(it) and any(name in vars(base) for base in made.__mro__[1:-1])
                ],
            }  # fmt: skip

        return answer

    def version(self, source: str) -> str:
        """Return the wheel's version; of a checkout, its own version, and its commit if known."""
        if self.distribution:
            return metadata.version(self.distribution)
        git = ["git", "-C", source, "rev-parse", "--short", "HEAD"]
        try:
            said = subprocess.run(
                git, capture_output=True, text=True, encoding="utf-8", check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return version_in(Path(source))
        return f"{version_in(Path(source))} at {said}"

    def where(self, name: str) -> dict[str, Any]:
        """Return a module's file, and whether it equals the published one (None: unknown)."""
        file = Path(str(sys.modules[name].__file__))
        published = None
        if self.distribution:
            known = {
                Path(str(each.locate())): each.hash
                for each in metadata.files(self.distribution) or ()
                if each.hash is not None
            }
            said = known.get(file)
            digest = hashlib.sha256(file.read_bytes()).digest()
            is_it = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            published = said is not None and said.value == is_it
        return {"file": str(file), "is_published": published}
