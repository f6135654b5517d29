"""The set of deliberate mutations: begin with ``mutation.py``; then layer by layer.

Each is a small fault of the engine, most of them like one that a real project has had, with the law
of ``minisched check`` that must see it. What any tool makes of the source by itself is another set:
``minisched bench mutation``.
"""

from __future__ import annotations

from .loops import LOOPS
from .memory import MEMORY
from .mutation import Mutation
from .outside import OUTSIDE
from .scheduling import SCHEDULING
from .steps import STEPS

LAYERS: dict[str, tuple[Mutation, ...]] = {
    "memory": MEMORY,
    "scheduling": SCHEDULING,
    "steps": STEPS,
    "loops": LOOPS,
    "outside": OUTSIDE,
}
"""All of them, by layer: from what requests hold to what their clients hear."""
MUTATIONS = tuple(item for layer in LAYERS.values() for item in layer)
