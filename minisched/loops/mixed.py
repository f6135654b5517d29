"""Mixed chunks on the overlap loop: running requests decode in the steps of new prompts.

Like ``pd``, it keeps a long prompt from stopping the decodes. Here the prompt is computed in
chunks, and each chunk's step contains the decodes, too. With ``pd`` it has a device of its own.
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
