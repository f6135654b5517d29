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
#     title: The bubble
#     topics: [serial, overlap, overlap_thread]
#     extras: [lessons]
#     minutes: 35
# ---

# %% [markdown]
# # The bubble
#
# **The question.** A language model writes one token at a time. For each token your program
# decides what runs next, a GPU computes it, and your program looks at the result. While your
# program thinks, what does the expensive GPU do?
#
# **The server.** An answer takes 2,626 ms (lesson 0). Host and device take turns.
#
# *A GPU is a second computer on a card. Your program (the **host**) puts work into its queue and
# moves on; the GPU (the **device**) works through that queue in order. Such a queue is called a
# **stream**. The host waits only where it asks for a result.*
#
# You need no GPU here: the device is simulated and has a clock of its own, so every run gives the
# same numbers.

# %%
from minisched import learn
from minisched.export.notebook import show as step_through
from minisched.loops.overlap import overlap as overlap_loop
from minisched.loops.overlap_thread import overlap_thread as thread_loop
from minisched.loops.serial import serial as serial_loop

# %% [markdown]
# ## Predict first
#
# For each token the host needs 6 ms, the device 10 ms, and the copy back to the host 1 ms. Host and
# device take turns. How many milliseconds pass from one token to the next, and what share of them
# is the device busy? Write the first number into the next cell; the picture has a dashed line there.

# %% tags=["guess"]
guess = None  # ms from one token to the next

# %% [markdown]
# ## A run
#
# Two requests want twelve tokens each. One **step** computes the next token of both. The host works
# before a step (who runs next?) and after it (what does the token mean?).

# %%
costs = {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "requests": 2, "new_tokens": 12}
serial = learn.simulate("serial", **costs)
learn.table(serial)

# %% [markdown]
# Twelve steps in 204 ms: 17 ms a token, and the device is busy for 10 of them.
#
# *Makespan*: from the beginning of the run to its end. *Device idle*: the gaps between the device's
# first and last work. *Same tokens*: as in the first row.
#
# ## A picture
#
# Three steps from the middle of that run. Time goes from left to right. The upper lane is the host,
# the lower lane is the device. A colour is a step: the host *plans* it (schedules and launches it),
# the device *runs* it, and the host *reads* its tokens. The hatched gap is the **bubble**: the device
# has nothing to do, because it waits for the copy of the tokens, and then for the host. (With
# `detail=True` each phase has its box, and the copy has a lane.)

# %% tags=["costs"]
learn.timing(serial, guess_ms=guess)

# %% [markdown]
# Why can't the host simply queue all twelve steps? Because the input of each step is the token
# that the step before has chosen. That is what makes language models different from pictures.
#
# ## The lines
#
# The loop that ran, read from the installed package. The marked line asks for the result, so the
# host stands still, and only after that does it think about the next step.

# %%
learn.show(serial_loop, "while True", look_at=("process_batch_result",))

# %% [markdown]
# ## Exercise 1: let them work at the same time · hard
#
# `run_batch` only queues a step and returns immediately. So the host could launch the next step
# *before* it asks for the result of this one. (The next step needs a token that does not exist
# yet. The engine takes care of that here; the next lesson shows how.)
#
# Below is the serial loop. `recv_requests` takes in the requests that have come, and `on_idle` sleeps
# until the next one comes. `yield` makes it a *generator*: a function that pauses there and goes on
# later. The loop never ends by itself: the engine stops it when all requests are done.
#
# Change it so that a result is processed one turn later, while the device is busy with the next
# step. You need about four lines, and one variable that outlives a turn.
#
# - `engine.get_next_batch_to_run()` gives a batch, or something false if there is nothing to run.
# - Process results in the order in which the steps were launched, each of them once.
# - Two steps in flight are enough. `on_idle` is for turns in which there is nothing else to do.
#
# Your loop is held against the **laws** of `minisched check`, which every loop must keep: right tokens
# (*identity*), an end for every request, no memory lost, no turns without progress (*livelock*), ..
#
# If a law breaks, the verdict names it, with the smallest case that was found: the turn in which each
# request comes, its prompt (tokens are numbers here), its number of new tokens, and the settings, such
# as the memory in tokens (`kv_tokens`) and the requests that run at a time
# (`max_running_requests`). *Is given up* means that the client hung up. Stuck? Run
# `learn.hint("my_loop")` in a cell of your own, as often as you like.


