"""Mixed chunks on the overlap loop: those who decode ride in the steps of those who are admitted.

It is the other answer to what ``pd`` is for: a long prompt stops nobody's decoding. Here it comes
in chunks, and every chunk takes the running requests along; there it has a device of its own.
"""

from __future__ import annotations

from ..scheduler.config import ALGORITHMS
from .design import design
from .overlap import overlap

design(
    "mixed",
    follows="SGLang --enable-mixed-chunk, the other answer to what pd is for",
    settings={"enable_mixed_chunk": True, "run_first": "prefill"},
    refuses=dict.fromkeys(
        ALGORITHMS, "SGLang turns mixed chunks off with speculation (server_args.py)"
    ),
)(overlap)
