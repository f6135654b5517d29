"""SGLang's own FutureMap plays a ``RelayCase``: the ring of 0.5.3, and the pool-indexed form.

It runs in the environment of ``sglang.py``. The ring's file comes from the wheel of 0.5.3, which is
put next to that environment's packages once, and is loaded alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module, metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..bench.peers.peer import Answer, call, serve
from .future_map import KNOWN, RelayCase
from .sglang import MANAGERS, set_up

RING_VERSION = "0.5.3"


@cache
def ring_class() -> Any:
    """Return ``FutureMap`` of 0.5.3; its file needs only one type that no longer exists."""
    folder, wheel = Path(sys.prefix, f"sglang-{RING_VERSION}"), f"sglang=={RING_VERSION}"
    file = folder / "sglang/srt/managers/overlap_utils.py"
    if not file.exists():
        pip = sys.executable, "-m", "pip", "install", "-q", "--no-deps"
        call(wheel, *pip, "--target", str(folder), wheel)
    batches: Any = import_module(f"{MANAGERS}.schedule_batch")
    batches.ModelWorkerBatch = getattr(batches, "ModelWorkerBatch", object)
    spec = spec_from_file_location("ring", file)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FutureMap


def ring(case: RelayCase) -> list[Answer]:
    """Play a case as the overlap worker of 0.5.3 does."""
    torch: Any = import_module("torch")
    future_map = ring_class()(case.max_running_requests, torch.device("cpu"))
    placeholders: dict[int, int] = {}  # by row, as the scheduler keeps them in ``output_ids``
    found = []
    for step in case.steps:
        count = len(step.rows)
        ids = [
            placeholders[row] if is_unknown else KNOWN
            for row, is_unknown in zip(step.rows, step.unknown, strict=True)
        ]
        current = future_map.update_ct(count)
        futures = future_map.update_next_future(current, count).tolist()
        batch = SimpleNamespace(input_ids=torch.tensor(ids))
        future_map.resolve_future(batch)
        future_map.store_to_map(current, count, torch.tensor(step.tokens))
        placeholders.update(zip(step.rows, futures, strict=True))
        found.append(
            {
                "ids": ids, "slots": [-future for future in futures],
                "inputs": batch.input_ids.tolist(), "counter": future_map.future_ct,
            }
        )  # fmt: skip
    return found


def pool(case: RelayCase) -> list[Answer]:
    """Play a case through ``resolve_forward_inputs`` and ``stash``."""
    torch: Any = import_module("torch")
    relay: Any = import_module(f"{MANAGERS}.overlap_utils")
    none = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.NONE
    table = SimpleNamespace(req_to_token=torch.zeros(case.max_running_requests + 1, 4))
    future_map, found = relay.FutureMap(torch.device("cpu"), none, table), []
    for step in case.steps:
        answer: Answer = {}
        rows, stored = torch.tensor(step.rows, dtype=torch.int64), torch.tensor(step.stored)
        if step.rows:
            batch = SimpleNamespace(
                prefill_input_ids_cpu=torch.tensor(step.prompt) if step.prompt else None,
                mix_running_indices=rows if step.prompt else None, device="cpu",
                enable_overlap=True, spec_algorithm=none, input_ids=None, req_pool_indices=rows,
            )  # fmt: skip
            relay.resolve_forward_inputs(batch, future_map)
            answer["inputs"] = batch.input_ids.tolist()
        future_map.stash(stored, relay.RelayPayload(bonus_tokens=torch.tensor(step.tokens)))
        found.append(answer)
    return found


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import SGLang; the result answers ``{"case"}``, and any other request with the versions."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # the classes run as written
    set_up()
    forms = {"ring": ring, "pool": pool}

    def answer(question: Answer) -> Answer:
        """Run a case of the question, or name the versions."""
        if "case" not in question:
            return {"ring": RING_VERSION, "pool": metadata.version("sglang")}
        case = RelayCase.from_json(question["case"])
        return {"steps": forms[case.form](case)}

    return answer


if __name__ == "__main__":
    serve(start)
