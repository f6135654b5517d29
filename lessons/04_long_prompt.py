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
#     title: A prompt of 30,000 tokens stops every chat
#     topics: [prefill, schedule_policy]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # A prompt of 30,000 tokens stops every chat
#
# **The question.** Four people chat with a model, and words come at a steady pace. Then a fifth one
# pastes a document of 30,000 tokens. All four answers stop in the middle of a sentence. Which rule let
# that document in, and how much of it should have been let in?
#
# **The server.** An answer takes 1,825 ms (lesson 1). Only four requests run at a time, because each
# has a place of a fixed size.
#
# *A **token** is a word or a part of one. A request has two halves. In **prefill** the device reads
# all tokens of the prompt, in **decode** it writes the answer, one token a step. It keeps keys and
# values for each token that it has read (**KV**) in memory, so that it need not read it again.*
#
# ## Predict first
#
# Three ways to run this are below: the document in one piece; cut into **chunks** of 2,048 tokens;
# and chunks in which those who decode take part (**mixed**). How long do the four stand still in
# each? One piece takes 1,467 ms. Write your number for mixed chunks below.

# %%
import minisched as ms
from minisched import learn
from minisched.core import Request, SamplingParams
from minisched.models.hash import HashModel
from minisched.policy.sglang import Ratio
from minisched.policy.waiting import lpm
from minisched.replay.profiles import find_profile

# %% tags=["guess"]
guess = None  # ms in which the chats stand still, with mixed chunks

# %% [markdown]
# ## A run
#
# The machine is simulated: Llama 3.1 8B on one H100, worked out from published figures. One more
# request, `late`, comes 100 ms after the document.


# %%
def asked(rid, first, prompt, answer, at_ms=0):
    tokens = [(first + at) % 251 for at in range(prompt)]
    params = SamplingParams(max_new_tokens=answer, ignore_eos=True)
    return Request(rid, tokens, params, at_ms * 1_000_000)


people = [asked(f"chat{at}", 20 * at, 20, 60) for at in range(4)]
people += [asked("document", 100, 30_000, 4, 200), asked("late", 90, 20, 20, 300)]
machine, model = find_profile("llama8b-h100"), HashModel(context_len=32_000)
settings = {
    "one piece": {"chunked_prefill_size": -1},
    "chunks": {"chunked_prefill_size": 2048},
    "mixed chunks": {"chunked_prefill_size": 2048, "enable_mixed_chunk": True},
}
rows, pauses = [], {}
for name, config in settings.items():
    run = ms.run(people, "overlap", model=model, cost=machine.cost, config=config)
    ended = {item.rid: item for item in run.metrics.ended}
    pause = max(max(ended[f"chat{at}"].itls) for at in range(4))
    pauses[name] = pause / 1e6
    firsts = [ended[rid].ttft_ns for rid in ("document", "late")]
    rows.append((name, *(f"{time / 1e6:,.0f} ms" for time in (pause, *firsts))))
learn.Table(("", "chats stand still", "document's first token", "late's first token"), tuple(rows))

# %%
learn.bars(pauses, "ms", guess, "Only mixed chunks make the pause of the chats short")

# %% [markdown]
# Surprised by the second row? Chunks alone do not help here. SGLang runs prompts *first*: while there
# is a chunk to compute, no request decodes, so fifteen short waits follow each other without a gap. (They
# even take longer: each chunk reads the model's weights once more.) Chunks are what makes the third
# row possible, where each chunk takes the four along. Lesson 7 is about that.
#
# And `late` waits in all three: a prompt that has begun goes on before the next one is admitted.
#
# ## A picture: four budgets
#
# **Admission** decides which prompts start now, and how much of them. It counts four numbers, in
# tokens. Below is a run that is small enough to look at, with chunks of 32.

# %%
small = [asked("long", 0, 100, 4), asked("short", 150, 8, 4), asked("next", 200, 20, 4)]
config = {"chunked_prefill_size": 32, "kv_tokens": 132}
learn.view("prefill", ms.run(small, "overlap", config=config))

# %% [markdown]
# - **chunk** (`rem_chunk`): what this step may still compute. A prompt that is longer is **cut**.
# - **input** (`rem_input`): the same, but what is longer is refused. It matters where nothing is cut.
# - **memory now** (`cur_rem`): memory that is free now.
# - **memory later** (`rem_total`): memory that will be free once all running requests have generated
#   their remaining tokens.
#
# The first request that is refused stops all later ones: if short ones slipped past, a long one might
# wait for ever.
#
# ## The lines it is about
#
# So many tokens a request costs of each budget. The marked line reserves its answer, before the
# first word of it is there.

# %%
learn.show(Ratio.charge, "tokens, is_chunked", "cur_rem", look_at=("most = ",))

# %% [markdown]
# ## Exercise 1: cut · 3 lines
#
# `rem_chunk` tokens are left in this step (None: no limit), and a prompt has `extend_len` tokens to
# compute. How many of them now? The next chunk begins where this one ends. Memory comes in **pages** of
# `page_size` tokens, and only a whole page can be shared with another prompt. As it stands, nothing is
# cut.
#
# Your lines run inside the package's scheduler. If a law breaks, the verdict contains the case: the
# turn of the loop in which each request comes, its prompt (tokens are numbers here), and its number of
# new tokens. Stuck? Run `learn.hint("cut")`, more than once.


