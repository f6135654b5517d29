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
#     title: Two lazy graphs
#     topics: [mlx_async, lazy_chain]
#     extras: [lessons, mlx]
#     minutes: 30
# ---

# %% [markdown]
# # Two lazy graphs
#
# **The question.** On a Mac, models run with MLX. Its arrays are **lazy**: `a @ b` computes
# nothing, it only notes what is to be computed (a **graph**), until the numbers are read.
# Lesson 1 had queues to overlap host and device, lesson 2 a buffer for the token that is not
# there yet. Can you do it with lazy arrays alone?
#
# **The server.** An answer takes 1,825 ms (lesson 1), on a GPU with streams.
#
# *Your program (the **host**) hands work over and goes on, and the GPU (the **device**) computes.
# On Linux MLX computes on a thread of the CPU; the idea is the same.*

# %%
from time import perf_counter

import mlx.core as mx

from minisched import learn
from minisched.core import Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.loops.mlx_async import mlx_async as mlx_loop
from minisched.loops.run import run_loop
from minisched.models.registry import open_model
from minisched.scheduler.repeat import can_chain

# %% [markdown]
# ## Predict first
#
# Below, MLX multiplies two matrices. Four lines are timed: build the graph, hand it over, ask for
# the number, ask again. Which one is slow? And which would be, without handing it over?

# %% tags=["guess"]
guess = None  # 1 to 4: the line that is slow

# %% [markdown]
# ## A run
#
# First MLX itself, for real: the times below are from this machine, so they differ from run to
# run. `mx.async_eval` hands a graph over and returns; `item` wants the number, so it waits.

# %%
a = mx.random.normal((512, 512))
mx.eval(a)


def timed(action):
    start = perf_counter()
    action()
    return 1000 * (perf_counter() - start)


lazy = (a @ a).sum()
times = {
    "1 build the graph: a @ a": timed(lambda: a @ a),
    "2 hand it over: mx.async_eval": timed(lambda: mx.async_eval(lazy)),
    "3 want the number: item": timed(lazy.item),
    "4 want it again": timed(lazy.item),
}
learn.bars(times, "ms", row=guess, title="Only the line that wants the number waits")

# %% [markdown]
# Most of the time is in `item`: that is where the host stands still. It would be without
# `async_eval`, too, as `item` hands over whatever is still a graph; but then the device has nothing
# to do until the host asks.
#
# ## Exercise 1: hand over before you read · hard
#
# Write tokens one after the other. `step(y)` builds the graph of the token after `y` (`y` may
# be lazy itself!), which takes the host 1 ms (*prepare* in the picture); `async_eval(y)` hands it
# over; `y.item()` reads it; `host_work(token)` is what the host does with a finished token
# (*process*). As it stands everything is right, and the device idles while the host works. Change
# the order, so that a step is always with the device. Don't hand over more than `count` steps
# (it is at least 1). It is no mistake to build a graph more that is never handed over, or to hand
# the same graph over twice.
#
# The checker runs your lines on a virtual clock, with MLX's calls, and draws what it saw.
# `learn.hint("generate")` helps.


# %% tags=["exercise"]
def generate(step, first, count, async_eval, host_work):
    tokens, y = [], step(first)
    for _ in range(count):
        async_eval(y)
        tokens.append(y.item())
        host_work(tokens[-1])
        y = step(y)
    return tokens


learn.check("generate", generate)

# %% [markdown]
# ## A picture: lazy arrays beside streams
#
# A server does the same with many requests at a time. Above: the loop of lesson 1, with streams and
# a FutureMap. Below: SGLang's loop for MLX (`event_loop_overlap_mlx`), which has neither. (It is
# drawn with the same lanes; only what a step is built on differs.) A settled step takes them
# equally long. The 20 ms more are at the two ends: the first step is read before the chain starts,
# and a thirteenth one is launched before the host sees that the twelfth was the last.

# %%
costs = {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "requests": 2, "new_tokens": 12}
streams, lazy_graphs = learn.simulate("overlap", **costs), learn.simulate("mlx_async", **costs)
learn.table(streams, lazy_graphs)

# %%
learn.timing(streams, lazy_graphs)

# %% [markdown]
# The next picture shows the arrays of tokens, one a step. A striped cell is a step that is built on
# an array without numbers; below it is the time until they are computed. Two graphs are in flight,
# hence the name of this lesson.

# %%
learn.view("lazy_chain", lazy_graphs)

# %% [markdown]
# ## Exercise 2: chain on a lazy token · hard
#
# One turn of that loop. `pending` is the step that the device is running. `engine.chain(batch)`
# takes the same requests once more (or gives None, where that is not possible), and
# `engine.run_batch(batch, previous)` launches a step that is built on the tokens of `previous`.
#
# The lines below were made for this exercise. They have two mistakes, and the first one hides the
# second. Put the order right, run it, and read the verdict. (The second mistake is
# a published one: an excerpt of
# [#22416](https://github.com/sgl-project/sglang/pull/22416) has the right order, and does not hand `previous`
# over.)


