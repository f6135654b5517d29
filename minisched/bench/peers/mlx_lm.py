# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "mlx[cpu]==0.32.4", "mlx-lm==0.32.2"
# ]
# ///
"""mlx-lm's ``BatchGenerator``, greedy: its environment has mlx-lm and none of our packages."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from .peer import Answer, serve


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load the model in ``folder`` in ``dtype``."""
    load_model = import_module("mlx_lm.utils").load_model
    generator_of = import_module("mlx_lm.generate").BatchGenerator
    model = load_model(Path(settings["folder"]))[0]
    model.set_dtype(getattr(import_module("mlx.core"), settings["dtype"]))

    def measure(question: Answer) -> Answer:
        """Generate; return seconds, CPU seconds, the mean time to a first token, and the tokens."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        first: dict[int, float] = {}
        begin, cpu = time.perf_counter(), time.process_time()
        generator = generator_of(model)  # no stop tokens: each runs to its length
        uids = generator.insert(prompts, [new_tokens] * len(prompts))
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        while responses := generator.next_generated():
            now = time.perf_counter() - begin
            for response in responses:
                first.setdefault(response.uid, now)
                tokens[response.uid].append(int(response.token))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        generator.close()
        outputs = [tokens[uid] for uid in uids]
        if sum(map(len, outputs)) != len(prompts) * new_tokens:
            raise RuntimeError(f"{sum(map(len, outputs))} tokens, not {len(prompts) * new_tokens}")
        ttft = sum(first.values()) / len(first)
        return {"seconds": seconds, "cpu": cpu, "ttft": ttft, "tokens": outputs}

    return measure


if __name__ == "__main__":
    serve(start)
