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
#     title: Filling in the -1
#     topics: [mindie_placeholder, mindie_plugin, mindie_dual, mindie_single, placeholder_fill, multi_step]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # Filling in the -1
#
# **The question.** MindIE, Huawei's engine, is built in two layers: a scheduler in C++ and a worker
# in Python. Both run ahead of a token that does not exist yet, and both write -1 in its place. Which
# of them fills it in, where, and do you need both?
#
# **The server.** An answer takes 619 ms (lesson 7). Would another design be faster?
#
# *The **host** decides and looks at results, the **device** computes (lesson 1). A **step** computes
# one token for each request in it; each has a **row** in the step. A -1 that stands for a token to
# come is a **placeholder**.*
#
# You need Python, half an hour, and some lines.

# %%
from minisched import learn
from minisched.loops.mindie_placeholder import PlaceholderLedger, mindie_single
from minisched.loops.mindie_plugin import PluginManager
from minisched.recipes import trace_of
from minisched.relay.placeholder_fill import FillDevice

# %% [markdown]
# ## A run
#
# Four designs on the same two requests:
#
# - `mindie_placeholder`: the C++ scheduler alone. It may have one call to the worker outstanding.
# - `mindie_dual`: both layers, as MindIE ships. The scheduler still waits for each call, but the
#   worker answers one call *late*: to step N with the tokens of N-1.
# - `mindie_single`: a proposal. One layer, one queue, in place of two.
# - `multi_step`: no placeholder at all. Decide once, run four steps, look only then.
#
# **Predict first.** Host 6 ms, device 10, copy 1. Which of them are no faster than the serial loop,
# and which is the fastest? The serial loop takes 204 ms.

# %% tags=["guess"]
guess = None  # ms that the fastest one takes

# %%
loops = ("serial", "mindie_placeholder", "mindie_dual", "mindie_single", "multi_step")
costs = {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "requests": 2, "new_tokens": 12}
runs = {loop: learn.simulate(loop, **costs) for loop in loops}
learn.table(*runs.values())

# %%
times = {loop: run.trace.end / 1e6 for loop, run in runs.items()}
learn.bars(times, "ms", guess, "A placeholder alone saves no time")

# %% [markdown]
# A placeholder alone buys nothing. With one call outstanding, the scheduler waits for each step, as
# the serial loop does. The late answer makes `mindie_dual` fast. It runs a step more than the serial
# loop: when the last one is launched, the tokens are not counted yet. (So does `multi_step`, for
# another reason, which comes last.)
#
# ## A picture
#
# The scheduler's **ledger** under `mindie_dual`: for each sequence its output tokens, one line for
# everything that happens. A placeholder is added when a step is sent. The first answer is a dummy,
# so its placeholder stays, and from then on the list ends in up to two of them.

# %%
learn.view("mindie_placeholder", learn.simulate("mindie_dual", requests=2, new_tokens=4))

# %% [markdown]
# ## Exercise: fill them in · hard
#
# Step N is laid out while N-1 runs. Now the tokens of N-1 have come.
#
# - `rows` are the rows of N: pairs of a request's id and a list of its input ids, in which a -1 is a
#   placeholder;
# - `last_rids` are the requests in the rows of N-1;
# - `sampled` are their tokens, one for each row of N-1.
#
# Give back a list with a list of ids for each row of N, without placeholders. A row that lacks no token
# may be given back as it is; don't write to `rows`. The checker also gives you long prompts, in chunks
# of 4, and requests that end. As it stands, the model reads -1 as a token.
#
# (Stuck? `learn.hint("fill")`, as often as you like.)


# %% tags=["exercise"]
def fill(rows, last_rids, sampled):
    return [ids for rid, ids in rows]


learn.check("fill", fill)

# %% [markdown]
# Rows move when a request ends, and a prompt that begins interrupts all lines:

# %%
learn.view("placeholder_fill", trace_of("placeholder_fill"))

