"""llama.cpp through llama-cpp-python, whose ``generate`` takes one request after another."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .llama_gguf import TYPES, write_gguf
from .serve import Answer, serve


def start(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Answer]:
    """Convert the model in ``folder`` to ``dtype`` and load it, with so many ``threads``."""
    binding: Any = import_module("llama_cpp")
    kv_type = int(import_module("gguf").GGMLQuantizationType[TYPES[settings["dtype"]]])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        write_gguf(Path(settings["folder"]), file, settings["dtype"])
        llama = binding.Llama(
            str(file), n_ctx=settings["context"], n_batch=512, n_threads=settings["threads"],
            n_threads_batch=settings["threads"], type_k=kv_type, type_v=kv_type, verbose=False,
            use_mmap=False,
        )  # fmt: skip

    def measure(question: dict[str, Any]) -> Answer:
        """Generate; seconds in all, and the mean of the requests' times to their first token."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        firsts = []
        begin = time.perf_counter()
        for prompt in prompts:
            llama.reset()
            tokens = llama.generate(prompt, temp=0.0, repeat_penalty=1.0)
            next(tokens)
            firsts.append(time.perf_counter() - begin)
            for _ in range(new_tokens - 1):
                next(tokens)
        return {"seconds": time.perf_counter() - begin, "ttft": sum(firsts) / len(firsts)}

    return measure


if __name__ == "__main__":
    serve(start)
