"""The title, the question and the answer in a sentence of each topic of the gallery."""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """A topic, for a reader who does not know its name yet.

    ``left`` and ``top`` are the corner of the visible part of its picture, in pixels.
    """

    title: str
    question: str
    answer: str
    left: int = 0
    top: int = 64


CARDS = {
    "radix_cache": Card(
        "The radix cache",
        "Two prompts begin alike: must the device compute the beginning twice?",
        "A tree of token prefixes names the pages that hold them; a reading request locks its path.",
        top=505,
    ),
    "page_allocator": Card(
        "Pages and leases",
        "Which request owns the memory, and when may another one have it?",
        "A page is released when no step in flight can touch it, not when its request ends.",
        top=178,
    ),
    "schedule_policy": Card(
        "The waiting queue",
        "Many requests wait: which one is first?",
        "First come, first served is fair; the longest cached prefix first computes fewer tokens.",
    ),
    "prefill": Card(
        "Admission",
        "Which waiting prompts may start now, and how much of each?",
        "Four budgets are counted down, and the first request that does not fit stops the next ones.",
    ),
    "decode": Card(
        "The running set",
        "Which requests run in the next step, and which have left without the device knowing?",
        "Requests join, leave and are retracted; a launched step may still compute a row for them.",
        top=180,
    ),
    "retraction": Card(
        "Retraction",
        "Memory is full while all requests decode: which one is retracted?",
        "One request loses its pages and is recomputed later, so that the others can continue.",
    ),
    "mixed_chunk": Card(
        "Mixed chunks",
        "Can a long prompt be computed without stopping the running requests?",
        "Each step takes a piece of the prompt and one token of every decoding request.",
    ),
    "unified": Card(
        "One budget for all",
        "What if prompts and answers share one budget of tokens?",
        "vLLM's way: running requests take the tokens that they need, waiting ones get the rest.",
    ),
    "future_map": Card(
        "The FutureMap",
        "Which number stands for a token that the host does not know yet?",
        "A negative one: it names the cell on the device that will hold the token in time.",
    ),
    "token_pool": Card(
        "The token pool",
        "Can a step find its input without any placeholder?",
        "Yes: every token has a place by row and position, and the next step reads it there.",
        top=165,
    ),
    "lazy_chain": Card(
        "The lazy chain",
        "Can a step be built on tokens that have not been computed?",
        "With lazy arrays it can: the next graph is built on this one, until the chain breaks.",
    ),
    "placeholder_fill": Card(
        "Filling placeholders",
        "A step was prepared with placeholders: what fills them, and from which row?",
        "The row that a token comes from is known before the token is.",
    ),
    "prev_sampled": Card(
        "Previous-sampled scatter",
        "Must a token leave the device to become the next input?",
        "vLLM keeps the last step's tokens there, and remembers in which row each request was.",
    ),
    "request_state": Card(
        "Slots of requests",
        "Can a request keep its place on the device while the rows of the batch move?",
        "Yes: its state stays in a slot, and the device finds the next input there.",
    ),
    "generation_batch_result": Card(
        "The way to the host",
        "How does a token reach the host while the device goes on?",
        "By a copy on its own stream into a pinned buffer, with an event that marks its end.",
    ),
    "grammar_manager": Card(
        "Grammars",
        "The answer must be JSON: which work has to wait for that?",
        "The allowed tokens depend on the previous token, so sampling waits for it, and only sampling.",
    ),
    "serial": Card(
        "Serial",
        "What does the device do while the host thinks?",
        "Nothing: they take turns, and every step has a bubble as long as the host's work.",
    ),
    "overlap": Card(
        "Overlap (SGLang)",
        "Can the next step be scheduled before this one's tokens are known?",
        "Yes: deciding needs to know that there will be a token, not which one.",
    ),
    "trtllm_overlap": Card(
        "Overlap (TensorRT-LLM)",
        "What does it cost to launch every step in two parts?",
        "The host launches the sampling once the last tokens are there, so copy and sampling are one "
        "chain. Grammars and drafts then need no case of their own.",
    ),
    "beam_search": Card(
        "Beam search: rows that fork",
        "Must the host know which beam goes on before the next step starts?",
        "No: the device chooses the next beams and their KV, and the host follows a step later.",
    ),
    "two_batch": Card(
        "Two-batch overlap (SGLang)",
        "What can the compute units do while a layer's tokens travel to their experts?",
        "Compute the other half of the batch. With few tokens that is slower than one batch.",
    ),
    "overlap_thread": Card(
        "Overlap by a thread",
        "What did SGLang's overlap look like at first?",
        "A second host thread launched what the scheduler put into its queue.",
    ),
    "mini_normal": Card(
        "mini-sglang, in turns",
        "How small can a serial loop be?",
        "Four calls: receive, schedule, run, process.",
    ),
    "mini_overlap": Card(
        "mini-sglang, overlapped",
        "How small can an overlapping loop be?",
        "One variable more: the previous step is processed while the device runs this one.",
    ),
    "mlx_async": Card(
        "Two lazy graphs (MLX)",
        "Can you overlap without streams?",
        "The host builds the next graph before it reads the last one's numbers.",
    ),
    "vllm_step": Card(
        "vLLM, one step",
        "What did vLLM's engine core do before it ran ahead?",
        "Schedule, execute, wait, update: one step at a time.",
    ),
    "vllm_batch_queue": Card(
        "vLLM's batch queue",
        "Can several steps be in flight if no request is in two of them?",
        "A queue of launched batches: fill it first, and only then wait for the oldest.",
    ),
    "vllm_pp": Card(
        "A pipeline",
        "A model is cut over four devices: how many steps keep all of them busy?",
        "As many as there are stages, each with other requests.",
    ),
    "mindie_plugin": Card(
        "MindIE's plugin",
        "A call wants a step's tokens: can it answer with the last one's instead?",
        "It lays out step N, gets the tokens of N-1, fills them in, and puts N into a queue.",
    ),
    "mindie_placeholder": Card(
        "MindIE's placeholders",
        "What does a scheduler write for a token that is in flight?",
        "-1, which counts as a token, so that the next step can be scheduled.",
    ),
    "mindie_dual": Card(
        "MindIE, two layers",
        "What if scheduler and plugin both run a step ahead?",
        "Two pipelines, one on top of the other: the same idea at two layers.",
    ),
    "mindie_single": Card(
        "MindIE, one pipeline",
        "Would one layer do?",
        "A proposal, not shipped: one relay for both layers, and no placeholder for the host to fill.",
    ),
    "multi_step": Card(
        "Multi-step",
        "What if the host schedules only every fourth step?",
        "One decision covers four tokens, and no client receives a token in between.",
    ),
    "pd": Card(
        "Prefill and decode apart",
        "What if prompts are computed on another machine?",
        "No prompt delays an answer any more, but its KV must be transferred.",
    ),
}