# %% [markdown]
# One call of the worker: lay N out, wait for N-1's tokens, fill them in, put N into the queue of a
# thread, and only then look at what the tokens mean. The answer is N-1's.

# %%
learn.show(
    PluginManager.generate_token_async,
    "step = self.preprocess",
    "output = self.postprocess",
    look_at=("fill_in_model_result", "self.put(step"),
)

# %% [markdown]
# The other layer fills in, too. A token has come for a sequence, and its list ends in one or two -1: the
# scheduler's ledger replaces the *first* of them, because steps come back in the order in which they
# were launched. It counts before it writes. A token without a placeholder is a bug, and the original
# throws:

# %%
learn.show(PlaceholderLedger.replace_placeholder_with_token, "data = ", look_at=("not 1 <=",))

# %% [markdown]
# The device can do it as well, and then the host needn't wait for the tokens. In MindIE that is an
# experimental path.

# %%
learn.show(FillDevice.resolve_future, "rows = ", look_at=("where",))

# %% [markdown]
# ## Two layers, or one?
#
# Each request is kept twice: the ledger knows nothing of the worker's book, which is one step
# late and counts for itself. `mindie_single` has one ledger. It launches, and then reconciles the
# *oldest* of two steps in flight, which is vLLM's shape (lesson 8). As it counts what is on its way,
# no step is launched past a length.

# %%
learn.timing(runs["mindie_dual"], runs["mindie_single"])

# %%
learn.show(mindie_single, "in_flight.append", "reconcile(engine, ledger", look_at=("DEPTH",))

# %% [markdown]
# ## Or no placeholder: multi-step
#
# vLLM had another answer before: decide once, and let the worker run the same rows four times.
# Nothing is hidden, but the price of a decision is paid once for four tokens. No client gets a token
# before a burst is over: tokens come in bursts, new requests wait, and a request that ends in the
# middle is computed to the end of its burst. (12 tokens are 1 from the prompt and 11 more: three
# bursts of 4, so the last row of each request was wasted.)

# %%
learn.view("multi_step", runs["multi_step"])

# %% [markdown]
# ## The server
#
# An answer still takes 619 ms. The server needs no second layer: its device looks the token up (lesson 2).

# %%
learn.rush(9)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise: fill</summary>
#
# For each row that ends in -1, take the token of the row of N-1 that had the same request:
# `sampled[last_rids.index(rid)]`. A dictionary from id to row does it in one pass, where `index` looks
# through the list again and again. Or ask the lease under which a row runs instead of the id: a request
# that starts again has a new one. Or a `where` over all places together, as the device does. vLLM keeps
# the known tokens and a number of placeholders apart (`num_output_placeholders`): then there is no -1.
#
# </details>
#
# ## In the real systems
#
# - MindIE-LLM's names are kept here: `generate_token_async` and `_fill_in_model_result` in
#   `plugins/plugin_manager.py`, `AddNextTokenPlaceHolder` and `ReplacePlaceHolderWithToken` in
#   `src/scheduler/scheduler.cpp`
#   ([Ascend/MindIE-LLM](https://github.com/Ascend/MindIE-LLM)). The gate of one call is
#   `MAX_ASYNC_SCHEDULE_TIMES`.
# - To fill each row with a request of the last step is a published bug, cured in
#   [212297e](https://github.com/Ascend/MindIE-LLM/commit/212297e): a request that had lost its memory
#   started again while its old row was in the last step.
# - A flag read when the result returns, though the scheduler has moved on since
#   ([90669ea](https://github.com/Ascend/MindIE-LLM/commit/90669ea)): what a result needs is noted at
#   launch.
# - Multi-step came to vLLM with [#7000](https://github.com/vllm-project/vllm/pull/7000) and went with
#   its first engine. It fitted badly with prompts in chunks
#   ([#7528](https://github.com/vllm-project/vllm/pull/7528)).
#
# On your own machine: `minisched compare --loops mindie_placeholder,mindie_dual,mindie_single`. The
# next lesson, [lesson 10](10_must_wait.py), has steps that cannot be launched ahead.
