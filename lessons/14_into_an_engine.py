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
#     title: Into an engine
#     topics: []
#     extras: [lessons]
#     minutes: 45
# ---

# %% [markdown]
# # Into an engine
#
# **The question.** An engine works, and its loop takes turns. It is not yours, and you know nothing of it
# but its code. How do you put overlap into it, and how do you know that nothing broke?
#
# **The server.** An answer takes 468 ms (lesson 10), in an engine that overlaps.
#
# The engine is `minisched/learn/small_engine.py`. It has the shape of
# [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm): a scheduler, a model runner, and a loop that
# calls *schedule*, *run* and *postprocess* in turn. It uses nothing of this package except the recorder.
#
# You work in the order of a real change: record, read the verdict, change, record again, compare.

# %%
from contextlib import chdir
from tempfile import TemporaryDirectory

import minisched as ms
from minisched import learn
from minisched.checks.overlap import measure
from minisched.learn.small_engine import SmallEngine, generate_serial

# %% [markdown]
# ## The lines
#
# The loop. `launch` and `wait` are two calls here. In nano-vllm they are one call, `run`, which returns
# the tokens as a list of Python and so waits for the device.

# %%
learn.show(generate_serial, "while not", look_at=("engine.wait",))

# %% [markdown]
# The runner. The three lines with `rec` are the recording: a slice of the host (`host`), an op that the host
# launches (`launch`), and its times on the device (`ended`). `minisched/record.py` is one file that needs only
# the standard library: copy it into any engine.

# %%
learn.show(SmallEngine.launch, "self.steps += 1", "return LaunchedStep", look_at=("rec.",))

# %% [markdown]
# ## A run
#
# **Predict first.** The scheduler takes 2 ms, the device 8 ms, and the postprocessing 3 ms. Which share of
# the time does the device idle, and what will `check` recommend?

# %% tags=["guess"]
guess = None  # percent of the time that the device idles

# %%
prompts = [([1, 2, 3], 9), ([4, 5], 12), ([6, 7, 8, 9], 6), ([3, 3], 8), ([8], 10)]
engine = SmallEngine(prompts)
generate_serial(engine)
with TemporaryDirectory() as folder, chdir(folder):
    engine.rec.save("before.json", "before")
    before = ms.check("before.json")  # in a terminal: minisched check before.json
print(before)

# %% [markdown]
# Read the verdict from its end. *Next* names the change. *These batches cannot take less than* names what it
# can gain: 260 ms would become 160 ms. And *the wait for a step's tokens* names the line: `engine.wait`.
#
# ## A picture

# %%
before_trace = learn.trace_of_engine(engine, "before")
learn.timing(before_trace, steps=4)

# %%
idle = 100 - measure(before_trace).device_busy_percent
learn.bars({"the device idles": idle}, "%", guess, "The device idles for 5 of 13 ms")

# %% [markdown]
# ## What must change?
#
# Three things, in each engine:
#
# 1. **The input.** The next step needs a token that the host does not know. The device has it (lesson 2).
# 2. **The accounts.** The scheduler must count the tokens in flight. Otherwise it launches steps past the
#    end of an answer, and takes too little memory. Here `schedule` counts them already
#    (`seq.in_flight`), and `may_run` reads the count.
# 3. **The loop.** Launch first, and read a step later (lesson 1).
#
# ## Exercise 1: the input · 3 lines
#
# `seqs` are the sequences of a step that is about to be launched. Each has a `slot` on the device, its
# `answer` (the tokens that the host knows), and `in_flight`: the tokens that were launched and have not come
# back, with that of this step. Return one id for each sequence: its newest token if the host knows it, or
# `-1 - slot` if the device has it. A new sequence has no token; its id is 0, and it is not read.


# %% tags=["exercise"]
def input_ids(seqs):
    return [seq.answer[-1] if seq.answer else 0 for seq in seqs]


learn.check("input_ids", input_ids)

# %% [markdown]
# ## Exercise 2: the loop · hard
#
# `engine.input_ids(seqs)` is the exercise above, done right. The engine has:
#
# - `schedule()`: the sequences of the next step. It may be an empty list while the last tokens are in
#   flight.
# - `launch(seqs, ids)`: launches a step, and returns it immediately.
# - `wait(step)`: the tokens of a step, when the device has finished it.
# - `postprocess(step, tokens)`: adds the tokens to the answers. It drops the token of a sequence that has
#   ended already.
# - `is_finished`: whether every answer has ended.
#
# Keep at most two steps in flight, and process each of them, also the last one.
#
# As it stands, it is the serial loop. The checker records your run. It holds the recording with the
# questions of `minisched check`: the same tokens as before, each step overlapped.


