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
#     topics: [serial, overlap]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # The bubble
#
# **The question.** A language model writes one token at a time. For each token your program
# decides what runs next, a GPU computes it, and your program looks at the result. What does the
# expensive GPU do while your program thinks?
#
# *A GPU is a second computer on a card: your program (the **host**) puts work into its queue and
# goes on, and the GPU (the **device**) works the queue off in order. Such a queue is called a
# **stream**; the host waits only where it asks for a result.*
#
# You need no GPU here: the device is simulated and has a clock of its own, so every run gives the
# same numbers.

# %%
from minisched import learn
from minisched.export.notebook import show as step_through
from minisched.loops.overlap import overlap as overlap_loop
from minisched.loops.serial import serial as serial_loop

# %% [markdown]
# ## A run
#
# Two requests want some tokens. One **step** computes the next token of both. The host works
# before a step (who runs next?) and behind it (what does the token mean?), the device computes in
# between, and a short copy brings the tokens back to the host. (Deciding is the small part:
# measured with 256 requests 13 %, laying out inputs 32 %.) The costs are in milliseconds a step:

# %%
costs = {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "requests": 2, "new_tokens": 12}
serial = learn.simulate("serial", **costs)
learn.table(serial)

# %% [markdown]
# *Makespan*: from the beginning of the run to its end. *Device idle*: the device's gaps between its
# first and its last work; what lies before and behind is left out. *Same tokens*: as in the first
# row.
#
# ## A picture
#
# Three steps from the middle of that run. Time goes from left to right; the host has the two
# upper lanes, the device the two lower ones. The hatched gap is the **bubble**: the device has
# nothing to do, because it waits for the copy, and then for the host.

# %%
learn.timing(serial)

# %% [markdown]
# The number in a box is its step. A *decode* step computes one token for each request; the first
# step reads the prompts. *Hash model on sim*: the device is simulated, and the "model" is an exact
# hash of all tokens before, so that one wrong input shows.
#
# ## The lines it is about
#
# The loop that ran, read from the installed package. Look at the marked line: it asks for the
# result, so the host stands still, and only after that it thinks about the next step.

# %%
learn.show(serial_loop, "while True", look_at=("process_batch_result",))

# %% [markdown]
# ## Exercise 1: let them work at the same time
#
# `run_batch` only queues a step and returns at once. So the host could launch the next step
# *before* it asks for the result of this one. (The next step needs a token that does not exist
# yet; the engine takes care of that here, and the next lesson shows how.)
#
# Below is the serial loop: `recv_requests` takes in who has come, `on_idle` sleeps until somebody
# comes, and `yield` ends a turn, so that the checker can look. Change it so that a result is
# processed one turn later, while the device is busy with the step behind it. Four lines or so, and
# one variable that outlives a turn.
#
# - `engine.get_next_batch_to_run()` gives a batch, or something false if there is nothing to run.
# - Process results in the order in which the steps were launched, and each of them once.
# - A loop that launches early may launch one step too many (behind a stop token, which nobody knows
#   before); its result must be processed, too.
# - Two steps in flight are enough. `on_idle` is for turns in which there is nothing else to do.
# - Stuck? `last = None` above the `while` is a good start.


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


learn.check_loop(my_loop)

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
# launch first and process later. Around them stands what only special cases need.

# %%
learn.show(
    overlap_loop,
    "delay = engine",
    "last_batch = batch",
    look_at=("result_queue.append", "the device runs"),
)

# %% [markdown]
# Step through both runs, if you like: arrow keys, or drag. The source of each loop is beside it,
# with the line at which it was.

# %%
step_through([serial, overlapped], height=1000)

# %% [markdown]
# ## Exercise 2: how long is a step?
#
# Say how long it takes, on average, from one step to the next, in a run that has settled, when
# the host needs `host`, the device `device` and the copy `copy` ms a step. `in_flight` is 1 for
# the serial loop and 2 for overlap: how many steps may be launched and not yet processed. The
# checker holds your formula against a run for every combination of costs, and draws the first
# that differs.
#
# *Hint for two in flight: who is busiest (the copy has a lane, too)? And how long does one token
# travel around the whole circle (device, copy, host), if two of them travel at a time?*


# %% tags=["exercise"]
def step_time(host, device, copy, in_flight):
    return host + device + copy


learn.check_step_time(step_time)

# %% [markdown]
# ## When does overlap win, tie and lose?
#
# A request ends with a **stop token**: the model says that its answer is complete. How many times
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
# ## Exercise 3: make it lose
#
# Overlap is not free. When it launches a step, it has not seen the token before: if that one is
# the stop token, the step is wasted (outlined in the picture). Find costs with which overlap takes
# *longer* than serial, by more than 2 %.

# %% tags=["exercise"]
learn.check_losing_case(host_ms=6, device_ms=10, copy_ms=1, new_tokens=12)

# %% [markdown]
# A step behind a stop token is lost in every loop that launches ahead. Where a request ends by its
# **length**, the host can count: `vllm_async` (vLLM's `AsyncScheduler`) does, and so does SGLang's
# `overlap` (`event_loop_overlap`) since 0.5.23. Up to 0.5.21 it launched that step all the same.

# %%
by_length = {"host_ms": 1, "device_ms": 100, "requests": 1, "new_tokens": 12}
as_of_0_5_21 = "overlap:ring:enable_skip_finishing_decode=false"
loops = ("serial", as_of_0_5_21, "overlap", "vllm_async")
learn.table(*(learn.simulate(loop, **by_length) for loop in loops))

# %% [markdown]
# ## What the real systems do
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
#   a user is faster with overlap off, and readers ask to be shown such cases
#   ([nano-vllm #47](https://github.com/GeeeekExplorer/nano-vllm/issues/47)). The *first* token comes
#   later, too: the host launches the next step before it looks at it
#   ([#2067](https://github.com/sgl-project/sglang/pull/2067)).
# - **Enabled is not overlapped.** In [vllm-omni
#   #4442](https://github.com/vllm-project/vllm-omni/issues/4442) the option is on and the trace
#   still looks serial. Look at a trace, as you did here.
#
# On your own machine: `minisched compare` draws both loops, and `minisched compare --loops all`
# every published one. The next lesson, `02_future_map.py`, is about the token that is not there
# yet.
