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
#     title: Your engine
#     topics: []
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # Your engine
#
# **The question.** Your server starts with overlap enabled, the log confirms it, and it is no faster.
# Is it overlapped? The log does not show it; a **trace** does: each piece of work with its time, on the
# host and on the device. Which call stands between you and the overlap?
#
# **The server.** An answer takes 468 ms (lesson 10), on a simulated device.
#
# *`torch.profiler` and NVIDIA's Nsight Systems record such traces. They know nothing of steps or
# tokens: they see **calls** of the host, and **ops** (kernels and copies) on the **streams** of the
# device. Some calls launch an op and return immediately, some wait until the device is done: they
# **block**.*
#
# The traces here are real, and small cuts of published ones (`minisched/learn/traces/README.md`
# has their sources). You need Python, half an hour, and three times a few lines.

# %%
from contextlib import chdir

import minisched as ms
from minisched import learn
from minisched.checks.overlap import gaps, union

# %% [markdown]
# ## A run
#
# One decode step of SGLang, 32 requests, on an MI300X. **Predict first.** Overlap is enabled in it:
# its second kernel is `resolve_future_token_ids_kernel`, which is lesson 2's FutureMap. The step
# takes the device about 10 ms. How long does it take the host, from its first call to its last?

# %% tags=["guess"]
guess = None  # ms from the host's first call to its last

# %%
path = learn.profile_path("sglang_decode")
with chdir(path.parent):
    found = ms.check(path.name)  # in a terminal: minisched check sglang_decode.json.gz
print(found)

# %% [markdown]
# Read the last lines. The host was blocked for 463 ms in one call, `hipMemcpyWithStream`. All its other
# calls in this step took less than 3 ms. (HIP is AMD's CUDA: its calls begin with `hip`.)
#
# The cost is not 463 ms: the device was most likely at work meanwhile, on a step that is not in this
# file, so it idles for 97.9 %. The cost is the host's work *after* the wait, with nothing queued:
# *host wait* is 0.44 ms, in a step of 10 ms.
# That is the bubble of lesson 1, with overlap on.
#
# ## A picture
#
# The host has the upper lane. It launches almost nothing, waits, and when the wait is over it
# launches the whole step (one call, a **graph** of kernels), just when the device is ready for it.
# The device was most likely running the step before, of prompts.

# %%
learn.timing(
    learn.joined(learn.profile("sglang_decode")),
    whole=True,
    detail=True,
    title="SGLang: the host waits for 463 ms, and the step begins after that",
    guess_ms=guess,
)

# %% [markdown]
# Next to it one decode step of vLLM. The host had launched everything 6 ms before the device began.
# This is what being ahead looks like. (Its "busy 56 %" counts from the host's first call on. From its
# first kernel to its last, the device idles for 0.2 % of the time.)

# %%
learn.timing(
    learn.joined(learn.profile("vllm_decode")),
    whole=True,
    detail=True,
    title="vLLM: the host has launched the step 6 ms before it begins",
)

# %% [markdown]
# ## Exercise 1: how idle is the device? · hard
#
# `ops` is a list of `(stream, start, end)`, in milliseconds and in any order. Say which share of the
# time, from the first start to the last end, *no* op runs. As it stands it adds up the ops. (Stuck?
# `learn.hint("bubble_fraction")`)


# %% tags=["exercise"]
def bubble_fraction(ops):
    first = min(start for stream, start, end in ops)
    last = max(end for stream, start, end in ops)
    return 1 - sum(end - start for stream, start, end in ops) / (last - first)


learn.check("bubble_fraction", bubble_fraction)

# %% [markdown]
# The package merges what overlaps, and takes the time between:

# %%
learn.show(union, "merged", look_at=("max(",))

# %%
learn.show(gaps, "return")

# %% [markdown]
# ## Exercise 2: which call blocks? · 3 lines
#
# The traces of five steps, as lists of `(call, within, milliseconds)`: what the host called, inside
# of which operation, for how long. Here are the longest calls of two:

# %%
heads = ("trace", "call", "within", "ms")
rows = [
    (name, call, within[:48], f"{took:.3f}")
    for name in ("sglang_extend", "two_gpus")
    for call, within, took in sorted(learn.host_calls(learn.profile(name)), key=lambda c: -c[2])[:3]
]
learn.Table(heads, tuple(rows))

# %% [markdown]
# Give `(call, within)` of the call in which the host was **blocked** for the longest, all of its
# times added up, or None if it never was. Those that block are called `...Synchronize`, or they are
# a `Memcpy` without `Async` in its name. As it stands it gives the longest call.


# %% tags=["exercise"]
def blocking_call(calls):
    longest = max(calls, key=lambda one: one[2])
    return longest[0], longest[1]


learn.check("blocking_call", blocking_call)

