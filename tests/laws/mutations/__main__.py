"""The set of deliberate mutations, looked for as ``minisched check --workloads`` does.

Each is a small fault of the engine, most of them like one that a real project has had, with the law
that must see it (``*.toml``). ``python -m tests.laws.mutations`` tries all cases of the first
workloads, in order, until one of the mutation's laws is broken. ``--keep`` writes the place into
``seen.json``, for ``tests/laws/test_the_laws_are_loud.py`` to begin with. ``--fresh N`` draws N
other mutations instead, which nobody has chosen (``fresh.py``).
"""

from __future__ import annotations

import json
from argparse import ArgumentParser

from tests.laws.mutations import fresh
from tests.laws.mutations.mutation import MUTATIONS, SEEN_AT, look_for, places

parser = ArgumentParser("python -m tests.laws.mutations", description=__doc__)
parser.add_argument("--workloads", type=int, default=150)
parser.add_argument("--only", default="", help="names with this in them")
parser.add_argument("--device", default="sim")
parser.add_argument("--new", action="store_true", help="only those that are not in seen.json")
parser.add_argument("--keep", action="store_true", help="write seen.json")
parser.add_argument("--fresh", type=int, default=0, help="how many mutations to draw and judge")
parser.add_argument("--seed", type=int, default=0, help="the draw of --fresh")
parser.add_argument("--folder", nargs="*", default=(), help="folders of the package for --fresh")
parser.add_argument("--jobs", type=int, default=1, help="processes of --fresh")
parser.add_argument("--json", action="store_true", help="the result of --fresh as JSON")
given = parser.parse_args()
if given.fresh:
    judged = fresh.run_fresh(given.fresh, given.seed, given.workloads, given.jobs, given.folder)
    print(fresh.as_json(judged) if given.json else fresh.as_table(judged))
    parser.exit()
kept = json.loads(SEEN_AT.read_text("utf-8"))
chosen = [
    item
    for item in MUTATIONS
    if given.only in item.name
    and item.device == given.device
    and not item.equivalent
    and not (given.new and (item.missed or item.name in kept))
]
seen = 0
for item in chosen:
    law, place, cases = look_for(item, places(range(given.workloads), item.device))
    if law:
        seen += 1
        kept[item.name] = {"law": law, "seed": place.seed, "loop": place.loop}
        told = f"{law}, {place.seed} {place.loop}"
    else:
        told = f"not by {', '.join(item.laws)}"
    print(f"{item.name}{' [known miss]' * bool(item.missed)}: {told}; {cases} cases", flush=True)
    if given.keep:
        lines = (f" {json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
        SEEN_AT.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
print(f"{seen} of {len(chosen)} faults are seen within {given.workloads} workloads.")
