"""How five designs answer the same questions; in words, from their sources.

The columns are those of ``three_way.COLUMNS``. Numbers in parentheses are issues and pull requests
of the project that heads the column, unless another is named.
"""

from __future__ import annotations

ROWS: dict[str, tuple[str, str, str, str, str]] = {
    "Who schedules, and when": (
        "`EngineCore` fills `batch_queue` before it harvests it: step N+1 is scheduled and "
        "launched, then the host blocks on N.",
        "The scheduler's one thread: schedule and launch N, then process N-1 while N runs.",
        "Two layers. The C++ scheduler has one call outstanding at most; the Python plugin answers "
        "call N with the tokens of N-1, so N+1 is scheduled before N is known.",
        "The scheduler's one thread, as SGLang's; prompts go first.",
        "Nobody, while the chain holds: the same rows are committed once more. A waiting request "
        "or an end breaks it, and the next step is scheduled afresh.",
    ),
    "Depth": (
        "2 on one device with async scheduling, the default (#27614); with pipeline parallelism "
        "one step a stage, or one more. Without async scheduling 1.",
        "2.",
        "2 in Python; the C++ gate (`MAX_ASYNC_SCHEDULE_TIMES`) is 1.",
        "2.",
        "2 lazy graphs.",
    ),
    "Where the unknown token lives": (
        "On the device, in `prev_sampled_token_ids`; the host's copy has -1, and "
        "`num_output_placeholders` counts it.",
        "On the device, in the FutureMap, at the request's row (#25862); before that in a ring, "
        "and the input id was minus its place.",
        "On the device until it is copied; C++ has -1 at the end of the sequence, Python a hole in "
        "`input_ids` under a hit mask.",
        "On the device, in `token_pool[row, position]`.",
        "Nowhere: it is a node of a graph that nobody has evaluated.",
    ),
    "How it is filled in": (
        "When inputs are prepared: one slice if the batch is unchanged, else a scatter; new rows "
        "come from the host.",
        "The forward stream gathers it just before the forward pass.",
        "The host writes it into the inputs and advances positions and lengths; an experimental "
        "path scatters on the device.",
        "The engine's stream gathers it; the order of the streams is all the bookkeeping there is.",
        "It is an argument of the next graph.",
    ),
    "What waits for what": (
        "The host for the oldest step in the queue.",
        "The host for the copy of N-1, when N is launched.",
        "Step N for the tokens of N-1 on the host: the device idles for copy, fill and launch. The "
        "host waits for `launch_done` before it post-processes.",
        "The host for the copy of N-1; the engine's stream for the scheduler's stream, which "
        "uploads prompts.",
        "The host for the tokens of N (`tolist`), when graph N+1 was submitted.",
    ),
    "What a grammar waits for": (
        "Sampling, for the token before: if a structured request has output placeholders, the "
        "step is deferred. Its forward pass is launched, its sampling when the queue has been "
        "harvested and the bitmask built (#26866).",
        "Sampling of N, until N-1 was processed: `delay_sample_func` is what the loop calls last. "
        "The thread version launched it behind `sampling_info_done`.",
        "The forward pass, for the bitmask: `forward_loop` has sampled and read the tokens of N-1, "
        "and builds it before it launches N.",
        "There are no grammars at 20fcd7f.",
        "The whole next step: a batch with a grammar is never chained, so each step is launched "
        "when the token before is on the host and its mask can be built.",
    ),
    "What penalties wait for": (
        "The worker, just before it samples, for the copy of the last step's tokens, which it puts "
        "in the place of -1 (`update_async_output_token_ids`).",
        "Nothing: with overlap they count what is known when a step is prepared, one token late "
        "(`prepare_for_decode`).",
        "Nothing: they are built from a context that is one step behind, so one token late.",
        "There are no penalties.",
        "Nothing: they are ignored, with one warning.",
    ),
    "What speculation waits for": (
        "Nothing, with drafters on the device (EAGLE, MTP, a draft model, `ngram_gpu`): the host "
        "counts every draft as accepted and takes back what was rejected. `ngram` on the host "
        "needs the tokens, and is refused with async scheduling.",
        "Nothing, where the device drafts: lengths and drafts stay there (`new_seq_lens_buf`). "
        "Prompt lookup on the host waits for the tokens (#17260; before, it turned overlap off). "
        "With a grammar, a decode step waits until the one before it was processed.",
        "With MTP the inputs of N for the tokens of N-1, as ever; their number is known only then. "
        "Look-ahead and memory decoding are refused with asynchronous scheduling.",
        "There is no speculation.",
        "It is refused with overlap: it requires synchronous scheduling.",
    ),
    "A length stop": (
        "Foreseen, by counting placeholders: no row is wasted.",
        "Foreseen since 0.5.23 (`enable_skip_finishing_decode`): no row. Up to 0.5.21 seen when "
        "the token is processed: one row.",
        "Seen by post-processing, one step late: one row.",
        "Foreseen, because lengths advance at the launch: no row.",
        "Seen when the token is processed: one row of the chained step.",
    ),
    "A stop token": (
        "One row; its output is dropped.",
        "One row; its slot is freed when its own step is processed.",
        "One row: the round that ends only flags it, the next one drops the row.",
        "One row; at 20fcd7f its token is sent after the end.",
        "One row; the other rows of that step keep their tokens.",
    ),
    "When memory goes back": (
        "At once: whoever gets the blocks writes them on the same stream, so later. With external "
        "readers of KV, behind a fence (#45357).",
        "When the end is processed; a guard keeps the late row from freeing twice (#22416).",
        "One round after the end was flagged; an aborted request waits for its own clear (#42).",
        "When the end is processed; before e7d4f65 not while the running batch named it.",
        "Pages when the end is processed; what the runner keeps, at its next fresh launch.",
    ),
    "Preemption with a step in flight": (
        "Computed goes to 0 and the tokens in flight are counted as stale; each return drains its "
        "share, and nobody resumes before (#48245).",
        "The retracted request's late token is skipped; it waits and computes again.",
        "Recompute or swap; a preempted sequence must leave `last_sequence_ids`, or its row is "
        "filled wrongly (#75).",
        "There is none: the whole output is reserved at admission.",
        "As in SGLang; a waiting request stops the chain first.",
    ),
    "Threads and streams": (
        "The core's thread and the worker; a default stream and a copy stream.",
        "One thread; a forward stream and a copy stream. Before #11210 a second thread launched.",
        "The C++ scheduler's thread, the caller of the plugin, and `forward_loop`'s.",
        "One thread; the scheduler's stream and the engine's.",
        "One thread; MLX evaluates on a stream of its own.",
    ),
    "Bugs that teach it": (
        "a placeholder count below zero (#48245, #57562); a stale -1 that reaches the model "
        "(#46899); penalties that read -1 (#27910)",
        "a ring that laps a token nobody has read (#13713); KV freed twice (#22416); a tensor "
        "freed while another stream reads it (#18958)",
        "a flag read live when the result comes back (#233); two who free the same id (#42)",
        "an abort in flight that frees twice (#111); a pinned buffer rewritten too early (#102)",
        "a chained step that advances no length (sglang #30093)",
    ),
}
