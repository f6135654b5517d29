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
#     title: A queue of batches
#     topics: [vllm_batch_queue, vllm_step, vllm_pp, prev_sampled, request_state, two_batch]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # A queue of batches
#
# **The question.** Your model is too large for one GPU, so it is cut into four **stages**, each on
# a GPU of its own. A token comes out of the last stage, and it is the input of the first. Must
# three GPUs idle while the fourth works? Can four steps be in flight at a time?
#
# **The server.** An answer takes 619 ms (lesson 7), on one GPU.
#
# *A GPU is the **device**, your program the **host** (lesson 1). A **step** computes the next token
# of every request in its **batch**. Here a step goes through the four stages one after the other:
# a **pipeline**.*
#
# The device is simulated. You need Python, half an hour, and three times a few lines.

# %%
from minisched import learn
from minisched.checks.overlap import measure
from minisched.loops.vllm import vllm_batch_queue, vllm_step
from minisched.loops.vllm_async import is_length_foreseen
from minisched.recipes import trace_of
from minisched.relay.prev_sampled import PrevSampled
from minisched.relay.request_state import RequestState

# %% [markdown]
# ## A run
#
# vLLM's plain loop is lesson 1's serial one, in vLLM's names. `sample_tokens` is a call of its own,
# so that the host can do something between the forward pass and the sampling (lesson 10).

# %%
learn.show(vllm_step, "while True", look_at=("sample_tokens", "update_from_output"))

# %% [markdown]
# Now four requests on four stages. A token costs the device 20 ms, 5 in each stage. (In a busy
# server a step's time grows with its tokens: long prompts, large batches. Where it does not, and
# reading the weights takes all the time, cutting a batch in four gains nothing.) At most 4 tokens
# of prompts go into a step, so that each request begins in a batch of its own.
#
# **Predict first.** With one step in flight, what share of the time is a GPU busy? And with a
# queue of four: four times that, or less?

# %% tags=["guess"]
guess = None  # percent of the time that a GPU is busy, with a queue of four

# %%
costs = {"host_ms": 2, "device_ms": 0, "token_ms": 20, "copy_ms": 1, "requests": 4, "chunk": 4}
one = learn.simulate("vllm_pp4:host:depth=1", **costs)
queue = learn.simulate("vllm_pp4", **costs)
learn.table(one, queue)

# %%
flights = {"one step in flight": one, "a queue of four": queue}
busy = {name: measure(run.trace).device_busy_percent for name, run in flights.items()}
learn.bars(busy, "%", guess, "A queue keeps the GPUs busy for three times the share")

# %% [markdown]
# One step in flight keeps a GPU busy for less than a quarter of the time: the others wait for
# their turn, and all four wait for the host. With four it is three quarters, and the run is three
# times as fast. (A pipeline has to be filled first and runs empty at the end; between those they are
# busier, as the picture below shows.) `depth` is how many steps may be launched and not yet processed.
#
# *Device busy* and *device idle* are the mean of the four GPUs. The queue has 48 steps instead of 19,
# because each of its steps has one request. With one step in flight, all four decode in the same step.
#
# ## A picture
#
# Settled steps of the queue. Follow one number down the stages: that is a batch on its way. Follow
# one lane to the right: that is a GPU with always another batch.

# %%
learn.view("vllm_pp", queue)

# %% [markdown]
# ## Exercise 1: how idle is a stage? · hard
#
# `batches` are in flight, each takes `stage_ms` in each of `stages` stages, and then `rest_ms`
# until its next step begins: the copy of the token, and the host. Say which share of the time a
# stage idles, from 0 to 1. The checker holds it against runs, and draws the first that differs.
#
# As it stands it is a rule of thumb: as many batches as stages are enough. Are they? (Stuck?
# `learn.hint("bubble")`, as often as you like.)


# %% tags=["exercise"]
def bubble(batches, stages, stage_ms, rest_ms):
    return 1 - batches / stages


learn.check("bubble", bubble)

# %% [markdown]
# ## Exercise 2: the loop · hard
#
# Write a loop with a queue of `depth` places. The engine is that of lesson 1: `run_batch` launches
# and returns immediately, `process_batch_result` waits for a step's tokens, and `yield` ends a turn.
# `get_next_batch_to_run` gives something false where no request can be scheduled: there is none, or
# each one waits for its own token. (No request is in two batches at a time.) A batch that it gives is
# scheduled: launch it in the same turn.
#
# vLLM's rule: **filling beats harvesting**. As long as there is room and something to launch,
# launch. Only then wait, and for the oldest.


# %% tags=["exercise"]
def batch_queue_loop(engine, depth):
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            engine.process_batch_result(engine.run_batch(batch))
        else:
            engine.on_idle()
        yield


learn.check("batch_queue_loop", batch_queue_loop)

# %% [markdown]
# vLLM's loop. `yield batch` in the middle is the turn that ends early; `WAIT` means that there are
# requests, none of which can be scheduled.

