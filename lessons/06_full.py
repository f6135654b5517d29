# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   minisched:
#     title: It is full
#     topics: [retraction, decode]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # It is full
#
# **The question.** Four answers are being written, each a token longer with every step. Then the
# last page of memory is given out, and the next step needs one more. No rule was broken: when the
# requests were let in, the length of their answers was unknown. Is there a way out?
#
# **The server.** An answer takes 751 ms (lesson 5). Admission keeps memory back for running answers.
# How much of it?
#
# *The device keeps keys and values (**KV**) for each token that it has read or written, in **pages**.
# Requests that have read their prompt and now write are in **decode**; each step gives each of them
# one token.*
#
# One of them must release its memory, and start again later. That is a **retraction** (vLLM calls it
# preemption). Its tokens are kept, as its client has received them; but the KV is gone, so prompt and
# answer are computed once more.
#
# ## Predict first
#
# You can be *careful* and let in only requests that you can serve to the end, or *bold* and let all
# four in. Which of the two is done first? Which gives the first token soonest, which the longest pause?
# Careful needs 764 ms for all four. And bold?

# %%
import minisched as ms
from minisched import learn
from minisched.core import Request, SamplingParams
from minisched.memory.free_rules import steps_returned
from minisched.policy import retraction
from minisched.policy.decode import DecodeManager
from minisched.policy.sglang import fewest_outputs

# %% tags=["guess"]
guess = None  # ms until all four are done, when all are let in

# %% [markdown]
# ## A run
#
# Four requests with room for 120 tokens, where all together could need 208. `conservativeness` scales
# how much is kept back for those who run.


# %%
def asked(rid, first, prompt, answer, at_ms):
    params = SamplingParams(max_new_tokens=answer)
    return Request(rid, range(first, first + prompt), params, at_ms * 1_000_000)


four = [asked("abcd"[at], 20 * at, 12, 40, 10 * at) for at in range(4)]
runs, rows, ends = {}, [], {}
for name, conservativeness in {"bold": 0.1, "half-way": 0.5, "careful": 1.0}.items():
    config = {"kv_tokens": 120, "schedule_conservativeness": conservativeness}
    run = runs[name] = ms.run(four, "overlap", config=config)
    marks, ended = run.trace.marks, run.metrics.ended
    ends[name] = run.trace.end / 1e6
    rows.append((
        name,
        str(sum(mark.name == "retraction" for mark in marks)),
        str(sum(mark.attrs["extend_len"] for mark in marks if mark.name == "admit")),
        f"{run.trace.end / 1e6:.0f} ms",
        f"{max(item.ttft_ns for item in ended) / 1e6:.0f} ms",
        f"{max(max(item.itls) for item in ended) / 1e6:.0f} ms",
    ))  # fmt: skip
heads = ("", "retractions", "prompt tokens", "all done", "latest first token", "longest pause")
learn.Table(heads, tuple(rows))

# %%
learn.bars(ends, "ms", guess, "Bold is done first")

# %% [markdown]
# Bold wins on time, although it computes more than twice as many prompt tokens: its steps are
# fuller. It pays with the pauses of two people in the middle of a sentence. Neither is wrong, and
# so SGLang starts somewhere between and *learns*: with each step that goes well it keeps back less,
# and after a retraction more.
#
# ## A picture: memory, and retractions
#
# The bold run. Where memory comes to the top, a request is retracted (the flags). The hatched boxes are
# prompts that are computed again. The *new token ratio* is an estimate that the scheduler adapts: the
# share of an answer's room that it keeps back for each running request.

# %%
learn.view("retraction", runs["bold"])

# %% [markdown]
# The crossed box at a flag is the sore spot: when the victim was chosen, a step with it was
# already **in flight**, launched but not back. It cannot be called back. Its token is dropped (and
# sampled again later, the same), and it writes to pages that are about to change hands. (The box
# without a flag is lesson 1's: b sampled its stop token, and the host saw it a step late.) *Cached*
# slots hold KV for a later request that may come with the same prompt (lesson 5).
#
# ## The lines it is about
#
# At each step the scheduler chooses anew which requests run. A request with all its steps launched
# stays in the set, but is not run. (`device_len` counts a request's tokens, with those of the steps in
# flight; `max_device_len` is how many there may be in the end.)

# %%
learn.show(
    DecodeManager.runnable,
    "overrun, ends_in_flight = self",
    look_at=("if (run_ahead or req.computed_len < req.known_len)",),
)

# %% [markdown]
# Then pages are counted. While some are missing: wait if enough are about to be released, or retract a
# request, and count again. The marked line is exercise 1; `choose_victim` is exercise 2.

# %%
make_room = retraction.Retraction.make_room
learn.show(make_room, "retracted = False", "reqs = [req", look_at=("pages_short",))

# %% [markdown]
# ## Exercise 1: how many pages are missing? · 3 lines
#
# `running` are the requests of the next step. Each has `length` (tokens that must have room then) and
# `num_pages` (pages that it has). A step may add several tokens to a request (lesson 10). A request may
# also have a page too many, which no other request can use. `free` pages are free, of `page_size` tokens
# each. Return how many are missing; 0 or less: none. As it stands, every request needs a page in every
# step. If your answer is too small, the free list is empty when a page is taken (`pop from empty list`).