# %% tags=["exercise"]
def turn(engine, pending):
    engine.process_batch_result(pending)
    batch = engine.chain(pending.batch)
    following = engine.run_batch(batch) if batch else None
    return following


learn.check("turn", turn)

# %% [markdown]
# The lines of the package: `launch_next` builds the chained step on the lazy tokens of the step in
# flight, and only then the loop waits for that one. (`why_not_chain` names the case in which the
# next step has to wait for these tokens: a grammar has to see them. The last section of this
# lesson explains `chain_extend`.)

# %%
learn.show(
    mlx_loop,
    "if pending_curr is not None",
    "finalize(engine, pending_curr, cache)",
    look_at=("launch_next", "finalize"),
)

# %% [markdown]
# ## Exercise 3: when must the chain break? · 3 lines
#
# In a chain each step has the same requests as the one before, and the scheduler is not asked. That
# can't go on for ever. Before each step the loop asks `may_chain`:
#
# - `batch`: the ids of the requests in the step in flight;
# - `running`: the ids of those that would decode next, if the scheduler were asked now (requests that
#   are in both lists have the same order in both);
# - `waiting`: the ids of those that have come and are in no step yet;
# - `chunked`: the id of a prompt that is half computed, or None;
# - `pages_short`: how many pages of memory are missing for one more token each (0: there is room).
#
# As it stands, the chain never breaks. Too careful is wrong as well: a chain that breaks without a
# reason costs time.


# %% tags=["exercise"]
def may_chain(batch, running, waiting, chunked, pages_short):
    return True


learn.check("may_chain", may_chain)

# %% [markdown]
# The same question in the package.

# %%
learn.show(can_chain, "if scheduler.waiting_queue")

# %% [markdown]
# ## On real lazy arrays
#
# The loop again, not simulated: MLX builds, computes and reads on this machine, and the times are
# measured. The model is an
# exact hash of everything it reads, so one wrong input would change all tokens after it.


# %%
def two_requests():
    return [Request(rid, range(4), SamplingParams(max_new_tokens=12)) for rid in "ab"]


simulated, real = (
    run_loop("mlx_async", open_device(name), open_model("hash", name), two_requests())
    for name in ("sim", "mlx")
)
print("the same tokens:", simulated.outputs == real.outputs)

# %%
learn.timing(real)

# %% [markdown]
# ## The server
#
# An answer still takes 1,825 ms. On a Mac, lazy arrays do the work of the streams.

# %%
learn.rush(3)

# %% [markdown]
# ## In the real systems
#
# - **mlx-lm** does exercise 1:
#   [`generate_step`](https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py) builds
#   the next token and calls `mx.async_eval` on it before it yields the one before.
# - **SGLang** does exercises 2 and 3 in
#   [`hardware_backend/mlx/scheduler_mixin.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/hardware_backend/mlx/scheduler_mixin.py):
#   `event_loop_overlap_mlx` chains on `prev.lazy_tokens`, and breaks the chain as soon as a
#   request waits. A bug to learn from: a chained step skipped the scheduler's state, so no
#   memory was reserved for its token
#   ([#30093](https://github.com/sgl-project/sglang/issues/30093)).
# - **One `async_eval` a step.** With one call for three steps, the first one is ready only
#   together with the third.
# - **When it does not pay.** A step that takes the device almost no time hides none of the host's
#   work; and while the chain is being broken for each request that comes, there is
#   no chain. With many short requests, the picture above would be all gaps. SGLang's loop is
#   like that. The package's has an option: where the chain would break, the next step is scheduled
#   after the one in flight, whatever it is (`mlx_async:chain_extend=true`). Its price and its gain are
#   in `lessons/site/docs/mlx_caches.md`.
#
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: generate</summary>
#
# Hand the first step over before the loop. In the loop: build the next on `y`, hand it over if it is
# wanted, read `y`, work, and let `y` be the next. mlx-lm writes the same as a generator, with the reading after
# a `yield`. Or hand over *two* before you read one: no faster here, and one more step is wasted
# when the text ends.
#
# </details>
#
# <details><summary>Exercise 2: turn</summary>
#
# Chain, launch with `pending`, and only then process `pending`. Instead of handing the step over,
# the relay could remember the last one itself; then no loop can forget it, and two models cannot
# share a relay. Or every row could carry its own lazy token, as MLX's caches do.
#
# </details>
#
# <details><summary>Exercise 3: may_chain</summary>
#
# `not waiting and chunked is None and batch == running and pages_short == 0`. Two other ways: ask
# the scheduler every time, and chain whatever it answers (`chain_extend=true`). Or chain a fixed
# number of steps and look up only then, as multi-step scheduling does (lesson 9): a request that comes
# meanwhile waits.
#
# </details>
#
# **Next:** so far the package has chosen the requests of a batch. From lesson 4 on you choose them.
#
# On your own machine: `minisched compare --loops overlap,mlx_async`, and with a real model
# `minisched compare --device mlx --model smollm2`. Before that, `minisched fetch smollm2` brings the
# weights; only this step needs torch (`pip install 'minisched[torch]'`).