# %% tags=["exercise"]
def cut(rem_chunk, page_size, extend_len):
    return extend_len


learn.check("cut", cut)

# %% [markdown]
# ## Exercise 2: does it fit? · 3 lines
#
# May this request start? It has `extend_len` tokens to compute and may answer with `new_tokens`
# more. Memory comes in pages of `page_size` tokens. `left` is `rem_total`. As it stands, the prompt alone
# counts: too many requests start, and one of them is thrown out again (a **retraction**), so its work is
# done twice. `left` counts tokens, and the last page of a request is rarely full: keep a page in
# reserve. What a request needs, with that page, is less than `left`, and not equal to it. A rule that
# refuses too much wastes time: the checker compares your makespan with the package's.


# %% tags=["exercise"]
def fits(extend_len, new_tokens, page_size, left):
    return extend_len < left


learn.check("fits", fits)

# %% [markdown]
# ## Exercise 3: who is first? · 3 lines
#
# Some of what waits asks about a document that has just been read, so its KV is still in memory
# (**cached**). But memory is small: other prompts push it out. Of each who waits you know `rid`,
# `prompt_len` and `cached_len` (`one.cached_len`). Give all of them back in an order in which as
# few tokens as possible are computed. Those with as many cached tokens as each other keep their
# order: they stand in `waiting` as they came. As it stands: first come, first served.


# %% tags=["exercise"]
def order(waiting):
    return waiting


learn.check("order", order)

# %% [markdown]
# The package's order, SGLang's `lpm` (longest prefix match). `last` are those who would find more
# if they waited a moment: another one who waits begins with the same tokens.

# %%
learn.show(lpm, "def rank", look_at=("return float",))

# %% [markdown]
# ## Exercise 4: an open problem · hard
#
# Here is no formula. `minisched learn score` has a workload *document*: four chats, and a prompt of 1,600
# tokens that comes between. In the loop `overlap` the chats stand still for 195 ms. Decide before each
# step whether the requests that decode go first: `chunks` steps with prompts have run since the last step
# with decodes, and `running` requests could decode.
#
# The points are 100 times the root of *speed-up × how many times shorter the p99 pause is*, both over
# `serial`. As it stands, prompts always go first: 143 points. You need 400, and at most 5 % more
# makespan. The [leaderboard](leaderboard.md) explains the score.


# %% tags=["exercise"]
def decodes_first(chunks, running):
    return False


learn.check("decodes_first", decodes_first)

# %% [markdown]
# ## The server
#
# Admission now counts tokens, and up to sixteen requests run at a time. An answer takes 1,576 ms
# instead of 1,825 ms.

# %%
learn.rush(4)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: cut</summary>
#
# All of it if there is no limit or it fits, otherwise `rem_chunk // page_size * page_size`. *Another
# way*: mini-sglang cuts anywhere, so the budget is used up, and half a page cannot be shared. *A
# third*: nano-vllm cuts only the first prompt of a batch; any other one that does not fit waits.
#
# </details>
#
# <details><summary>Exercise 2: fits</summary>
#
# `extend_len + new_tokens + page_size < left`. SGLang counts a *share* of the remaining tokens of
# running requests (0.7 at first, less while all goes well), because most stop early. *Another way*:
# mini-sglang counts all of them, and never retracts a request. *A third*: vLLM counts only the tokens
# computed now; the newest request is preempted when memory is short.
#
# </details>
#
# <details><summary>Exercise 3: order</summary>
#
# `sorted(waiting, key=lambda one: -one.cached_len)`. *Almost*: sort by `prompt_len - cached_len`, the
# least work first. It is refused: a short prompt without a cached prefix then goes first and evicts
# the document, so 67 tokens of prompts are computed instead of 50. *Another way*: SGLang's
# `dfs-weight` walks the tree of prefixes (lesson 5), so requests that share a branch run together.
#
# </details>
#
# <details><summary>Exercise 4: decodes_first</summary>
#
# `return chunks >= 1`: chunks and decodes in turn, 418 points. `return True` has 498 points, but the
# document waits until every chat has ended, and the makespan doubles. *Another way*: bound the time that
# a chat waits instead of the number of chunks.
#
# </details>
#
# ## In the real systems
#
# - **SGLang**: `PrefillAdder` in
#   [`managers/schedule_policy.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/schedule_policy.py),
#   with the four numbers under these names. `lpm` falls back to first come, first served when more
#   than 128 wait: matching them all would cost more than it brings.
# - **vLLM** has one budget for prompts and decodes,
#   [`v1/core/sched/scheduler.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/sched/scheduler.py),
#   so its chunks are mixed by themselves.
# - **mini-sglang**:
#   [`scheduler/prefill.py`](https://github.com/sgl-project/mini-sglang/blob/main/python/minisgl/scheduler/prefill.py)
#   fits on one screen; read it next.
#
# On your own machine: `minisched compare --chunk 32 --kv-tokens 132` shows admission at work. The next
# lesson, [lesson 5](05_whose_page.py), opens the memory that was only a number here.
