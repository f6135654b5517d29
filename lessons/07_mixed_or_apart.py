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
#     title: Mixed chunks, or another machine
#     topics: [mixed_chunk, unified, pd]
#     extras: [lessons]
#     minutes: 35
# ---

# %% [markdown]
# # Mixed chunks, or another machine
#
# **The question.** In lesson 4 a document of 30,000 tokens froze four chats for a second and a
# half, and cutting it into chunks did not help. Two cures are in use. **Mixed chunks**: a request
# that writes gets a row in the step of each chunk. **PD separation** (P for prefill, reading
# prompts; D for decode, writing answers): prompts are read on another machine, and what was read is
# sent over. Which one do you need?
#
# **The server.** An answer takes 640 ms (lesson 6). One of the 25 requests is a document.
#
# *A step is one pass of the model over some tokens. The device keeps keys and values (**KV**) for each
# token that it has read; they are sent.*
#
# ## Predict first
#
# In lesson 4 mixed chunks of 2,048 tokens made the pause 134 ms. How long will it be with a second
# machine: 100 ms, 50, 10? And will the document's own first token come sooner than before?

# %%
import minisched as ms
from minisched import learn
from minisched.core import Request, SamplingParams
from minisched.models.hash import HashModel
from minisched.policy.admission import mix_with_running
from minisched.policy.vllm import UnifiedBudget
from minisched.replay.profiles import find_profile
from minisched.replay.replay import LengthModel, play
from minisched.replay.trace_file import BlockPrompt
from minisched.scheduler import SchedulerConfig

# %% tags=["guess"]
guess = None  # ms in which the chats stand still, with two machines

# %% [markdown]
# ## A run
#
# The four chats and the document, on the same machine as in lesson 4; the last row has two of them,
# and a link of 5 GB a second between.


# %%
def asked(rid, prompt, answer, at_ms=0):
    params = SamplingParams(max_new_tokens=answer, ignore_eos=True)
    return Request(rid, prompt, params, at_ms * 1_000_000)


people = [asked(f"chat{at}", range(20 * at, 20 * at + 20), 60) for at in range(4)]
people.append(asked("document", [at % 251 for at in range(30_000)], 4, 200))
machine, model = find_profile("llama8b-h100"), HashModel(context_len=32_000)
rows, pauses, chunks = [], {}, {"chunked_prefill_size": 2048}
for name, loop in {"chunks": "overlap", "mixed chunks": "mixed", "two machines": "pd"}.items():
    run = ms.run(people, loop, model=model, cost=machine.cost, config=chunks)
    ended = {item.rid: item for item in run.metrics.ended}
    pause = max(max(ended[f"chat{at}"].itls) for at in range(4)) / 1e6
    pauses[name] = pause
    rows.append((name, f"{pause:,.0f} ms", f"{ended['document'].ttft_ns / 1e6:,.0f} ms"))
learn.Table(("", "chats stand still", "document's first token"), tuple(rows))

# %%
learn.bars(pauses, "ms", guess, "The shortest pause needs two machines")

# %% [markdown]
# With two machines the chats do not notice the document at all. The 12 ms are two steps, and they are
# there without it, too: a chat that joins the second machine in the middle of a step sits out the next,
# so its second token is late. The document gains nothing. It is read as before, and then it must be
# sent.
#
# ## A picture: what is in each step
#
# Small again: chunks of 24 tokens, two requests that write, and `long` with 100. The two take their
# token out of each chunk first, so 22 are left for the prompt.

# %%
small = [asked("a", range(10), 14), asked("b", range(20, 34), 12)]
small += [asked("long", range(50, 150), 6, 30), asked("c", range(160, 170), 6, 60)]
config = {"chunked_prefill_size": 24}
mixed = ms.run(small, "mixed", config=config)
learn.view("mixed_chunk", mixed)

# %% [markdown]
# And with two machines. The lanes named *decode* are the second machine: its steps stay as short as
# they are, while the other one reads. The KV goes over the link chunk by chunk; the first token
# comes with the last of it.

