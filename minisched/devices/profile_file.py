"""A cost profile as a file: what ``minisched calibrate`` writes and ``--profile`` reads.

One JSON object: ``format`` and ``version``; ``name``, ``description``, ``machine`` and ``versions``
for people; ``kv_tokens``, the KV pool of ``replay``; ``cost``, the fields of ``MeasuredCost`` that
are numbers, with ``forward_knots`` as pairs of tokens and nanoseconds; ``pace``, those of ``Pace``;
and ``loops``, for each loop the four tables of ``HostCost``. All times are integers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ..trace.files import read_text
from .cost import Pace
from .measured_cost import HostCost, MeasuredCost
from .profiles import Profile

FORMAT, VERSION = "minisched cost profile", 1
COSTS = (
    "sample", "sample_per_row", "copy", "forward_per_row", "kv_read_ps", "attention_ps", "pad_to",
    "added_work",
)  # fmt: skip


def as_json(profile: Profile, cost: MeasuredCost, about: Mapping[str, Any]) -> dict[str, Any]:
    """The object; ``about`` is what else people want to know of it."""
    costs: dict[str, Any] = {name: getattr(cost, name) for name in COSTS}
    costs["forward_knots"] = [list(knot) for knot in cost.forward_knots]
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": profile.name,
        "description": profile.description,
        **about,
        "kv_tokens": profile.kv_tokens,
        "cost": costs,
        "pace": asdict(cost.pace),
        "loops": {loop: asdict(side) for loop, side in cost.loops.items()},
    }


def read_profile(file: Path) -> Profile:
    """The profile in a file.

    Raises:
        ValueError: it can't be read, or is none.
    """
    try:
        found = json.loads(read_text(file))
    except OSError as error:
        raise ValueError(f"--profile {file} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise ValueError(f"--profile {file} is not JSON: {error}.") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"--profile {file} is no cost profile; minisched calibrate writes one.")
    if found.get("version") != VERSION:
        raise ValueError(
            f"--profile {file} has version {found.get('version')}, but only {VERSION} is known."
        )
    try:
        return from_json(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"--profile {file} is no complete cost profile: {error!r}.") from error


def from_json(found: Mapping[str, Any]) -> Profile:
    """The profile that an object describes.

    Raises:
        KeyError, TypeError, ValueError: something is missing, or is no number.
    """
    costs: dict[str, Any] = {name: whole(found["cost"][name]) for name in COSTS}
    knots = tuple((whole(at), whole(cost)) for at, cost in found["cost"]["forward_knots"])
    tokens = [at for at, _ in knots]
    if tokens != sorted(set(tokens)) or costs["pad_to"] < 1:
        raise ValueError("forward_knots must ascend in tokens, and pad_to must be at least 1")
    pace = Pace(**{item.name: table_or_number(found["pace"][item.name]) for item in fields(Pace)})
    loops = {
        loop: HostCost(**{name: table(costs) for name, costs in side.items()})
        for loop, side in found["loops"].items()
    }
    cost = replace(MeasuredCost(**costs), forward_knots=knots, pace=pace, loops=loops)
    return Profile(found["name"], found["description"], cost, whole(found["kv_tokens"]))


def table_or_number(found: Any) -> Any:
    """A table of nanoseconds, or one number."""
    return table(found) if isinstance(found, dict) else whole(found)


def table(found: Mapping[str, Any]) -> dict[str, int]:
    """Nanoseconds by name."""
    return {str(name): whole(cost) for name, cost in found.items()}


def whole(number: Any) -> int:
    """A whole number from 0 on.

    Raises:
        ValueError: it is something else.
    """
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no whole number from 0 on")
    return number