# %%
learn.show(
    vllm_batch_queue,
    "elif batch:",
    "batch_queue.appendleft(deferred)",
    look_at=("# filling", "oldest = batch_queue.pop"),
)

# %% [markdown]
# ## One GPU, two steps of the same request
#
# The same loop serves one GPU. There the two steps in flight are two steps of the *same* requests,
# and the token in between is unknown to the host. vLLM writes -1 in its place and leaves the last
# step's tokens on the device, in `prev_sampled_token_ids`; the next step copies or scatters them
# into its inputs.

# %%
learn.view("prev_sampled", trace_of("prev_sampled"))

# %% [markdown]
# If the rows stayed where they were, that is one copy (`slice`); if they moved, every token needs
# its new place (`scatter`).

# %%
learn.show(PrevSampled._plan, "if not targets", look_at=('"slice"', '"scatter"'))

# %% [markdown]
# vLLM's *model runner v2* (March 2026) needs neither -1 nor a new place. Each request has a slot on
# the device, with its prompt, its number of computed tokens and its last sampled token. The rows of a
# batch move, the slots stay. The host sends only the slot of each row, and the device finds the
# input there.

# %%
learn.view("request_state", trace_of("request_state"))

# %% [markdown]
# A slot is used again without waiting, because one stream has the order: d gets the slot of b. The
# slot must be filled before it is read
# ([#39833](https://github.com/vllm-project/vllm/pull/39833) is what happened otherwise).

# %%
learn.show(RequestState.resolve_future, "# prepare", look_at=("sampled = ",))

# %% [markdown]
# ## Exercise 3: who is left out? · 3 lines
#
# Scheduled ahead of its tokens, a request could be computed past its end. The host cannot foresee a
# stop token, but it can count a *length*. `computed` tokens are computed or in flight,
# `placeholders` of its output tokens are not known yet, and `length` is its prompt and all tokens
# that it may have. Is its last token already on its way, so that the next step must leave it out? (A
# request that was computed past its end is left out as well. With 0 placeholders all tokens are known,
# and at least two are left to compute. You may find that you do not need all three numbers.)


# %% tags=["exercise"]
def ends_in_flight(computed, placeholders, length):
    return False


learn.check("ends_in_flight", ends_in_flight)

# %% [markdown]
# ## The server
#
# An answer still takes 619 ms. One GPU has one stage, and two steps in flight are enough for it. The
# queue is for the day on which the model needs four GPUs.

# %%
learn.rush(8)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: bubble</summary>
#
# `1 - stage_ms / max(stage_ms, (stages * stage_ms + rest_ms) / batches)`. Or count: in one round
# of `stages * stage_ms + rest_ms` a stage works `batches * stage_ms`; the share is `max(0, 1 -
# worked / round)`. Or draw a round on paper and look for the gap. The rule of thumb forgets the
# rest, which is why a fifth batch on four stages helps.
#
# </details>
#
# <details><summary>Exercise 2: batch_queue_loop</summary>
#
# Append, and `if queue and (len(queue) == depth or not batch)` process the oldest. Or two loops,
# one that fills and one that harvests, with a `yield` in each. Or a `deque(maxlen=depth)`, as in
# vLLM, where `None` stands for an empty batch.
#
# </details>
#
# <details><summary>Exercise 3: ends_in_flight</summary>
#
# `computed + 1 >= length`. Or vLLM's line, below. Or let it run and drop the row, as SGLang did up
# to 0.5.21: a row is wasted for every request that ends by length.
#
# </details>

# %%
learn.show(is_length_foreseen, "placeholders = req", look_at=("return",))

# %% [markdown]
# ## In the real systems
#
# - vLLM: [`v1/engine/core.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/core.py),
#   `step_with_batch_queue`. It came for pipelines; since
#   [#27614](https://github.com/vllm-project/vllm/pull/27614) one GPU uses it by default, with two
#   places. Sampling became a call of its own in
#   [#26866](https://github.com/vllm-project/vllm/pull/26866).
# - With async scheduling its newer runner takes one place *more* than there are stages
#   (`max_concurrent_batches`): exercise 1 has the reason.
# - Systems differ on a turn that could end early because the oldest step is done already. It has been
#   changed back and forth ([#23770](https://github.com/vllm-project/vllm/pull/23770)): fill first, or answer first?
# - A queue keeps several batches in flight. *Two-batch overlap* splits one batch: half of it computes
#   while the other half communicates (`minisched view two_batch`, and
#   [when it loses](site/docs/designs.md)).
# - `prev_sampled_token_ids` is in
#   [`v1/worker/gpu_model_runner.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_model_runner.py).
#   Placeholders that outlived a preemption made tokens disappear
#   ([#48245](https://github.com/vllm-project/vllm/pull/48245)): `minisched museum` has such a case.
#
# On your own machine: `minisched compare --loops vllm_step,vllm_batch_queue,vllm_async`. The next
# lesson, [lesson 9](09_placeholders.py), has a -1 in two layers.