# %% tags=["exercise"]
def my_loop(engine):
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            pending = engine.run_batch(batch)
            engine.process_batch_result(pending)
        else:
            engine.on_idle()
        yield


learn.check("my_loop", my_loop)

# %% [markdown]
# ## The same requests, overlapped
#
# Here is SGLang's loop on the same requests, below the serial one. While the device computes a
# step, the host processes the step before and schedules the one after. The tokens are the same.

# %%
overlapped = learn.simulate("overlap", **costs)
learn.table(serial, overlapped)

# %%
learn.timing(serial, overlapped)

# %% [markdown]
# And the lines that do it. `result_queue` is the variable that outlives a turn; the marked lines
# launch first and process later. The other lines are for special cases.

# %%
learn.show(
    overlap_loop,
    "delay = engine",
    "last_batch = batch",
    look_at=("result_queue.append", "the device runs"),
)

# %% [markdown]
# SGLang's first overlap did the same with a **thread**: one thread scheduled, another one launched
# and waited (`overlap_thread`). Python lets only one thread run at a time, so the threads got in
# each other's way, and one loop replaced both.

# %%
learn.show(thread_loop, "while True", look_at=("the thread launches",))

# %% [markdown]
# Step through both runs, if you like: arrow keys, or drag. The source of each loop is next to it,
# with the line it was at.

# %%
step_through([serial, overlapped], height=1000)

# %% [markdown]
# ## Exercise 2: how long is a step? · hard
#
# How long does it take, on average, from one step to the next in a run that has settled? The host
# needs `host`, the device `device` and the copy `copy` ms a step. `in_flight` is the number of steps that
# may be launched and not yet processed: 1 for the serial loop, 2 for overlap, and 3 for a loop that
# launches one step more ahead. The checker holds your formula against a run for every combination of costs, and draws the first that differs. (It
# draws three steps of that run. Where steps alternate between longer and shorter, their average is
# not quite that of the whole run, which counts.)


# %% tags=["exercise"]
def step_time(host, device, copy, in_flight):
    return host + device + copy


learn.check("step_time", step_time)

# %% [markdown]
# ## When does overlap win, tie and lose?
#
# A request ends with a **stop token**: the model marks its answer as complete. How many times
# faster is overlap, for 12 new tokens and for 3? (The site's lab has sliders.)

# %%
for new_tokens in (12, 3):
    print(f"{new_tokens} new tokens   " + "".join(f"device {d:>2} ms   " for d in (2, 6, 10, 20)))
    for host in (1, 6, 10, 20):
        ratios = []
        for device in (2, 6, 10, 20):
            costs = {"host_ms": host, "device_ms": device, "new_tokens": new_tokens}
            runs = [learn.simulate(loop, requests=1, stop=True, **costs).trace.end
                    for loop in ("serial", "overlap")]  # fmt: skip
            ratios.append(runs[0] / runs[1])
        print(f"host {host:>2} ms      " + "".join(f"{ratio:>7.2f} x      " for ratio in ratios))

# %% [markdown]
# ## Exercise 3: make it lose · 3 lines
#
# Overlap is not free. When it launches a step, it has not seen the token before. If that one is
# the stop token, the step is wasted. Find costs with which overlap takes *longer* than serial, by
# more than 2 %.


# %% tags=["exercise"]
def losing_costs():
    return {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "new_tokens": 12}


learn.check("losing_costs", losing_costs)

