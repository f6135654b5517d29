"""Lesson 9, who fills in the -1: in the worker's inputs, and in the scheduler's ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import ScheduleBatch
from ...loops.mindie_placeholder import PlaceholderLedger
from ...models.base import ForwardBatch
from ...museum.exhibit import case
from ...relay.placeholder_fill import PLACEHOLDER_TOKEN, FillHost, FillingMasks
from ..exercise import COST, Attempt, Exercise, Function, Workloads
from ..guard import Mistake
from ..runs import VOCAB


def listed(found: Any, name: str, count: int) -> list[Any]:
    """Return the learner's answer, if it is a list of ``count``.

    Raises:
        Mistake: it is not.
    """
    if not isinstance(found, list) or len(found) != count:
        raise Mistake(f"`{name}` gave back {found!r}, but it must be a list of {count}")
    return found


def fill_inputs(
    lines: Any, relay: FillHost, model_inputs: ForwardBatch, tokens: Sequence[int]
) -> None:
    """Let a learner fill the flat ids of a step.

    Raises:
        Mistake: an input is not the token of its row.
    """
    masks, ids = relay.filling_masks, model_inputs.ids
    source = dict(zip(masks.update_indices, masks.hit_indices, strict=True))
    rows = [source.get(at) for at in range(len(ids))]
    found = listed(lines([*ids], rows, [*tokens]), "fill", len(ids))
    if PLACEHOLDER_TOKEN in found:
        raise Mistake(
            f"with ids {ids}, prev_rows {rows} and sampled {[*tokens]}, `fill` gave {found}: a -1 "
            "is left, and the model reads it as a token"
        )
    for at, row in enumerate(rows):
        right = ids[at] if row is None else tokens[row]
        if found[at] != right:
            others = [other for other, token in enumerate(tokens) if token == found[at]]
            got = f"row {others[0]}'s token" if others else f"{found[at]}"
            needs = f"its own id {right}" if row is None else f"row {row}'s token {right}"
            raise Mistake(
                f"with ids {ids}, prev_rows {rows} and sampled {[*tokens]}, `fill` gave {found}: "
                f"input {at} got {got}, but needs {needs}"
            )
    ids[:] = found


def masks_of(lines: Any, batch: ScheduleBatch, last_rids: Sequence[str]) -> FillingMasks:
    """Ask a learner for the row of the last step that each row waits for."""
    known = [None not in ids for ids in batch.ids]
    rows = listed(lines([*batch.rids], known, [*last_rids]), "rows_to_fill", len(known))
    masks, start = FillingMasks([], [], []), 0
    for at, (row, ids) in enumerate(zip(rows, batch.ids, strict=True)):
        if row is not None:
            if row not in range(len(last_rids)):
                raise Mistake(
                    f"`rows_to_fill` names row {row!r} of the last step, which had {len(last_rids)}"
                )
            masks.hit_rows.append(at)
            masks.update_indices.append(start + len(ids) - 1)
            masks.hit_indices.append(row)
        start += len(ids)
    return masks


def put_in_ledger(lines: Any, ledger: PlaceholderLedger, rid: str, token: int) -> None:
    """Let a learner put a token into a sequence's list."""
    ids = ledger.sequences[rid].output_token_ids
    found = lines([*ids], token)
    if not isinstance(found, list):
        raise Mistake(f"`put_token` gave back {found!r}, but it must be a list of tokens")
    ids[:] = found


def ledger_is_true(attempt: Attempt) -> str:
    """The ledger contains the tokens that a request gets, and then placeholders."""
    truths = {req.name: req.output_ids for req in attempt.verdict.workload.requests}
    for mark in attempt.verdict.trace.marks:
        lists = str(mark.attrs["lists"]) if mark.name == "ledger" else ""
        for part in filter(None, lists.split("; ")):
            rid, _, text = part.partition(": ")
            listed = [int(word) for word in text.split()]
            known = [token for token in listed if token != PLACEHOLDER_TOKEN]
            common = min(len(known), len(truths[rid]))  # a request that is given up gets fewer
            is_right = known[:common] == truths[rid][:common] and listed[: len(known)] == known
            if not is_right:
                return (
                    f"after step {mark.attrs['step']} the ledger has {listed} for {rid}, but its "
                    f"tokens are {truths[rid]}"
                )
    return ""


CHUNKED = tuple(
    case(requests, "mindie_plugin:fill_host", kv=64, rows=3, vocab_size=VOCAB, cost=COST,
         chunked_prefill_size=4)
    for requests in ("a: 1 2 3 4 5 6 -> 3", "a: 1 2 3 -> 6; b at 2: 4 5 6 7 8 9 10 11 12 -> 2")
)  # fmt: skip

EXERCISES = (
    Exercise(
        name="fill",
        hole=Function("relay.placeholder_fill:FillHost.fill", call=fill_inputs),
        solution="""
            def fill(ids, prev_rows, sampled):
                filled = list(ids)
                for at, row in enumerate(prev_rows):
                    if row is not None:
                        filled[at] = sampled[row]
                return filled
        """,
        workloads=Workloads("mindie_plugin:fill_host", levels=("stops",)),
        picture="placeholder_fill",
        hints=(
            "`prev_rows` is as long as `ids`. Go through both.",
            "Where the row is None the id is real. Where it is 2, the token is `sampled[2]`.",
        ),
        why=(
            "The step was laid out while its tokens did not exist; which row brings them was known "
            "all along. So the host has one short thing to do once they are there. It is short, "
            "but the device waits for it: filling on the device costs it nothing."
        ),
    ),
    Exercise(
        name="rows_to_fill",
        hole=Function("relay.placeholder_fill:prepare_masks_for_filling", call=masks_of),
        solution="""
            def rows_to_fill(rids, known, last_rids):
                rows = []
                for rid, is_known in zip(rids, known):
                    rows.append(None if is_known else last_rids.index(rid))
                return rows
        """,
        workloads=Workloads("mindie_plugin:fill_host", levels=("tight",), cases=CHUNKED),
        picture="placeholder_fill",
        hints=(
            "Run it, and look at the request with a wrong token. Which tokens did it compute in "
            "the step before?",
            "A prompt in chunks is in two steps in a row, and all of its tokens are known.",
        ),
        why=(
            "Being in the last step does not make a token unknown. A prompt in chunks is in it, "
            "and so is a request that lost its memory and starts again: that is MindIE's #75. "
            "Only the row itself shows that its token is unknown."
        ),
    ),
    Exercise(
        name="put_token",
        hole=Function(
            "loops.mindie_placeholder:PlaceholderLedger.replace_placeholder_with_token",
            call=put_in_ledger,
        ),
        solution="""
            def put_token(output_ids, token):
                at = output_ids.index(-1)
                return [*output_ids[:at], token, *output_ids[at + 1 :]]
        """,
        workloads=Workloads("mindie_dual", levels=("stops",)),
        extra=(ledger_is_true,),
        picture="mindie_placeholder",
        hints=(
            "Two steps can be on their way, so the list may end in two placeholders. Whose token "
            "comes first?",
            "The oldest step comes back first, and its placeholder is the first -1.",
        ),
        why=(
            "Steps come back in the order in which they were launched, so a token belongs to the "
            "oldest placeholder. While -1 stands there, the list is as long as it will be: the "
            "scheduler counts pages and lengths as if the token were known."
        ),
    ),
)  # fmt: skip
