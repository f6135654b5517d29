"""``python -m tests.mutations``: look for every mutation as ``minisched check --workloads`` does.

Without hints: all cases of the first workloads, one after the other, until one of the mutation's
laws is broken. ``--keep`` writes down where that was, for the test to begin with.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser

from . import LAYERS, MUTATIONS
from .mutation import SEEN_AT, Mutation, look_for, places


def main() -> None:
    """Print a table, and what share of the faults is seen."""
    parser = ArgumentParser("python -m tests.mutations", description=__doc__)
    parser.add_argument("--workloads", type=int, default=150)
    parser.add_argument("--layer", choices=LAYERS)
    parser.add_argument("--only", default="", help="names with this in them")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th from the i-th on")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--keep", action="store_true", help="write seen.json")
    given = parser.parse_args()
    at, step = map(int, given.part.split("/"))
    chosen = [
        item
        for item in (LAYERS[given.layer] if given.layer else MUTATIONS)
        if given.only in item.name and item.device == given.device and not item.equivalent
    ]
    kept = json.loads(SEEN_AT.read_text()) if SEEN_AT.exists() else {}
    faults = seen = 0
    for item in chosen[at::step]:
        line, is_seen = looked_for(item, given.workloads, kept)
        print(line, flush=True)
        faults, seen = faults + 1, seen + is_seen
        if given.keep:
            lines = (f" {json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
            SEEN_AT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{seen} of {faults} faults are seen within {given.workloads} workloads.")


def looked_for(item: Mutation, workloads: int, kept: dict[str, object]) -> tuple[str, bool]:
    """A line of the table."""
    laws = item.laws
    sight = look_for(item, places(range(workloads), item.device))
    others = f" ({', '.join(sight.others)} before)" if sight.others else ""
    kind = " [known miss]" if item.missed else ""
    if not sight.law:
        return f"{item.name}{kind}: not by {', '.join(laws)}; {sight.cases} cases{others}", False
    seed, loop = sight.place
    kept[item.name] = {"law": sight.law, "seed": seed, "loop": loop, "cases": sight.cases}
    return f"{item.name}{kind}: {sight.law}, {seed} {loop}, {sight.cases} cases{others}", True


if __name__ == "__main__":
    main()