# %% tags=["exercise"]
def pages_short(running, free, page_size):
    return len(running) - free


learn.check("pages_short", pages_short)

# %% [markdown]
# ## Exercise 2: which request is retracted? · 3 lines
#
# `running` are the decoding requests, in the order in which they began; each has `rid`, `num_outputs`
# (tokens so far) and `prompt_len`. Return the one that loses least: count its outputs alone, not its
# prompt. Among equals, return the one that frees most, and then the one that may wait longest.


# %% tags=["exercise"]
def choose_victim(running):
    return running[0]


learn.check("choose_victim", choose_victim)

# %% [markdown]
# ## Exercise 3: when is its memory free? · 3 lines
#
# Steps are numbered, and come back in order. `launched` is the newest one on its way, `returned` the
# newest one that is back, and `last_step` is the last step that names this request. It has ended, or
# been retracted. May its row and pages be given to another request? A second stream copies that request's
# prompt into the same row (mini-sglang's token pool). As it stands: always. Look at the arrow that the
# checker misses.


# %% tags=["exercise"]
def may_free(last_step, launched, returned):
    return True


learn.check("may_free", may_free)

# %% [markdown]
# The package has three such rules. This one is right for any number of steps in flight and of streams.
# SGLang and vLLM need no such wait: their KV is written on one stream, and the next owner's writes come
# after the late one.

# %%
learn.show(steps_returned)

# %% [markdown]
# ## Exercise 4: an open problem · hard
#
# Here is no formula. `minisched learn score` has a workload *little memory*: sixteen requests of up to 60
# tokens, of which most end early, and memory for four. How many tokens does admission keep back for a
# running request, which has `num_outputs` of at most `max_new_tokens`? As it stands, all that it may still
# generate: 205 points.
#
# The points are 100 times the root of *speed-up × how many times shorter the p99 pause is*, both over
# `serial`. You need 240, at most 5 % more makespan than the package's own lines, and no retraction.
# The same holds on a second workload with short answers.


# %% tags=["exercise"]
def kept(num_outputs, max_new_tokens):
    return max_new_tokens - num_outputs


learn.check("kept", kept)

# %% [markdown]
# ## The server
#
# With a `conservativeness` of 0.3, admission keeps back less for running answers. No request is
# retracted, and an answer takes 640 ms instead of 751 ms.

# %%
learn.rush(6)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: pages_short</summary>
#
# Sum up `max(0, -(-length // page_size) - num_pages)`, and take off `free`. *Another way*: the
# package asks first whether there are as many free pages as requests; then none can lack one,
# and nothing is counted. *A third*: vLLM does not count beforehand. It takes pages one request
# after the other, and retracts when it comes to the end.
#
# </details>
#
# <details><summary>Exercise 2: choose_victim</summary>
#
# `min(reversed(running), key=lambda one: (one.num_outputs, -one.prompt_len))`. *Another way*: vLLM
# and nano-vllm take the newest, which needs no search, and the oldest request is sure to end. *A
# third*: move the KV to the host's memory instead of forgetting it (**swap**), and bring it back
# later, as MindIE can; worth it where a long prompt would have to be computed again.
#
# </details>
#
# <details><summary>Exercise 3: may_free</summary>
#
# `last_step <= returned`. *Another way*: immediately, as SGLang and vLLM do. One stream keeps its
# order; a second stream breaks it. *A third*: mini-sglang once looked at the newest step alone, which is enough for two in flight, and not for
# three.
#
# </details>
#
# <details><summary>Exercise 4: kept</summary>
#
# A third of the remaining tokens has 243 points without a retraction. A fixed number of 10 does as well
# here. It is too much on the second workload, where an answer has at most 8 tokens. Five tokens for each
# request have 245 points, and one request is retracted. *Another way*: SGLang begins
# with a share of 0.7, lowers it with each step, and raises it after a retraction.
#
# </details>

# %%
learn.show(fewest_outputs, "latest = ")

# %% [markdown]
# ## In the real systems
#
# - **SGLang**: `retract_decode` in
#   [`managers/schedule_batch.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/schedule_batch.py).
#   Retracting while output is in flight leaked memory in
#   [#11981](https://github.com/sgl-project/sglang/issues/11981).
# - **vLLM** preempts in
#   [`v1/core/sched/scheduler.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py).
#   How many tokens in flight belong to a life that is over took three tries; the last is
#   [#48245](https://github.com/vllm-project/vllm/pull/48245).
# - **Everybody, one after the other.** If a victim's pages come back late, the next step is short
#   again and takes the next victim, for ever:
#   [vllm-ascend #16315](https://github.com/vllm-project/vllm-ascend/issues/16315). That is why
#   `make_room` first looks at what is on its way back.
#
# On your own machine: `minisched museum` has these bugs, each with its smallest case. The next lesson,
# [lesson 7](07_mixed_or_apart.py), is about the prompt of lesson 4 again.