# %%
learn.view("pd", ms.run(small, "pd", config=config))

# %% [markdown]
# ## The lines it is about
#
# All of them ride along, or none if memory is too small for all.

# %%
learn.show(mix_with_running, "reaches = ", look_at=("return running if",))

# %% [markdown]
# vLLM has no such function. It has one budget of tokens and asks those who run first; what they leave
# goes to prompts. So its batches are mixed by themselves:

# %%
learn.show(UnifiedBudget.schedule, "decodes, left", "prefill.admit", look_at=("self._running",))

# %% [markdown]
# ## Exercise 1: who rides along? · 3 lines
#
# A chunk is about to run. `prompt_pages` has the pages that each prompt in it still needs,
# `decode_pages` those of each request that writes; `free` pages are free. May all of them ride along?
# As it stands, they never do. (If you answer True too often, a page is taken from an empty list: `pop
# from empty list`.)


# %% tags=["exercise"]
def rides(prompt_pages, decode_pages, free):
    return False


learn.check("rides", rides)

# %% [markdown]
# ## Exercise 2: predict the pause · hard
#
# A step takes `base` ms, and `per_token` ms more for each token in it. `running` chats write when a
# prompt of `prompt` tokens comes, which is longer than a chunk of `chunk` tokens. How long is the
# longest pause of a chat, from one of its tokens to its next, while the prompt is read? (The chats
# joined long before, and the prompt's answer has one token.) In ms, if `how` is `"one piece"`,
# `"chunks"`, `"mixed"` or `"apart"`. The checker holds your formula against runs. Their host and copies
# take next to no time: leave those out.


# %% tags=["exercise"]
def longest_pause(how, prompt, chunk, running, base, per_token):
    return base + per_token * prompt


learn.check("longest_pause", longest_pause)

# %% [markdown]
# ## Exercise 3: how many prompts a second? · 3 lines
#
# Two machines again. Many prompts of `prompt` tokens wait, each a whole number of chunks. The first
# machine reads them in chunks, and the link takes `link` ms for each token. A chunk is sent while
# the next one is read. How many prompts come out a second?


# %% tags=["exercise"]
def prompts_a_second(prompt, chunk, base, per_token, link):
    return 1000 / (base + per_token * prompt + link * prompt)


learn.check("prompts_a_second", prompts_a_second)

# %% [markdown]
# ## A document of 100,000 tokens, and three claims
#
# A guide to chunked prefill has such an office: a document of 100,000 tokens, and 20 short questions.
# With mixed chunks of 2,048, it claims, the others' first token comes after 0.5 s instead of 15,
# throughput is 2 to 3 times as high, and peak memory falls by 60 %. Which of the three do you believe
# now?


# %%
def office(**settings):
    sizes = [("document", 100_000, 1000), *((f"q{n}", 1020, 180 * n) for n in range(20))]
    reqs = [asked(rid, BlockPrompt((number,), size, size), 129, at_ms)
            for number, (rid, size, at_ms) in enumerate(sizes)]  # fmt: skip
    sizes_of_memory = {"kv_tokens": machine.kv_tokens, "page_size": 16, "max_running_requests": 64}
    config = SchedulerConfig(context_len=100_129, **sizes_of_memory, **settings)
    in_time = iter(sorted(reqs, key=lambda req: req.arrival_time))
    return play("overlap", LengthModel(21, 21, 100_129), in_time, config, machine.cost)


whole = office(chunked_prefill_size=-1)
mixed = office(chunked_prefill_size=2048, enable_mixed_chunk=True)
rows = []
for name, run in {"one piece": whole, "mixed chunks": mixed}.items():
    others = [item for item in run.metrics.ended if item.rid != "document"]
    first = sum(item.ttft_ns for item in others) / len(others) / 1e9
    pause = max(max(item.itls) for item in others) / 1e9
    words = (f"{first:.2f} s", f"{run.metrics.throughput:.0f} a second", f"{run.peak_tokens:,}")
    rows.append((name, *words, f"{pause:.2f} s"))