# %% [markdown]
# Three of the real answers, each an unsuspicious line of Python:
#
# | trace | the call | which line it was |
# |---|---|---|
# | `sglang_decode` | `hipMemcpyWithStream` in `aten::copy_` | a tensor of 256 bytes copied to the CPU, in `populate_from_forward_batch` |
# | `sglang_extend` | `hipMemcpyWithStream` in `aten::to` | `torch.tensor(a_list, device=...)` in `ForwardBatch.init_new`, 60 bytes |
# | `two_gpus` | `cudaStreamSynchronize` in `aten::is_nonzero` | `if tensor:`, which has to know the number |
#
# vLLM waits, too: for 0.002 ms, in `hipEventSynchronize`. Its event is the end of a copy that was
# done long before. Waiting is no sin; waiting for what was launched just now is. And in
# `two_gpus`, recorded by Nsight, the host is blocked for 428 ms, while the device hardly idles: the
# host was that far ahead. The call does cost 1.6 ms: the queue is empty when it returns, and
# the device waits for the next launches. (Pale green in its picture is
# `upload`: copies from the host's memory to the device, which take most of the time.)

# %%
learn.timing(
    learn.joined(learn.profile("two_gpus")),  # 3,584 slices are too many for a picture
    whole=True,
    detail=True,
    title="Blocked for 428 ms, and the device has work all the while",
)

# %% [markdown]
# The cure is the same each time: keep the number where it is known. A length that the host counts
# itself need not be copied back; a list goes through **pinned** memory with `non_blocking=True`;
# a condition is decided on the device (`torch.where`), or a step later.
#
# ## Exercise 3: enabled is not overlapped · 3 lines
#
# `steps` is a list of `(launched, began, ended)`, one for each step in order: when the host had launched
# it, when it began on the device and when it ended there, in nanoseconds. Say how many of them were
# launched before the step in front of them had ended. As it stands it believes the option.


# %% tags=["exercise"]
def launched_ahead(steps):
    return len(steps) - 1


learn.check("launched_ahead", launched_ahead)

# %% [markdown]
# The runs that the checker used have a case to remember. `mindie_placeholder` is an *asynchronous*
# scheduler, and no step of it is ever launched ahead. And with a device of 3 ms and a host of 6 even
# `overlap` launches nothing ahead: it can't, the host is the slower one. Then overlap still saves
# time, since the device's 3 ms are hidden behind the host's.

# %%
learn.timing(
    *(learn.simulate(loop, device_ms=3, requests=1) for loop in ("mindie_placeholder", "overlap"))
)

# %% [markdown]
# ## The server
#
# An answer still takes 468 ms, and the device is busy for 99 % of the time. On a real server only a
# trace shows such a share. It also finds the call that blocks.

# %%
learn.rush(12)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: bubble_fraction</summary>
#
# Sort by start, keep the latest end so far, add up what lies between. Or merge into intervals, as
# the package does, and keep those: then you can ask what the host did in each gap. Or mark every
# start with +1 and every end with -1, sort, and add up the time at 0: that also gives the *number*
# of ops that ran at a time.
#
# </details>
#
# <details><summary>Exercise 2: blocking_call</summary>
#
# Sum by `(call, within)` those that block. Or trust no name: a call blocks if it returns when the
# op it launched has ended, which is how `minisched check` finds copies from memory that is not
# pinned. Or let the profiler's Python stacks name the line, as in the table.
#
# </details>
#
# <details><summary>Exercise 3: launched_ahead</summary>
#
# Compare each launch with the end before it. Or look at the lead, how long an op waited in the
# queue before it began: near 0 is starved. Or draw it in Perfetto, and see whether the arrows
# lean.
#
# </details>
#
# ## In the real systems
#
# - They name their steps, so that a tool can find them: SGLang `step[DECODE bs=32]`
#   ([`managers/scheduler.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py)),
#   vLLM `execute_32_context_0(..)_generation_32(..)`
#   ([`v1/worker/gpu_worker.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_worker.py)).
#   The two SGLang traces above contain both names, `execute_..` around `step[..]`. `minisched check`
#   prints the outer one.
#   In your own engine: `torch.profiler.record_function("step")`.
# - "Enabled" and serial all the same:
#   [vllm-omni #4442](https://github.com/vllm-project/vllm-omni/issues/4442).
# - A buffer that is not pinned makes `non_blocking` a lie; a pinned one that is written again too early
#   makes wrong tokens ([vllm #25279](https://github.com/vllm-project/vllm/pull/25279)).
# - The traces: [TraceLens](https://github.com/AMD-AGI/TraceLens) and
#   [nsys-ai](https://github.com/GindaChen/nsys-ai), both under the MIT licence.
#
# On your own machine: `minisched check trace.json.gz`, or with an Nsight report
# `nsys export --type sqlite report.nsys-rep` and `minisched check report.sqlite`. Record three steps
# or more, and the answer covers their overlap. In the next lesson you begin with an empty file.
