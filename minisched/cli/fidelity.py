"""``minisched fidelity``: our scheduler in lockstep with an original, and the first difference."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import SystemRandom

import typer

from ..bench.peers.peer import PeerError
from ..fidelity import future_map
from ..fidelity.lockstep import UNEXPLAINED, in_words
from ..fidelity.original import Original
from ..fidelity.parts import PARTS
from ..fidelity.run import EQUAL, ORIGINALS, Player, Report, differs_from_own, in_lockstep
from ..sweep.workers import HERE, Workers
from .exit import BAD_INPUT, complain
from .layout import JSON, print_json, say, say_table, work_progress
from .options import ADDRESS, BACKEND, setting

MOST_SEED = 10**9


def fidelity(
    original: str = typer.Argument(help="sglang, mini-sglang, vllm or nano-vllm."),
    cases: int = setting(300, "How many, dealt over the parts.", least=1, most=100_000),
    seed: int | None = setting(None, "The seed of all cases.", shown="a random one, printed"),
    source: Path | None = setting(None, "A checkout of mini-sglang or nano-vllm."),
    jobs: int = setting(1, "Processes, with an original each."),
    backend: str = BACKEND,
    address: str = ADDRESS,
    json: bool = JSON,
) -> int:
    """Compare our scheduler with an original's own scheduler on random cases.

    The original is installed into an environment of its own, once. Both
    schedulers get the same arrivals, settings and tokens. Each turn compares
    the kind of batch, the prompts in order with their ranges, the decoding
    requests and the retracted ones.

    A case with a difference runs again with the original's answers to the rules
    that differ on purpose. If a difference remains, the exit code is 1, and the
    first such case is reduced and printed. Without the original the exit code
    is 2.

    With sglang, as many random uses of its FutureMap are compared with ours:
    the ring of SGLang 0.5.3, and the form with a slot for each row.
    """
    if original not in ORIGINALS:
        known = ", ".join(ORIGINALS)
        raise ValueError(f"there is no original {original!r}; it must be one of {known}.")
    named = ORIGINALS[original]
    named.check_source(source)
    try:
        chosen = SystemRandom().randrange(MOST_SEED) if seed is None else seed
        report = play(named, cases, chosen, source, Workers(jobs, backend, address))
    except PeerError as error:
        return complain(f"{named.title} can't be run here: {str(error).rstrip('.')}.", BAD_INPUT)
    if json:
        print_json(report.as_json())
    else:
        show(report, named)
    differ = any(each.differences for each in report.future_maps)
    return 1 if report.unexplained or differ else 0


def play(
    original: Original, cases: int, seed: int, source: Path | None, workers: Workers
) -> Report:
    """Start the original, and play all cases, with a progress bar."""
    with work_progress() as work:
        player = Player(original, source, work.at)
    with player, work_progress(cases) as work:
        name, version, others = original.name, player.about["version"], None
        if workers != HERE:
            others = partial(differs_from_own, name, source and source.resolve())
        report = in_lockstep(
            name, PARTS[name], player.play, version, cases, seed, work.advance, workers, others
        )
    if original.has_future_map:
        with work_progress() as work:
            report.future_maps = future_map.in_lockstep(original.name, cases, seed, work.at)
    return report


def show(report: Report, original: Original) -> None:
    """Print the counts by part, one sentence, and the smallest case that no rule explains."""
    rows = []
    for part, count in report.parts.items():
        known = (EQUAL, UNEXPLAINED)
        rules = [f"{rule} {n}" for rule, n in count.most_common() if rule not in known]
        other = f"✗ {count[UNEXPLAINED]}" if count[UNEXPLAINED] else ""
        rows.append((part, str(count.total()), str(count[EQUAL]), other, ", ".join(rules)))
    say_table(("part", ">cases", ">equal", ">else", "on purpose"), rows)
    say(f"Seed: {report.seed}.")
    whole, left = report.all_parts, report.unexplained
    explained = whole.total() - whole[EQUAL] - left
    purpose = f", {explained} differ by rules that differ on purpose" if explained else ""
    said = f"{whole[EQUAL]} of {whole.total()} cases are equal to {original.title} {report.version}"
    rest = f", and {left} by nothing that is known" if left else ""
    say(f"{'✗' if left else '✓'} {said}{purpose}{rest}.")
    if report.smallest is not None:
        name = next(item.seed for item, found in report.differences if not found.is_explained)
        say(f"\nThe first of them (seed {name!r}), made small:\n")
        for line in in_words(report.smallest, (original.title, "minisched")):
            say(line)
        if report.agreeing:
            say(f"Both would do the same with {' or with '.join(report.agreeing)}.")
    for each in report.future_maps:
        bad = each.differences
        equal = f"{each.cases - len(bad)} of {each.cases} uses of the {each.form} FutureMap"
        say(f"{'✗' if bad else '✓'} {equal} are equal to {original.title} {each.version}.")
        if bad:
            say(f"The first difference: {bad[0]}.")
