"""The museum's table: published bugs that this repository puts back, and the test that sees each.

What ``shows`` says of a picture is the whole of its claim: some are runs with the bug in them,
others show the healthy mechanism that the bug breaks.
"""

from __future__ import annotations

from typing import NamedTuple


class Exhibit(NamedTuple):
    """One published bug. ``test`` is a path and a function; ``law`` is what turns red."""

    name: str
    title: str
    published: str
    symptom: str
    here: str
    picture: str
    shows: str
    law: str
    test: str


EXHIBITS = (
    Exhibit(
        "token_pool_at_once",
        "A prompt overwritten by somebody else's last token",
        "mini-sglang #89",
        "A request's tokens change if the request before it, in the same row, stopped early.",
        "Under `--free-rule at_once` a row goes back at the stop, although a step that still "
        "writes to it is on its way. The scheduler's stream copies the next owner's prompt into "
        "the token pool, and the late token lands in it. With one stream this order is harmless.",
        "traces/token_pool_at_once.svg",
        "A run with the bug: the token pool's rows, and the write that comes too late.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_free_rule.py::"
        "test_at_once_lets_a_wasted_row_overwrite_a_prompt_in_the_token_pool",
    ),
    Exhibit(
        "mlx_sketch_idles",
        "An overlap loop that never overlaps",
        "a widely copied sketch of SGLang's `event_loop_overlap_mlx`",
        "The loop is called overlapped, and the device idles whenever the host works.",
        "The sketch finalizes a step before it launches the chained one, so two graphs are never "
        "in flight (`minisched/loops/mlx_sketch.py`). The tokens are right: only the intervals of "
        "a trace show it.",
        "traces/mlx_sketch.svg",
        "A run with the bug, above the loop without it.",
        "it overlaps: how much of the host's work is hidden is read off the trace",
        "tests/test_mlx_sketch.py::"
        "test_it_finalizes_first_so_the_device_idles_whenever_the_host_works",
    ),
    Exhibit(
        "mlx_sketch_old_token",
        "… and its cure by half: a step on a token that is one too old",
        "the same sketch, with the order alone put right",
        "As fast as the real loop, and every request's third token is wrong.",
        "The chained step is launched in time, but nobody hands it the lazy tokens of the step "
        "before, so it runs on the newest token that the host has.",
        "diagrams/mlx_two_graph_chain.svg",
        "A healthy run: each step is built on the lazy tokens of the one before.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_mlx_sketch.py::"
        "test_with_the_order_alone_put_right_it_runs_on_tokens_that_are_one_too_old",
    ),
    Exhibit(
        "ring_lapped",
        "A ring that laps a token nobody has read yet",
        "SGLang #13713, sglang-jax #1487",
        "Accuracy falls under load: GSM8K from 0.955 to 0.700 at concurrency 64 (#1487).",
        "A placeholder may wait while the chunks of a prompt take future slots, and nothing bounds "
        "for how long: three more batches, and its slot holds somebody else's token.",
        "traces/future_map.svg",
        "A healthy run: the ring is lapped every third step, behind its readers.",
        "a token lives for two full batches more, and not for three",
        "tests/test_future_map.py::test_a_placeholder_that_waits_too_long_is_lapped",
    ),
    Exhibit(
        "unresolved_placeholder",
        "A placeholder that reaches the model",
        "vLLM #46899",
        "A stale placeholder id is embedded as if it were a token.",
        "The patch `unresolved_placeholder` does not look up what the future slot holds, so the "
        "model reads token 0.",
        "diagrams/sglang_futuremap_overlap.svg",
        "A healthy run: the id is minus the future slot, and the forward stream looks it up.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_mutations.py::unresolved_placeholder",
    ),
    Exhibit(
        "live_last_chunk_flag",
        "A flag that is read when the result comes back",
        "MindIE-LLM #233",
        "What a prompt's middle chunk samples is delivered as if it were a token of the answer.",
        "The patch `live_last_chunk_flag` decides by what is true now, and not by what was true "
        "when the step was committed; by then the scheduler is a chunk further.",
        "traces/prefill.svg",
        "A healthy run: a long prompt in chunks, each decided when it was committed.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_mutations.py::live_last_chunk_flag",
    ),
    Exhibit(
        "late_token_of_a_retracted_request",
        "A token that comes back after its request was retracted",
        "vLLM #38624",
        "Under memory pressure, a request that was preempted with a step in flight goes wrong.",
        "The patch `late_token_of_a_retracted_request` delivers whatever comes back, although the "
        "request has lost its memory meanwhile and starts again under another lease.",
        "traces/decode.svg",
        "A healthy run: one request is retracted, waits, and starts again.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_mutations.py::late_token_of_a_retracted_request",
    ),
    Exhibit(
        "readmitted_victim",
        "A victim that takes back what was taken from it, for ever",
        "vllm-ascend #16315",
        "Requests are preempted again and again, and nobody gets on.",
        "Whoever is retracted goes to the head of the queue, and its pages come back only with the "
        "steps in flight. Admitted at once, it would take them from the step that starved. (The "
        "test holds the cure; the bug itself is not put back.)",
        "traces/retraction.svg",
        "A healthy run: memory runs out more than once, and the victim waits its turn.",
        "nothing is lost: while a step starves, nobody is admitted",
        "tests/test_retraction.py::test_while_a_step_starves_the_victim_is_not_admitted_again",
    ),
    Exhibit(
        "penalties_one_token_late",
        "Penalties that do not know the last token",
        "vLLM #27878",
        "With overlap, penalties read a history that lacks the newest token, so tokens differ.",
        "`--late-penalties` puts it back: nothing waits, and the tokens differ from a request's "
        "alone.",
        "diagrams/wait_penalties.svg",
        "Two runs: penalties that wait for the token before, and below it the bug.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_penalties.py::test_reading_what_is_there_by_now_is_caught",
    ),
    Exhibit(
        "tensor_let_go_of",
        "An input whose memory is handed out while a kernel reads it",
        "SGLang #18744, #2070",
        "Wrong tokens, now and then, under overlap alone.",
        "With one slot in the record of batches (`minisched/worker/batch_record.py`) the host lets "
        "go of a batch that the forward stream has yet to read, and somebody else writes there.",
        "traces/overlap.svg",
        "A healthy run: two steps in flight, so two batches must stay named.",
        "identity: every loop gives the oracle's tokens",
        "tests/test_batch_record.py::test_one_slot_is_not_enough_for_two_steps_in_flight",
    ),
)