heads = ("", "others' first token, mean", "tokens", "most tokens in a step", "longest pause")
learn.Table(heads, tuple(rows))

# %% [markdown]
# - **First tokens: does not hold.** The document goes on before a new request is let in. The chunk is
#   shared with requests that write already, not with new ones.
# - **Throughput: does not hold.** The same tokens are computed, and each chunk reads the weights
#   once more.
# - **Peak memory: holds.** A step works on 2,048 tokens instead of 100,000, and what it needs for that
#   is in proportion.
#
# The factor of 30 is there all the same: in the pause, which the guide does not mention. [The whole
# case](site/docs/long_document.py) has more machines and more settings.
#
# ## Exercise 4: an open problem · hard
#
# Here is no formula. `minisched learn score` has a workload *many prompts*: thirty requests, one every
# 25 ms, with prompts of 20 to 260 tokens, in the loop `mixed`. How many tokens of prompts may the next
# step take? `running` requests decode, and `waiting` requests have not begun. As it stands, the chunk has
# 256 tokens: 221 points.
#
# The points are 100 times the root of *speed-up × how many times shorter the p99 pause is*, both over
# `serial`. You need 280, and at most 6 % more makespan than with 256. The same holds on a second
# workload: the thirty requests come at the same time.


# %% tags=["exercise"]
def chunk_size(running, waiting):
    return 256


learn.check("chunk_size", chunk_size)

# %% [markdown]
# ## The server
#
# With mixed chunks of 512 tokens, an answer takes 619 ms instead of 640 ms. The longest pause falls
# from 113 ms to 40 ms.

# %%
learn.rush(7)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: rides</summary>
#
# `sum(prompt_pages) + sum(decode_pages) <= free`. *Another way*: take along as many as fit. Then
# some run and some do not, and the scheduler has to remember which were left out. *A third*: vLLM
# turns it round, and lets decodes go first; then the chunk gets the rest.
#
# </details>
#
# <details><summary>Exercise 2: longest_pause</summary>
#
# Add up the steps between two tokens. *Another way*: measure it, with a loop over chunk sizes;
# then you need no formula, and learn what the formula forgets (the host). *A third*: ask for the
# 99th percentile and not the longest, as most dashboards do. With one document in a thousand
# requests it does not show at all.
#
# </details>
#
# <details><summary>Exercise 3: prompts_a_second</summary>
#
# `1000 / max(read, link * prompt)`. *Another way*: send the whole KV after the last chunk; then
# the two times add up for each document, though not for the row of them. *A third*: two prefill
# machines for one that decodes, if reading is the narrow place.
#
# </details>
#
# <details><summary>Exercise 4: chunk_size</summary>
#
# `48 + 8 * waiting` has 283 points: a larger chunk while requests wait. `return 64` has one more, but
# its makespan is much longer on the second workload. *Another way*: choose the chunk so that each step
# takes at most a given time.
#
# </details>
#
# ## In the real systems
#
# - **SGLang**: `--enable-mixed-chunk`, off by default (`mix_with_running` in
#   [`managers/schedule_batch.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/schedule_batch.py));
#   and [`disaggregation/`](https://github.com/sgl-project/sglang/tree/main/python/sglang/srt/disaggregation)
#   for two machines. Its prefill side cuts prompts into chunks, too.
# - **vLLM**: one budget, in
#   [`v1/core/sched/scheduler.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py).
# - **Which one?** Steadiness is what the second machine buys, and it costs a machine. With short
#   prompts it brings nothing. [The comparison](../diagrams/pd_or_mixed.md) shows where it turns.
#
# On your own machine: `minisched compare --loops pd,mixed`. The next lesson, [lesson 8](08_batch_queue.py), goes
# to vLLM: can four steps be in flight?
