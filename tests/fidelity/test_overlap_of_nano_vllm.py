"""The patch of lesson 14 puts overlap into nano-vllm: same tokens, and steps launched ahead."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minisched.checks.draw import DRAFTERS, Scale, draw
from tests.fidelity.test_recipes import ROOT, SOURCES, patched

LESSON = (ROOT / "lessons/14_into_an_engine.py").read_text("utf-8")
PAGE = (ROOT / "lessons/site/docs/overlap_in_nano_vllm.md").read_text("utf-8")
SCALE = Scale(
    themes=("any",), wishes=("none",), num_requests=(8,), prompt_lens=range(1, 10), page_sizes=(4,),
    answer_lens=range(1, 15), chunks=(2, 4, 16), max_running_requests=range(2, 7),
    spare_pages=range(3, 18), refused_share=0, search_share=0,
)  # fmt: skip
WORKLOADS = [draw(len(DRAFTERS) * n, odd=False, scale=SCALE).workload for n in range(60)]


def patch() -> str:
    """Return the patch as ``git apply`` takes it."""
    (found,) = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def outcomes(source: Path) -> list[dict[str, Any]]:
    """Run the workloads on a checkout, in a process of its own."""
    script = Path(__file__).with_name("run_nano_vllm.py")
    told = [
        (config.max_running_requests, config.chunked_prefill_size, config.num_pages, [
            (list(req.prompt), req.params.max_new_tokens, req.params.ignore_eos)
            for req in workload.requests
        ])
        for workload in WORKLOADS for config in [workload.config]
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), str(source)], input=json.dumps(told),
        capture_output=True, text=True, timeout=300, check=True, encoding="utf-8",
    )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nano-vllm"] if SOURCES else ())
def test_nano_vllm_gives_the_same_tokens_with_the_patch(name: str, tmp_path: Path) -> None:
    serial = outcomes(Path(SOURCES, name))
    overlapped = outcomes(patched(name, patch(), tmp_path))
    assert [it["tokens"] for it in serial] == [it["tokens"] for it in overlapped]
    assert sum(len(it["tokens"]) for it in serial) == 480
    total = {key: sum(it[key] for it in overlapped) for key in ("steps", "ahead", "preempted")}
    assert total["preempted"] > 0 and not any(it["ahead"] for it in serial)
    assert f"{sum(it['steps'] for it in serial):,} steps run, all of them serial" in PAGE
    assert f"{total['steps']:,} steps run, and {total['ahead']:,} of them" in PAGE
    assert "480 requests" in LESSON and "seven of ten steps" in LESSON
