"""The second look: what the quick tests did not see is tried with the simulator's other tests.

Those take minutes for one mutant, so only survivors meet them. mutmut left every mutant in one
copy of the code; which of them runs is said in the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .tree import PYTEST, MutationError, Report

CHOICE = "MUTANT_UNDER_TEST"  # mutmut's
HEALTHY = ""
OTHERS = (
    "mlx_jobs", "mlx_sketch", "free_rule", "mindie_single", "mindie_dual", "mindie_plugin",
    "mini_normal", "mini_overlap", "overlap", "overlap_thread", "drafters", "wasted_rows",
    "grammar_manager", "leaks", "batch_record", "waits", "pd", "pd_or_mixed", "laws", "declared",
    "stop_strings", "history_laws", "logprobs", "vllm_batch_queue", "speculation", "faults",
    "waits_in_loops", "multi_step", "scheduler",
)  # fmt: skip
"""``tests/test_NAME.py``; the quickest first, as the first red test ends it."""
LONGEST_S = 1800  # far more than all of them take: beyond it the mutant hangs, and is seen
LAST_WORDS = 300  # characters


def look_again(folder: Path, names: Sequence[str], children: int, report: Report) -> set[str]:
    """Those of the mutants ``names`` that the other tests see.

    Raises:
        MutationError: the tests are red without any mutant.
    """
    if not names:
        return set()
    report("the other tests, without a mutant", 0, None)
    code, words = run_others(folder, HEALTHY)
    if code != 0:
        raise MutationError(f"the other tests are red without a mutant: {words}")
    seen: set[str] = set()
    with ThreadPoolExecutor(children) as pool:
        running = {pool.submit(run_others, folder, name): name for name in names}
        for done, future in enumerate(as_completed(running), 1):
            report("survivors, with the other tests", done, len(names))
            if future.result()[0] != 0:
                seen.add(running[future])
    return seen


def run_others(folder: Path, mutant: str) -> tuple[int, str]:
    """pytest's exit code with one mutant in place of its function, and its last words."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", *PYTEST]
    files = [f"tests/test_{name}.py" for name in OTHERS]
    try:
        ended = subprocess.run(
            [*command, *files], cwd=folder / "mutants", env={**os.environ, CHOICE: mutant},
            capture_output=True, text=True, timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, "out of time"
    return ended.returncode, ended.stdout[-LAST_WORDS:]
