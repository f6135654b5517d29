"""Mixed chunks on the overlap loop: running requests decode in the steps of new prompts.

Like ``pd``, it keeps a long prompt from stopping the decodes. Here the prompt is computed in
chunks, and each chunk's step contains the decodes, too. With ``pd`` it has a device of its own.

With drafts a decode has one token in a mixed step, its last one, and no drafts; in the other steps
it has drafts as usual (SGLang since 0.5.23, for EAGLE and DFLASH; here those that draft on the
device take their place).
"""

from __future__ import annotations

from .design import design
from .overlap import overlap

design(
    "mixed",
    follows="SGLang --enable-mixed-chunk, the other answer to what pd is for",
    settings={"enable_mixed_chunk": True, "run_first": "prefill"},
    refuses={
        "NGRAM": "SGLang turns mixed chunks off with it (speculative/spec_info.py:"
        "supports_mixed_chunk)"
    },
)(overlap)
