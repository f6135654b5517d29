"""``minisched check`` and ``minisched.check``: the laws, held against runs or random workloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from .checks.answers import ORACLE, Answer, Recorded, stopped_with, story_of
from .checks.case import MOST_TRIALS, Case, case_text, shrink
from .checks.history import many
from .checks.judge import Finding, Verdict, breaks_the_same, judge
from .checks.laws import LAWS, cause_rank, laws_on
from .checks.many import CaseTally, Tried, case_of, try_seed
from .checks.oracle import oracle_trace
from .checks.outputs import (
    EngineOutputs,
    OutputComparison,
    compare_outputs,
    outputs_of,
    read_outputs,
)
from .checks.reading import is_own_format, read_recorded
from .checks.requirements import Requirement, RequirementResult, requirement
from .checks.verdict import RunVerdict, every_law_held, verdicts_on
from .comparison import Comparison
from .core.text import distinct
from .defaults import in_words
from .devices.registry import open_device
from .export.by_step import by_step
from .export.notebook import NotebookPicture, in_columns
from .export.offence import offence_scene
from .export.profiled_steps import profiled_steps
from .export.scene import Scene
from .export.scene_svg import to_svg
from .export.verdict_page import verdict_html, verdict_page
from .export.views.marks import NothingToShow
from .loops.design import LOOPS, Design, find_loop
from .loops.run import Run
from .museum.blame import offence_of, prompts_of, wrong_token
from .own_loops import OwnLoop, check_loops, in_each_process, is_own, known, typed
from .sweep.workers import HERE, Workers, in_order, spread
from .trace import Trace
from .trace.files import UNPACKED_MIB, write_whole
from .trace.native import to_json

Checkable = Run | Trace | Comparison | str | Path | OwnLoop
Again = Callable[[int, str], str]  # of a seed and a loop: the line that repeats the case
WORKLOADS = {"virtual": 150, "wall": 20}  # by the device's clock
MOST_WORKLOADS = 1_000_000  # whose cases are kept until the end
LONGEST = 300  # characters of a finding
FEW = 8  # workloads that this process runs faster than new ones do


@dataclass(frozen=True, repr=False)
class Check:
    """The result of a check; printed, it is sentences.

    ``holds`` is None without anything to judge, and False if a law is broken or a requirement is
    not met. ``verdicts`` are those on recorded runs. ``tally`` counts random workloads and has
    every failure; ``smallest`` is the first of them, made as small as possible. ``told`` are the
    sentences on workloads, and on the outputs of two engines.
    """

    holds: bool | None
    told: tuple[str, ...] = ()
    verdicts: tuple[RunVerdict, ...] = ()
    tally: CaseTally | None = None
    smallest: Verdict | None = None
    outputs: OutputComparison | None = None

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the sentences; those on a recorded run fit on a screen."""
        return (*self.told, *chain.from_iterable(item.lines() for item in self.verdicts))

    @property
    def detail(self) -> str:
        """Return every sentence, one a line."""
        found = (item.lines(is_whole=True) for item in self.verdicts)
        return "\n".join((*self.told, *chain.from_iterable(found)))

    @property
    def runs(self) -> list[Recorded]:
        """Return the recorded runs."""
        return [item.run for item in self.verdicts]

    @property
    def answers(self) -> dict[str, tuple[Answer, ...]]:
        """Return the answers about each recorded run, by its file."""
        return {item.run.file: item.answers for item in self.verdicts}

    @property
    def required(self) -> dict[str, tuple[RequirementResult, ...]]:
        """Return what was required of each recorded run, by its file."""
        return {item.run.file: item.required for item in self.verdicts}

    @property
    def first_violation(self) -> Scene | None:
        """Return the picture of the first violation of recorded runs that names slices."""
        for verdict in self.verdicts:
            for answer in verdict.answers:
                for offence in answer.offences:
                    if offence.slices:
                        return offence_scene(verdict.run.trace, offence)
        return None

    @property
    def scene(self) -> Scene | None:
        """Return the first violation of recorded runs, or the steps of the last; None: neither."""
        if violation := self.first_violation:
            return violation
        with suppress(NothingToShow):
            for run in self.runs[-1:]:
                if any(item.step for item in run.trace.slices):
                    return profiled_steps(run.trace) if run.steps else by_step([run.trace])
        return None

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the sentences, and their picture if there is one, for a notebook."""
        if (scene := self.scene) is None:
            return {"text/plain": repr(self)}
        picture = NotebookPicture(to_svg(scene))
        said = "".join(map(verdict_html, self.verdicts)) or in_columns(repr(self))
        page = f"{said}{picture.image()}"
        return {"text/html": page, "image/svg+xml": picture.svg, "text/plain": repr(self)}

    def to_html(self) -> str:
        """Return a page with the verdicts on recorded runs and their picture."""
        scene = self.scene
        return verdict_page(self.verdicts, to_svg(scene) if scene else "")

    def as_json(self) -> dict[str, Any]:
        """Of workloads the counts; of runs ``holds``, and each run with its header and answers.

        A run that stopped with an error has it as ``stopped``. An answer has ``answer`` (yes, no,
        partly or unknown), ``sentence``, ``details``, and that on overlap ``figures``, in
        nanoseconds. ``verdict`` has the rows of the terminal, with all details.
        """
        if self.outputs is not None:
            return self.outputs.as_json()
        if self.tally is not None:
            return self.tally.as_json()
        header = ("loop", "device", "model", "clock", "dtype")
        return {
            "holds": self.holds,
            "runs": [
                {
                    "file": item.run.file,
                    **{name: getattr(item.run.trace, name) for name in header},
                    **({"stopped": error} if (error := stopped_with(item.run.trace)) else {}),
                    **{answer.question: answer.as_json() for answer in item.answers},
                    **(
                        {"required": [result.as_json() for result in item.required]}
                        if item.required
                        else {}
                    ),
                    "verdict": item.as_json(),
                }
                for item in self.verdicts
            ],
        }

    def save(self, folder: str | Path) -> list[str]:
        """Write the smallest failure into a folder; return the files, or none without a failure.

        The files are its trace, the trace of the oracle, which explains wrong tokens, and a
        picture of the violation.

        Raises:
            ValueError: a file can't be written.
        """
        if self.tally is None or self.smallest is None:
            return []
        (case, finding), verdict = self.tally.first[0], self.smallest
        stem = f"seed-{case.seed}-{case.loop.replace(':', '-')}"
        texts = {
            f"{stem}{ORACLE}.json": to_json(oracle_trace(verdict.workload, verdict.refused)),
            f"{stem}.json": to_json(verdict.trace),
        }
        if (broken := verdict.broke(finding.law)) is not None:
            scene = offence_scene(verdict.trace, offence_of(verdict, broken))
            texts[f"{stem}.svg"] = to_svg(scene)
        for name, text in texts.items():
            write_whole(Path(folder) / name, text, f"--out {folder}", with_folders=True)
        return [str(Path(folder) / name) for name in texts]


def check_this(
    what: Sequence[Checkable],
    workloads: int | None,
    seed: int,
    loops: Sequence[str | OwnLoop],
    device: str,
    jobs: int,
    step: str = "",
    device_lane: str = "",
    unpacked_mib: int = UNPACKED_MIB,
    require: Sequence[str] = (),
    compare: bool = False,
) -> Check:
    """Do what ``minisched.check`` documents.

    Raises:
        ValueError: an argument is not what it takes.
    """
    if compare:
        if any([step, device_lane, require, loops, workloads]):
            raise ValueError("compare takes two files, and no other option than unpacked_mib.")
        return compare_files(what, unpacked_mib)
    loops = check_loops(loops)
    own = [item for item in what if is_own(item)]
    if isinstance(require, str):
        raise ValueError(f"require is {require!r}, but it must be a list, such as [{require!r}].")
    needed = [requirement(text) for text in require]
    if (step or device_lane) and not any(isinstance(item, str | Path) for item in what):
        name = "step" if step else "device_lane"
        raise ValueError(f"{name} is about files of recorded runs, but none is named.")
    if needed and len(own) == len(what):
        raise ValueError("require is about recorded runs, but none is named.")
    if what and len(own) < len(what):
        if own:
            raise ValueError("loops and recorded runs can't be checked together: one or the other.")
        if (workloads, seed, loops, device, jobs) != (None, 0, [], "sim", 1):
            raise ValueError("workloads, seed, loops, device and jobs are not for recorded runs.")
        runs = recorded(what, step, device_lane, unpacked_mib)
        return check_runs(runs, needed)
    every: list[Any] = [*own, *loops]
    with known(every) as names:
        given = dict(zip((name.partition(":")[0] for name in names), every, strict=True))

        def again(seed: int, loop: str) -> str:
            """Return the line of Python that repeats a case."""
            return python_line(given.get(loop.partition(":")[0], ""), seed, loop, device)

        has_all = "its `tally.failures` has them all"
        return check_workloads(every, workloads, seed, device, Workers(jobs), again, has_all)


# -- Recorded runs ---------------------------------------------------------------------------------


def check_runs(given: Iterable[Recorded], require: Sequence[Requirement] = ()) -> Check:
    """Answer the five questions about recorded runs; the first of several is the baseline.

    Every run has to meet what is required; a run that does not is as a broken law.

    Raises:
        ValueError: two runs are of different workloads.
    """
    runs = list(given)
    names = distinct(run.file for run in runs)
    runs = [run._replace(file=name) for run, name in zip(runs, names, strict=True)]
    verdicts = verdicts_on(runs, require)
    holds = every_law_held(verdicts)
    if require:
        holds = holds is not False and all(it.is_met for of in verdicts for it in of.required)
    return Check(holds, verdicts=verdicts)


def recorded(
    what: Sequence[Checkable], step: str, device_lane: str, unpacked_mib: int
) -> Iterator[Recorded]:
    """Yield every run in ``what`` with a name; files are read as ``read_recorded`` documents.

    Raises:
        ValueError: it is something else, or a file can't be read.
    """
    for item in what:
        if isinstance(item, Comparison):
            yield from recorded(item.runs, step, device_lane, unpacked_mib)
        elif isinstance(item, Run | Trace):
            yield Recorded(item.loop, item.trace if isinstance(item, Run) else item)
        elif isinstance(item, str) and item.partition(":")[0] in LOOPS and not Path(item).exists():
            raise ValueError(
                f"there is no file {item}; to try the loop of that name on random workloads, "
                f"it is check(loops=[{item!r}])."
            )
        elif isinstance(item, str | Path):
            yield read_recorded(
                Path(item), step, device_lane=device_lane, unpacked_mib=unpacked_mib
            )
        else:
            raise ValueError(
                f"check takes runs, traces, their files or one loop, but not {in_words(item)}."
            )


def compare_files(what: Sequence[Checkable], unpacked_mib: int = UNPACKED_MIB) -> Check:
    """Compare the outputs of two engines, the first of which is the baseline.

    Each is a file of answers (``checks/outputs.py``), or a recorded run.

    Raises:
        ValueError: there are not two, one can't be read, or they can't be compared.
    """
    if len(what) != 2:
        raise ValueError(f"compare takes two files of outputs, but {len(what)} are named.")
    sides = list[EngineOutputs]()
    for item in what:
        if isinstance(item, Run | Trace):
            sides.append(outputs_of(item.trace if isinstance(item, Run) else item, item.loop))
        elif not isinstance(item, str | Path):
            raise ValueError(f"compare takes files, runs and traces, but not {in_words(item)}.")
        elif is_own_format(path := Path(item)):
            trace = read_recorded(path, unpacked_mib=unpacked_mib).trace
            sides.append(outputs_of(trace, str(path)))
        else:
            try:
                sides.append(read_outputs(path, unpacked_mib))
            except OSError as error:
                raise ValueError(f"{path} can't be read: {error.strerror}.") from error
    found = compare_outputs(*sides)
    return Check(found.holds, found.lines, outputs=found)


# -- Random workloads ------------------------------------------------------------------------------


def check_workloads(
    loops: Sequence[str | OwnLoop],
    workloads: int | None = None,
    seed: int = 0,
    device: str = "sim",
    workers: Workers = HERE,
    again: Again | None = None,
    has_all: str = "--json has them all",
    hear: Callable[[int], None] = lambda cases: None,
    coverage: bool = False,
) -> Check:
    """Try random workloads on ``loops``; without any, on the loops that come round with a seed.

    ``again`` gives the line that repeats a failure, by default a command. ``has_all`` names the
    place of the failures that are not shown. ``hear`` receives the number of cases so far after
    each workload. An error that a line of a loop of one's own raised ends the check. With
    ``coverage`` the tally counts situations too.

    Raises:
        ValueError: a number is below its limit, there is no such loop or device, or other
            processes have no such loop.
    """
    opened = open_device(device)
    opened.close()
    count = WORKLOADS[opened.clock] if workloads is None else workloads
    for name, value, least in (("workloads", count, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number from {least} on.")
    if count > MOST_WORKLOADS:
        raise ValueError(
            f"workloads is {count}, but it must be at most {MOST_WORKLOADS}; "
            "go on with another seed."
        )
    if workers.jobs > 1 or workers.backend != "processes":
        workers = replace(workers, prepare=in_each_process(loops))
    with known(loops) as names:
        for name in names:
            find_loop(name).check_device(name, device)
        cases, done, is_in_loop = list[Tried](), 0, False
        seeds = range(seed, seed + count)
        for tried in try_workloads(seeds, names, device, workers, coverage):
            cases += tried
            done += 1
            hear(len(cases))
            is_in_loop = any(found.is_in_loop for case in tried for found in case.findings)
            if is_in_loop:
                break  # each further case would stop at that line
        tally = CaseTally(seed, done, device, cases, coverage)
        small = made_small(*tally.first[0], device) if tally.failures else None
        told = failures_told(tally, small, again or partial(command, device=device), has_all)
        stop = ["  The check stopped here: the error is in the loop itself."] * is_in_loop
        lines = verdict_on_cases(tally), *stop, *unknown_told(tally), *told
    holds = not tally.failures if cases else None
    return Check(holds, lines, tally=tally, smallest=small[1] if small else None)


def verdict_on_cases(tally: CaseTally) -> str:
    """How much was tried, and whether every law held."""
    cases, count = len(tally.cases), len(tally.loops)
    where = next(iter(tally.loops)) if count == 1 else f"{count} loops"
    tried = f"{many(tally.workloads, 'random workload')} on {where}, on {tally.device}"
    broken = sum(bool(case.findings) for case in tally.cases)
    if broken:
        return f"✗ {broken} of {many(cases, 'case')} broke a law: {tried}."
    if not cases:
        return "? Nothing to judge: no loop takes these workloads, so no case was run."
    unknown = {law for law, _ in tally.unknown}
    if unseen := [law for law in laws_on(tally.device) if tally.unjudged(law) == cases]:
        idle = " or ".join(law for law in unseen if law not in unknown)
        never = f"nothing happened that {idle} could be judged by" if idle else "not all are judged"
        return f"? No law broke in {many(cases, 'case')}, but {never}: {tried}."
    return f"✓ every law held in {'all ' * (cases > 1)}{many(cases, 'case')}: {tried}."


def unknown_told(tally: CaseTally) -> Iterator[str]:
    """Name each law that does not know the rules in force, with the reason and the cases."""
    for (law, reason), count in tally.unknown.items():
        yield f"? {reason}: {law} is not judged in {many(count, 'case')}."


LAW_HEADS = ("", "law", ">held", "its sentence")


def law_rows(tally: CaseTally) -> Iterator[tuple[str, str, str, str]]:
    """Each law: whether it held, and in how many cases that had something to break it with."""
    broken = {finding.law for _, finding in tally.failures}
    for law in laws_on(tally.device):
        held = tally.holding(law) - tally.unjudged(law)
        yield "✗" if law in broken else "✓" if held else "?", law, str(held), LAWS[law].says


def failures_told(
    tally: CaseTally, small: tuple[Case, Verdict] | None, again: Again, has_all: str
) -> Iterator[str]:
    """Yield the first failure of each law with the line that repeats it; then the smallest."""
    for case, broken in tally.first:
        said = f"{broken.law}: {shortened(broken.sentence)}"
        yield f"✗ seed {case.seed}, {case.loop}: {said}"
        yield f"    {again(case.seed, case.loop)}"
        if (own := LOOPS[case.loop.partition(":")[0]].source) is not None:
            remedies = (remedy for words, remedy in REMEDIES.items() if words in broken.sentence)
            found = re.search(r"there are (\d+) steps in flight", broken.sentence)
            named = {"loop": own.name, "steps": found[1] if found else ""}
            yield from (f"    {remedy.format(**named)}" for remedy in remedies)
            if broken.law == "identity":
                yield f"    If the request has penalties or a grammar: {DELAY}"
    if (more := len(tally.failures) - len(tally.first)) > 0:
        yield f"  and {more} more; {has_all}"
    if small is not None:
        yield "The first of them, made as small as it could be:"
        smallest, verdict = small
        yield from (f"  {line}" for line in case_text(smallest))
        for finding in sorted(verdict.findings, key=lambda item: cause_rank(item.law)):
            yield f"  {finding.law}: {shortened(finding.sentence)}"
            difference = wrong_token(verdict) if finding.law == "identity" else None
            if difference is not None:
                prompts = prompts_of(verdict.workload)
                story, _ = story_of(difference, verdict.trace, prompts)
                yield from (f"    {line}" for line in story)


DELAY = (
    "Ask engine.must_delay_sample(batch) before the launch, as in the section 'Add a loop' of "
    "CONTRIBUTING.md."
)
REMEDIES = {
    "the loop had to wait": DELAY,
    "steps in flight, but the loop has at most": "Declare the largest number of steps in flight: "
    "minisched.loops.design.Design({loop}, ('ring', 'pool'), depth={steps}, pins={steps}).",
}
"""Remedies for an own loop, by words of a finding."""


def made_small(tried: Tried, finding: Finding, device: str) -> tuple[Case, Verdict]:
    """Return a failed case without everything that its law does not need, and its verdict."""
    case = case_of(tried.seed, tried.loop, device)
    small = shrink(case, breaks_the_same(finding), MOST_TRIALS)
    return small, judge(small)


def command(seed: int | str, loop: str, device: str) -> str:
    """Return the command that repeats a failure."""
    on = "" if device == "sim" else f" --device {device}"
    return f"minisched check --workloads 1 --seed {seed} --loop {typed(loop)}{on}"


def python_line(given: str | OwnLoop, seed: int, loop: str, device: str) -> str:
    """Return the line of Python that repeats a failure of what ``check`` was given."""
    on = "" if device == "sim" else f", device={device!r}"
    if isinstance(given, Design):
        changed = [
            f"{item.name}={getattr(given, item.name)!r}"
            for item in fields(given)
            if isinstance(getattr(given, item.name), str | int | tuple)
            and getattr(given, item.name) != item.default
        ]
        what = f"Design({', '.join([LOOPS[loop.partition(':')[0]].run.__name__, *changed])})"
    elif callable(given):
        what = str(getattr(given, "__name__", "your_loop"))
    else:
        what = f"loops=[{typed(loop)!r}]"
    return f"ms.check({what}, seed={seed}, workloads=1{on})"


def shortened(sentence: str) -> str:
    """The first part of a long one."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}..."


def try_workloads(
    seeds: Sequence[int],
    loops: Sequence[str] = (),
    device: str = "sim",
    workers: Workers = HERE,
    coverage: bool = False,
) -> Iterator[list[Tried]]:
    """Yield ``try_seed`` of each seed, in order, from several processes or a cluster.

    The results are the same for any number of processes. No process is left at the end.
    """
    one = partial(try_seed, loops=tuple(loops), device=device, coverage=coverage)
    is_small = workers.backend == "processes" and len(seeds) < FEW
    yield from in_order(spread(one, seeds, HERE if is_small else workers))
