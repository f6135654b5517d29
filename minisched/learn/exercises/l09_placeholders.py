"""Lesson 9, who fills in the -1: in the inputs of the worker."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import FunctionType
from typing import Any

from ...core import ScheduleBatch
from ...models.base import ForwardBatch
from ...museum.exhibit import case
from ...relay.placeholder_fill import (
    PLACEHOLDER_TOKEN,
    FillHost,
    FillingMasks,
    prepare_masks_for_filling,
)
from ..exercise import COST, Exercise, Function, Workloads, is_large
from ..guard import Mistake
from ..runs import VOCAB

# -- What the last steps had, which the package's ``fill`` need not know ---------------------------

_last_rids: dict[int, tuple[str, ...]] = {}  # step -> the requests in the rows of the one before
# The function itself has other code while an exercise is checked.
_masks = FunctionType(prepare_masks_for_filling.__code__, prepare_masks_for_filling.__globals__)


def noting_masks(batch: ScheduleBatch, last_sequence_ids: Sequence[str]) -> FillingMasks:
    """Return the masks, and note the rows of the step before for ``fill_inputs``."""
    _last_rids[batch.step] = tuple(last_sequence_ids)
    masks: FillingMasks = _masks(
        batch, last_sequence_ids
    )  # its own code, which is swapped meanwhile
    return masks


def note_last_rids() -> dict[str, Any]:
    """Return the swap that notes them, from an empty table."""
    _last_rids.clear()
    return {"relay.placeholder_fill:prepare_masks_for_filling": noting_masks}


def fill_inputs(
    lines: Any, relay: FillHost, model_inputs: ForwardBatch, tokens: Sequence[int]
) -> None:
    """Let a learner fill the ids of a step, row by row.

    Raises:
        Mistake: it gives no lists, or an input is not the token of its row.
    """
    masks, flat = relay.filling_masks, model_inputs.ids
    source = dict(zip(masks.hit_rows, masks.hit_indices, strict=True))
    rows, right, start = list[tuple[str, list[int]]](), list[list[int]](), 0
    for at, (rid, length) in enumerate(
        zip(model_inputs.rids, model_inputs.extend_lens, strict=True)
    ):
        ids, start = list(flat[start : start + length]), start + length
        known = ids[:-1] if at in source else ids
        right.append([*known, tokens[source[at]]] if at in source else ids)
        rows.append((rid, [*known, PLACEHOLDER_TOKEN] if at in source else ids))
    last_rids = list(_last_rids[model_inputs.step])
    found = lines([(rid, list(ids)) for rid, ids in rows], list(last_rids), list(tokens))
    asked = f"with rows {rows}, last_rids {last_rids} and sampled {[*tokens]}, `fill` gave"
    if not isinstance(found, list) or len(found) != len(rows):
        raise Mistake(f"{asked} {found!r}, but it must be a list of {len(rows)} lists")
    for at, ((rid, _), own, needed) in enumerate(zip(rows, found, right, strict=True)):
        if list(own) == needed:
            continue
        if PLACEHOLDER_TOKEN in own:
            raise Mistake(
                f"{asked} {found}: a -1 is left in {rid}'s row, and it is read as a token"
            )
        needs = f"row {source[at]}'s token" if at in source else "its own tokens as they are"
        raise Mistake(f"{asked} {found}: {rid} got {list(own)}, but needs {needs}: {needed}")
    flat[:] = [token for ids in found for token in ids]


def rows_of_two_steps(random: Random) -> tuple[list[tuple[str, list[int]]], list[str], list[int]]:
    """Rows move and end; a -1 is the last id of its row, which was in the last step."""
    last_rids = random.sample("abcdef", random.randint(0, 6))
    rows = list[tuple[str, list[int]]]()
    for rid in random.sample("abcdefg", random.randint(0, 6)):
        lacks_token = rid in last_rids and random.random() < 0.7
        most = 40 if is_large(random) else 3
        prompt = [random.randrange(19) for _ in range(random.randint(1, most))]
        known = random.choice(([], [], prompt))
        rows.append((rid, [*known, PLACEHOLDER_TOKEN] if lacks_token else prompt))
    return rows, last_rids, [random.randrange(19) for _ in last_rids]


CHUNKED = tuple(
    case(requests, "mindie_plugin:fill_host", kv=64, rows=3, vocab_size=VOCAB, cost=COST,
         chunked_prefill_size=4)
    for requests in ("a: 1 2 3 4 5 6 -> 3", "a: 1 2 3 -> 6; b at 2: 4 5 6 7 8 9 10 11 12 -> 2")
)  # fmt: skip

EXERCISES = (
    Exercise(
        name="fill",
        hole=Function(
            "relay.placeholder_fill:FillHost.fill", fill_inputs, others=note_last_rids,
            asked=rows_of_two_steps,
        ),
        solution="""
            def fill(rows, last_rids, sampled):
                filled = []
                for rid, ids in rows:
                    if ids[-1] == -1:
                        ids = [*ids[:-1], sampled[last_rids.index(rid)]]
                    filled.append(ids)
                return filled
        """,
        workloads=Workloads(
            "mindie_plugin:fill_host", levels=("stops",), cases=CHUNKED, show=CHUNKED[1]
        ),
        picture="placeholder_fill",
        hints=(
            "Go through the rows of N. Which of them lack a token, and which row of N-1 has it?",
            "`last_rids.index(rid)` is the row of N-1, and `sampled` of that row is the token.",
            "A prompt in chunks is in two steps in a row, and all of its tokens are known. Only a "
            "row with a -1 lacks one.",
        ),
        why=(
            "The row that brings a token was known all along, so the host has one short thing to "
            "do once the tokens are there. A request in the last step need not lack a token: a "
            "prompt in chunks is in it, and so is a request that was retracted and starts again "
            "(MindIE's #75). Only the row itself shows that its token is unknown."
        ),
    ),
)  # fmt: skip
