"""One short run for torch's stream sanitizer to watch, in a process of its own.

``TORCH_CUDA_SANITIZER=1 python -m minisched.bench.sanitized FOLDER LOOP``. The sanitizer sees
kernels as they are launched, and nothing of what a graph replays: so this is the model without
graphs (``cuda_graph_max_bs`` 0), on the same streams, events and buffers.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from ..loops.run import run_to_end
from ..models.llama_graphs import LlamaGraphs
from .cuda import CONTEXT_LEN, GpuLoad

LOAD = GpuLoad(rows=4, prompt_len=64, new_tokens=16)


def watched(folder: Path, loop: str, device: str = "cuda") -> int:
    """Run the loop; how many tokens came."""
    model = LlamaGraphs(folder, "bfloat16", context_len=CONTEXT_LEN)
    config = replace(LOAD.config(), cuda_graph_max_bs=0)
    run = run_to_end(loop, device, model, LOAD.requests(), config)
    return sum(len(request.output_ids) for request in run.requests)


if __name__ == "__main__":
    print(watched(Path(sys.argv[1]), sys.argv[2]))
