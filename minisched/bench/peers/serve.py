"""A peer's side: reads one JSON line, measures, answers with one JSON line; then the next.

What runs here has the peer's packages and none of this project's: it imports nothing of the rest
but what needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


def serve(start: Callable[[dict[str, Any]], Callable[[dict[str, Any]], Answer]]) -> None:
    """Start with the first line, whose answer is ``{"ready": true}``; then answer each question.

    What the peer prints itself goes to stderr. An error is an answer too: ``{"error": sentence}``.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library's own prints, those of its C code too, are no answers
    measure = None
    for line in sys.stdin:
        try:
            if measure is None:
                measure = start(json.loads(line))
                answer: Answer = {"ready": True}
            else:
                answer = measure(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
