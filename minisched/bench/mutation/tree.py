"""A copy of the checkout in which mutmut changes the code and runs the tests."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .diff import Mutant, mutants_of
from .sample import LAYERS

ROOT = Path(__file__).resolve().parents[3]
COPIED = ("minisched", "tests", "traces", "pyproject.toml", "README.md")
TESTS = (
    "mutation_suite", "mutation_golden", "test_radix_cache", "test_page_allocator",
    "test_token_pool", "test_prev_sampled", "test_placeholder_fill", "test_lazy_chain",
    "test_schedule_policy", "test_prefill", "test_decode", "test_mixed_chunk", "test_unified",
    "test_retraction", "test_naming", "test_presets", "test_future_map", "test_vllm_step",
    "test_vllm_pp", "test_refused", "test_stale_outputs", "test_mlx_async", "test_engine",
    "test_mindie_placeholder",
)  # fmt: skip
NAMED = (
    "test_overlap.py::test_consecutive_prefills_overlap_unless_the_rule_says_no",
    "test_overlap.py::test_overlap_is_disabled_for_two_reasons_and_no_other",
    "test_logprobs.py::test_a_cached_prefix_ends_where_logits_are_wanted",
    "test_speculation.py::test_a_draft_counts_as_accepted_once_its_request_has_it",
    "test_scheduler.py::test_without_a_tree_nothing_is_protected",
    "test_scheduler.py::test_a_leak_is_named",
    "test_pd.py::test_a_leak_on_either_side_is_found_when_nothing_runs",
    "test_pd.py::test_a_failed_transfer_ends_its_request",
    "test_logprobs.py::test_pd_sends_the_prompts_with_the_kv",
    "test_pd.py::test_both_sides_have_the_relay_that_was_asked_for",
    "test_faults.py::test_a_bad_request_ends_with_its_reason_and_the_others_finish",
    "test_faults.py::test_a_size_below_one_is_refused",
    "test_faults.py::test_a_pool_holds_at_least_one_page",
)
"""The quick ones: on the simulated device, and about the layers that are changed."""
PYTEST = ["-p", "tests.mutation_plugin", "-p", "no:xdist", "-p", "no:cacheprovider",
          "-o", "addopts="]  # fmt: skip
NOTHING = "minisched.nothing"  # no mutant is called so: mutmut gets ready, and stops
LIVED = (0, 5, 33)  # mutmut's exit codes: every test passed, or none reaches the code
TOO_LONG = (24, -24, 36, 152, 255)
UNDECIDED = (None, 2, 34)
POLL_S = 0.5
LAST_WORDS = 40
Report = Callable[[str, int, int | None], None]  # what is being done, how many are, and of how many


class MutationError(RuntimeError):
    """mutmut did not do what it was asked to; the text ends in its own last words."""


def check_mutmut(root: Path = ROOT) -> None:
    """Refuse what can't run.

    Raises:
        ValueError: mutmut is missing, or this is no checkout.
    """
    if importlib.util.find_spec("mutmut") is None:
        raise ValueError("bench mutation needs mutmut: pip install 'minisched[mutation]'.")
    for name in ("tests/mutation_suite.py", "traces"):
        if not (root / name).exists():
            raise ValueError(f"bench mutation runs in a checkout, but {root.name} has no {name}.")


class MutantTree:
    """The copy, in ``folder``; one that a broken-off run left is gone on with."""

    def __init__(self, folder: Path, children: int, root: Path = ROOT) -> None:
        self.folder, self.children = folder, children
        if not (folder / "setup.cfg").exists():
            copy_checkout(root, folder)

    def generate(self) -> list[Mutant]:
        """Make every mutant, and note which tests reach which function.

        Raises:
            MutationError: mutmut could not, or the tests are red without any mutant.
        """
        if not (self.folder / "mutants/mutmut-stats.json").exists():
            self._start(NOTHING).wait()
        if not (self.folder / "mutants/mutmut-stats.json").exists():
            raise MutationError(f"mutmut made no mutants; the last it said: {self._last_words()}")
        mutated = self.folder / "mutants"
        return [
            mutant
            for path in sorted(mutated.glob("minisched/*/*.py.meta"))
            for name in [path.relative_to(mutated).as_posix().removesuffix(".meta")]
            for mutant in mutants_of(name, self.folder / name, mutated / name)
        ]

    def try_all(self, mutants: Sequence[Mutant], report: Report) -> None:
        """Run the tests against each mutant that has no result yet.

        Raises:
            MutationError: mutmut ended before it was through.
        """
        if left := self._undecided(mutants):
            running = self._start(*left)
            try:
                while running.poll() is None:
                    done = len(mutants) - len(self._undecided(mutants))
                    report("trying mutants", done, len(mutants))
                    time.sleep(POLL_S)
            finally:
                running.terminate()
                running.wait()
        if self._undecided(mutants):
            raise MutationError(f"mutmut stopped too early; the last it said: {self._last_words()}")

    def exit_codes(self) -> dict[str, int | None]:
        """mutmut's verdicts by mutant, None for those not tried."""
        codes: dict[str, int | None] = {}
        for path in (self.folder / "mutants").glob("minisched/*/*.py.meta"):
            codes |= read_meta(path)
        return codes

    def _undecided(self, mutants: Sequence[Mutant]) -> list[str]:
        codes = self.exit_codes()
        return [item.name for item in mutants if codes.get(item.name) in UNDECIDED]

    def _start(self, *names: str) -> subprocess.Popen[bytes]:
        mutmut = shutil.which("mutmut", path=str(Path(sys.executable).parent)) or "mutmut"
        command = [mutmut, "run", "--max-children", str(self.children), *names]
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def _last_words(self) -> str:
        lines = (self.folder / "log").read_text("utf-8", "replace").split()
        return " ".join(lines[-LAST_WORDS:])


def read_meta(path: Path) -> dict[str, int | None]:
    """The exit codes that one file's mutants ended with; none while mutmut is writing it."""
    try:
        codes: dict[str, int | None] = json.loads(path.read_text("utf-8"))["exit_code_by_key"]
    except json.JSONDecodeError:
        return {}
    return codes


def copy_checkout(root: Path, folder: Path) -> None:
    """What the tests need, and mutmut's settings."""
    ignore = shutil.ignore_patterns("__pycache__", "*.svg")
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=ignore)
        else:
            shutil.copy(root / name, folder / name)
    (folder / "setup.cfg").write_text(settings(), "utf-8")


def settings() -> str:
    """mutmut's section of ``setup.cfg``: what is changed, and which tests are run.

    mutmut's own limit is far off, as it is one of wall time, and a busy machine would kill mutants
    that live: a test that hangs is ended by ``tests/mutation_plugin.py``, by the processor's time.
    """
    lists = {
        "source_paths": ["minisched"],
        "only_mutate": [f"minisched/{layer}/*.py" for layer in LAYERS],
        "also_copy": ["traces", "README.md"],
        "pytest_add_cli_args": PYTEST,
        "pytest_add_cli_args_test_selection": [
            *(f"tests/{name}.py" for name in TESTS), *(f"tests/{name}" for name in NAMED)
        ],
        "track_dependencies": ["false"],
        "timeout_multiplier": ["15"],
        "timeout_constant": ["4"],
    }  # fmt: skip
    parts = (
        "\n    ".join([f"{key}=", *values]) for key, values in lists.items() if len(values) > 1
    )
    single = (f"{key}={values[0]}" for key, values in lists.items() if len(values) == 1)
    return "\n".join(["[mutmut]", *parts, *single, ""])