# %% tags=["exercise"]
def generate_overlapped(engine):
    while not engine.is_finished:
        seqs = engine.schedule()
        step = engine.launch(seqs, engine.input_ids(seqs))
        engine.postprocess(step, engine.wait(step))


learn.check("generate_overlapped", generate_overlapped)

# %% [markdown]
# ## Compare both recordings
#
# Your own loop, on the prompts from above. `check` with two files also compares the tokens. (Until the
# exercise is right, it finds what is wrong with it.)

# %%
changed = SmallEngine(prompts)
generate_overlapped(changed)
with TemporaryDirectory() as folder, chdir(folder):
    engine.rec.save("before.json", "before")
    changed.rec.save("after.json", "after")
    print(ms.check("before.json", "after.json"))

# %%
learn.timing(
    learn.trace_of_engine(engine, "before"), learn.trace_of_engine(changed, "after"), steps=4
)

# %% [markdown]
# ## The same change in nano-vllm
#
# A checkout of nano-vllm needs the same three changes. [A patch](site/docs/overlap_in_nano_vllm.md) makes them.
# It was run on a CPU with a stand-in for the model, and not on a GPU: 480 requests get the same tokens as
# without it, and seven of ten steps are launched ahead.
#
# | here | in nano-vllm |
# |---|---|
# | `launch` and `wait` | `ModelRunner.run` ends with `.tolist()`, which blocks. Return the tensor of tokens, copy it to pinned memory with `non_blocking=True`, and record a `torch.cuda.Event`. `wait` is `event.synchronize()` and then `.tolist()`. |
# | `newest`, `-1 - slot` | `prepare_decode` makes the ids from `seq.last_token`. Keep the tensor of tokens of the step before on the GPU, and index it by the row of each sequence: no copy from the host. |
# | `in_flight` | `Scheduler.schedule` asks `can_append` and `may_append` by `len(seq)`. `commit` appends a placeholder for the token in flight, so `len(seq)` counts it, and leaves out a sequence with its last token in flight. |
# | `postprocess` of a step late | `deallocate` returns the blocks of a sequence while a step that still writes to them is in flight. With one stream that is safe (lesson 6): the next owner writes later. |
# | `generate_overlapped` | `LLMEngine.step` keeps the step before in `self.last`, and `is_finished` also asks for it. |
#
# To record it, copy `minisched/record.py` into the checkout. Put `rec.host("schedule")`, `rec.host("wait")` and
# `rec.host("process")` around the three calls, `rec.launch("forward", step, rids, touches=[])` next to the
# launch, and `rec.ended` with the times of two CUDA events. Or record nothing by hand: `torch.profiler` around
# a few steps writes a file that `minisched check` reads, too (lesson 12).
#
# Greedy sampling gives the same tokens before and after, if the batches are the same. `check` compares them.
#
# ## The server
#
# An answer takes 468 ms, where it took 8,429 ms at first. The device is busy for 99 % of the time, so
# overlap has no more to give. Lower times need a faster model, or a second GPU.

# %%
learn.rush(14)

# %% [markdown]
# ## In the real systems
#
# - SGLang made this change in [#1687](https://github.com/sgl-project/sglang/pull/1687), first with a thread.
# - vLLM made it in [#19970](https://github.com/vllm-project/vllm/pull/19970): its scheduler counts
#   `num_output_placeholders`, which is `in_flight` here.
# - [mini-sglang](https://github.com/sgl-project/mini-sglang) was written with both loops.
#
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: input_ids</summary>
#
# `-1 - seq.slot if seq.in_flight > 1 else (seq.answer[-1] if seq.answer else 0)`. *Another way*: always take
# the token from the device, also when the host knows it. Then the host sends no ids at all, as mini-sglang
# does with its token pool.
#
# </details>
#
# <details><summary>Exercise 2: generate_overlapped</summary>
#
# ```python
# def generate_overlapped(engine):
#     last = None
#     while last or not engine.is_finished:
#         seqs = engine.schedule()
#         step = engine.launch(seqs, engine.input_ids(seqs)) if seqs else None
#         if last:
#             engine.postprocess(last, engine.wait(last))
#         last = step
# ```
#
# *Another way*: a `deque` of two steps. *A third*: a thread that waits and postprocesses, while the main
# thread schedules; then both change the same lists, and need a lock.
#
# </details>
#
# **That was the course.** Your engine is next: [the recipes](site/docs/recipes.md) record six of them, and
# [the leaderboard](leaderboard.md) waits for your scheduler.
