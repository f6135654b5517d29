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
#     title: The token that is not there yet
#     topics: [future_map, token_pool, mini_normal, mini_overlap]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # The token that is not there yet
#
# **The question.** To keep a GPU busy, the host launches step N+1 while step N is still running
# (lesson 1). But the input of step N+1 *is* the token that step N will choose. The host has to
# send numbers, and it has to send them now. Which number stands for an unknown token?
#
# **The server.** An answer takes 1,825 ms (lesson 1). Is each of its tokens the right one?
#
# *Your program (the **host**) puts work into the GPU's queue, and the GPU (the **device**) works
# through it in order. The device has memory of its own. The next step can read the values that one
# step leaves there, without asking the host.*

# %%
from minisched import learn
from minisched.loops.mini import mini_overlap
from minisched.relay import FutureMapPool, FutureMapRing, TokenPool

# %% [markdown]
# ## Predict first
#
# Which number would *you* send instead of the unknown token: zero, the last known token, the request's
# name, an address? Which of them does no real token have? Write your number into the next cell.

# %% tags=["guess"]
guess = None  # the number that you would send

# %% [markdown]
# ## A run
#
# Two requests, overlapped. The table shows the inputs that the host sent for the first steps, and
# the slots for the tokens that each step would choose.

# %%
run = learn.simulate("overlap", requests=2, new_tokens=6)
learn.inputs_sent(run, guess=guess)

# %% [markdown]
# That is the trick. A **negative** number is no token (0 is one): -1 means *"the token is in slot
# 1, look it up when you get there"*. The slots lie in a small buffer in the device's memory, the
# **FutureMap**. By the time the device reads slot 1, the step before has filled it, because the
# queue keeps its order.
#
# ## A picture
#
# Each row is a slot, each column a step. A dark cell is a step that stores a token in the slot. A
# pale cell is a step that reads it, without the host. After the read the slot is **reused** for
# another token (the next dark cell in its row): slots are handed out in turn, round and round.

# %%
learn.view("future_map", run)

# %% [markdown]
# ## Exercise 1: look it up · 3 lines
#
# This is what the device does first in each step. `ids` are the inputs as the host sent them,
# some of them negative; `token_ids_map[s]` is what slot `s` holds. Give back the real tokens. As
# it stands, the placeholder itself reaches the model.


# %% tags=["exercise"]
def resolve(ids, token_ids_map):
    return ids


learn.check("resolve", resolve)

# %% [markdown]
# The package's version does the same without an `if`: a GPU does one thing to all elements
# together, so it looks *every* id up (what is no placeholder reads slot 0) and then picks element by
# element. `xp` is the device's array library.

# %%
learn.show(FutureMapRing.resolve_future, "xp = ", look_at=("where",))

# %% [markdown]
# ## Exercise 2: hand slots out · 3 lines
#
# Each launched step needs a slot for every request in it. `future_ct` counts the slots handed out
# so far in this round; give back the slots (from 1 on: slot 0 would be the token 0) and the new
# counter. The buffer is finite: when the counter has come to `limit`, slots
# begin at 1 again. Only the first slot of a batch must be within the limit: the buffer is longer
# than that, so the slots of one batch may stand in a row. (Starting again a little early, or slot by
# slot, is fine, too.)


# %% tags=["exercise"]
def alloc(future_ct, num_reqs, limit):
    slots = range(future_ct + 1, future_ct + 1 + num_reqs)
    return slots, future_ct + num_reqs


learn.check("alloc", alloc)

# %% [markdown]
# SGLang's way: only the *start* of a batch wraps, so that its slots stand in a row.

# %%
learn.show(FutureMapRing.alloc_future_indices, "start = ", look_at=("% self.future_limit",))

# %% [markdown]
# ## Exercise 3: how large must the ring be? · hard
#
# A slot may be reused only when its token has been read; if it is taken earlier, it is **lapped**,
# and the token is lost. But when will it be read? Long prompts are computed in **chunks**,
# prompts go first, and every chunk takes a slot as well.
# A request with a ready token may have to wait for a whole queue of chunks before its next
# step, while the ring goes on turning.
#
# Say at how many slots the ring may wrap, so that no unread token is ever overwritten, if at most
# `max_running_requests` run at a time, each with at most `context_len` tokens, in chunks of
# `chunk`; and no more than twice what is needed. (You need not count exactly: you may count the
# request itself with those in front of it, and add up to four slots for each. That is never too
# many.) As it stands, this is what SGLang had at
# first ([#10715](https://github.com/sgl-project/sglang/pull/10715), `FutureMap`). Run it, and look at
# what is red: there one request's token is taken by another's. (In the runs `context_len` is 19.)