# %% [markdown]
# The cause is the stop token, which the host cannot foresee, so it is the same for every loop that
# launches ahead. Where a request ends by its **length**, the host can count: `vllm_async` (vLLM's
# `AsyncScheduler`) does, and so does SGLang's `overlap` in version 0.5.23. In version 0.5.21 it
# still launched that step. (0.5.22 was not read.)

# %%
by_length = {"host_ms": 1, "device_ms": 100, "requests": 1, "new_tokens": 12}
as_of_0_5_21 = "overlap:ring:enable_skip_finishing_decode=false"
loops = ("serial", as_of_0_5_21, "overlap", "vllm_async")
learn.table(*(learn.simulate(loop, **by_length) for loop in loops))

# %% [markdown]
# ## The server
#
# With the overlap loop, an answer takes 1,825 ms instead of 2,626 ms. (Every fourth one must follow a
# rule, and there the loop still waits: lesson 10.)

# %%
learn.rush(1)

# %% [markdown]
# ## In the real systems
#
# | system | takes turns | overlaps |
# |---|---|---|
# | SGLang, [`managers/scheduler.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py) | `event_loop_normal` | `event_loop_overlap`, the default since [#2067](https://github.com/sgl-project/sglang/pull/2067) |
# | vLLM, [`v1/engine/core.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/core.py) | `step` | `step_with_batch_queue`, on one GPU by default since [#27614](https://github.com/vllm-project/vllm/pull/27614) |
# | mini-sglang, [`scheduler/scheduler.py`](https://github.com/sgl-project/mini-sglang/blob/main/python/minisgl/scheduler/scheduler.py) | `normal_loop` | `overlap_loop` |
#
# - **Is the host really that slow?** In [sglang-jax
#   #67](https://github.com/sgl-project/sglang-jax/issues/67) a decode step of a 7B model took 7
#   ms, and scheduling it took 15.
# - **Losing cases are real.** In [sglang #2558](https://github.com/sgl-project/sglang/issues/2558)
#   a user is faster with overlap off. The *first* token comes later, too: the host launches the
#   next step before it looks at it ([#2067](https://github.com/sgl-project/sglang/pull/2067)).
# - **Enabled is not overlapped.** In [vllm-omni
#   #4442](https://github.com/vllm-project/vllm-omni/issues/4442) the option is on and the trace
#   still looks serial. Look at a trace, as you did here.
#
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: the loop</summary>
#
# ```python
# def my_loop(engine):
#     last = None
#     while True:
#         engine.recv_requests()
#         batch = engine.get_next_batch_to_run()
#         pending = engine.run_batch(batch) if batch else None
#         if last:
#             engine.process_batch_result(last)
#         elif not batch:
#             engine.on_idle()
#         last = pending
#         yield
# ```
#
# Two other ways. A `deque` of steps, as SGLang has it: append on launch, `popleft` to process; with
# a longer one there are more steps in flight, which a pipeline of several GPUs needs (lesson 8). Or
# two turns in one: process `last` at the *top* of the next turn, after `run_batch`; the same
# order, written down from another point in the circle.
#
# </details>
#
# <details><summary>Exercise 2: the formula</summary>
#
# `max(host, device, copy, (host + device + copy) / in_flight)`. With one step in flight the last term
# is always the largest; with two it is a token's way round the circle, shared by two. You can also get
# there by drawing: put two tokens on a circle of that length, and let none overtake on a lane. Or by
# measuring, and guessing from the table; the checker does not mind.
#
# </details>
#
# <details><summary>Exercise 3: losing costs</summary>
#
# A slow device, hardly any host, and a short answer: `host_ms=1, device_ms=20, new_tokens=3`. Other
# ways to lose: one token only, where the wasted step is half of all; or a copy as long as the
# device, which delays the stop token further.
#
# </details>
#
# **Next:** the step that you launched early needed a token that was not there yet. Where did it get
# it from? [Lesson 2](02_future_map.py). On your own machine, `minisched compare` draws both loops.
