"""Workloads in which requests follow grammars and have penalties, and who of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from minisched.core import FinishReason
from minisched.loops.registry import LOOPS

from .workloads import VOCAB, Workload, params_with_history, workloads


def regexes(vocab_size: int) -> st.SearchStrategy[str]:
    """Small ones over the first bytes, most of which are long enough to be cut by a length."""
    singles = st.builds(
        lambda low, more: rf"[\x{low:02x}-\x{min(low + more, vocab_size - 1):02x}]",
        st.integers(0, vocab_size - 1),
        st.integers(0, vocab_size // 2),
    )
    return st.recursive(
        singles,
        lambda part: st.one_of(
            st.builds("{}{}".format, part, part),
            st.builds("(?:{}|{})".format, part, part),
            st.builds("(?:{}){}".format, part, st.sampled_from(["*", "+", "{2}", "{1,3}"])),
        ),
        max_leaves=5,
    )


@st.composite
def demanding(
    draw: st.DrawFn,
    like: Callable[..., st.SearchStrategy[Workload]] = workloads,
    **options: Any,
) -> Workload:
    """A workload in which about half follow a regex, and many have penalties, in time or late."""
    workload = draw(like(params=params_with_history, **options))
    for req in workload.requests:
        if draw(st.booleans()):
            req.params = replace(req.params, regex=draw(regexes(VOCAB)))
    workload.config = replace(workload.config, late_penalties=draw(st.booleans()))
    return workload


def without_refused(workload: Workload, loop: str, relay: str) -> Workload:
    """Those that the loop has taken; of the others each was told why, and got nothing."""
    refuses = LOOPS[loop].refusals(relay)
    taken = []
    for req in workload.requests:
        wishes = {"grammar": req.params.has_grammar, "penalties": req.params.has_penalties}
        refused = [feature for feature, wanted in wishes.items() if wanted and feature in refuses]
        if refused:
            assert req.error == f"this loop takes no {refused[0]}: {refuses[refused[0]]}."
            assert req.finish_reason is FinishReason.ERROR and not req.output_ids
        else:
            taken.append(req)
    return replace(workload, requests=taken)