# %% tags=["exercise"]
def limit(max_running_requests, context_len, chunk):
    return 3 * max_running_requests


learn.check("limit", limit)

# %% [markdown]
# ## The server
#
# An answer still takes 1,825 ms. This lesson protects its tokens: a lapped slot changes a token, and
# no time.

# %%
learn.rush(2)

# %% [markdown]
# ## In the real systems
#
# The bug that you have just seen was met in practice. SGLang made the ring larger
# ([#13713](https://github.com/sgl-project/sglang/pull/13713): `max_running_requests * (3 +
# ceil(context_len / chunk))`). sglang-jax met it later: with many requests at a time, its answers
# to school maths (GSM8K) fell from 95.5 % to 70 % right
# ([#1487](https://github.com/sgl-project/sglang-jax/issues/1487),
# [#1504](https://github.com/sgl-project/sglang-jax/pull/1504)). No crash, no warning: just wrong
# tokens.
#
# Then SGLang dropped the ring ([#25862](https://github.com/sgl-project/sglang/pull/25862)). A
# request has a row in the request table anyway, and the number of the row is its future slot. No
# slot is handed out, so no slot can be lapped. (A token that the host does not know yet is `None`.)

# %%
learn.show(FutureMapPool.bind, "ids = [", "]", look_at=("-row",))

# %% [markdown]
# mini-sglang goes one step further: it keeps *all* tokens on the device, in a **token pool** with a
# row for each request and a slot for each position. The prompt is copied there first; then a step
# reads its input where the step before has written it, and the host never sends a token again.

# %%
learn.show(TokenPool.bind)

# %% [markdown]
# Its loop is the shortest of all. `mini_normal` takes turns, `mini_overlap` keeps one step back; the
# engine around them is the same.

# %%
learn.show(mini_overlap, "while True")

# %% [markdown]
# Other systems have other answers to the same question. Here the same requests run with each of
# them: the same tokens, in nearly the same time (one copies the prompts first).

# %%
relays = ["ring", "pool", "token_pool", "prev_sampled", "request_state", "fill_device"]
runs = [learn.simulate("overlap", requests=2, new_tokens=6, relay=relay) for relay in relays]
learn.table(*runs, names=relays)

# %% [markdown]
# | here | in which system | where the token waits |
# |---|---|---|
# | `ring` | SGLang before #25862, [`managers/overlap_utils.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/overlap_utils.py) | in the next slot of a ring |
# | `pool` | SGLang today, the same file | in the slot of its row |
# | `token_pool` | [mini-sglang](https://github.com/sgl-project/mini-sglang), `scheduler/scheduler.py` | at its position, in a copy of all tokens on the device |
# | `prev_sampled` | [vLLM](https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_model_runner.py), `prev_sampled_token_ids` | in the last step's output; the host writes -1 |
# | `request_state` | vLLM's newer runner, [`v1/worker/gpu/states.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu/states.py) | in the slot of its request; the host writes nothing |
# | `fill_device` | MindIE-LLM, `plugins/plugin_manager.py`, an experimental path | the same, filled in by row |
#
# And exercise 1 as it stood at first is a published bug, too: in [vLLM
# #46899](https://github.com/vllm-project/vllm/pull/46899) stale -1 placeholders (of drafts) reached
# the model.
#
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: resolve</summary>
#
# `[token_ids_map[-token] if token < 0 else token for token in ids]`. Without an `if` it is
# `where(ids < 0, map[clamp(-ids, 0)], ids)`, which a GPU likes better. vLLM keeps -1 for all of
# them and *scatters*: it remembers which rows of the last output belong where, and writes the
# tokens over the -1s before the pass.
#
# </details>
#
# <details><summary>Exercise 2: alloc</summary>
#
# The same slots, and `(future_ct + num_reqs) % limit`. Two other ways: count for ever and take
# `count % limit` when a slot is named; or hand out nothing at all, and let a request's row be its
# slot. The last one is what SGLang does today.
#
# </details>
#
# <details><summary>Exercise 3: limit</summary>
#
# `max_running_requests * (3 + ceil(context_len / chunk))`, as SGLang has it. Tighter: all other
# requests in front, each with all of its chunks, and your own slot, `(m - 1) * ceil((n - 1) / c) +
# 1`. Or make the question go away: use the host's value as soon as it has one,
# and three steps' slots are enough.
#
# </details>
#
# **Next:** [lesson 3](03_lazy_graphs.py) needs no buffer at all. There the token that is not there
# yet is an object of its own.
