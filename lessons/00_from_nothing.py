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
#     title: From nothing
#     topics: []
#     extras: [lessons]
#     minutes: 25
# ---

# %% [markdown]
# # From nothing
#
# **The question.** You have a GPU, and you want a text of a hundred words. Why can't you give all of
# the work to the GPU, and go for lunch?
#
# **The server.** Your team runs one server through the whole course. It answers one request at a
# time. 25 people ask within half a second, and an answer takes 8,429 ms on average, from its question
# to its last token. Each lesson lowers this number, or protects it.
#
# In this lesson you build all that the other lessons stand on, from an empty page: a **device** in
# twenty lines, and on it the loop that writes a text. Nothing is hidden, and you need no GPU.
#
# *Four words.* The **host** is your program, on the CPU. The **device** is a second computer on a
# card, the GPU. A **token** is a piece of a word; here it is a number. A **model** takes all tokens
# so far and gives the next one.

# %%
from minisched import learn, nano
from minisched.devices.sim import SimStream

# %% [markdown]
# The course is about one picture. `minisched/nano.py` is a whole engine in 300 lines, and the next
# cell runs it: the same four requests in the serial loop, and in the overlap loop. A character is a
# millisecond, and a digit is the number of a step.

# %%
nano.main()

# %% [markdown]
# In the serial loop the device (`forward`) waits for the host (`schedule` and `process`). In the
# overlap loop it waits only at the start. You need not read the file yet: the lessons build its
# parts.
#
# ## Predict first
#
# The device needs 10 ms for each token, and the host 6 ms. They take turns. After how many
# milliseconds are four tokens done? Replace `None` by your number, and run the cell. The
# picture below has a dashed line there.

# %% tags=["guess"]
guess = None  # ms for four tokens

# %% [markdown]
# ## A run
#
# This is what your device will do in the end, on a loop that you will write in a moment: the host's
# lane above, the device's below. A colour is a job, as long as a model needs for a token. The host
# *plans* the job (`schedule`: what runs next?), the device *runs* it (`forward`), and the host *reads*
# its result (`process`: what does the token mean?). Then comes the next job.

# %%
serial = learn.simulate("serial", requests=1, new_tokens=4, copy_ms=0)
learn.timing(serial, whole=True, guess_ms=guess)

# %% [markdown]
# The hatched part is time in which the expensive device does nothing. Remember the picture. Now an
# empty page.
#
# ## Exercise 1: a device is a queue and a clock · hard
#
# We don't compute on a GPU here; we only keep its time. `now` is the host's clock, in ms.
#
# - `work(ms)`: the host is busy with something of its own for so long.
# - `launch(fn, ms)`: put a job into the queue. The *host does not wait*. The job begins when it has
#   been launched and every job before it is done; it takes `ms`. Call `fn()` for its value, in the
#   order of the launches (`launch` may call it: only the time is simulated), and return something by
#   which `wait` knows the job.
# - `wait(op)`: the host stands still until that job is done, and gets its value. It may wait for the
#   same job again: then the job is done, and the value is the same.
#
# As it stands, the device has no queue: the host does nothing while a job runs.


# %% tags=["exercise"]
class Device:
    def __init__(self):
        self.now = 0

    def work(self, ms):
        self.now += ms

    def launch(self, fn, ms):
        self.now += ms
        return fn()

    def wait(self, op):
        return op


learn.check("Device", Device)

# %% [markdown]
# Stuck? `learn.hint("Device")` in a cell of your own, as often as you like. A right answer is kept in a
# file, `mine.py`, in the folder in which you work, with all of its cell.
#
# After a job of 10 ms and 6 ms of other work, your host's clock is at 10 ms; with 16 ms of work it is
# at 16 ms. A host that works longer than the job takes does not wait at all. That is the whole idea of
# *asynchronous* work, and it is two `max` in your code.
#
# The device of the other lessons is the same with more around it: several queues (**streams**), ops
# that wait for each other, and a note of everything that happens.

# %%
learn.show(SimStream.launch)

# %% [markdown]
# ## Exercise 2: one token after the other · 3 lines
#
# A model reads *all* tokens so far and gives the next one. On the device that takes 10 ms a token;
# the host then needs 6 ms for its own work on each (make text of it, send it to the client, decide
# what runs next). Below, all jobs are launched before the first token. Run it, look at the tokens,
# and mend it. (`device` is one like yours; what `fn` reads is what is there when it is launched.)


# %% tags=["exercise"]
def generate_tokens(device, model, prompt, count):
    tokens = list(prompt)
    ops = [device.launch(lambda: model(tokens), 10) for _ in range(count)]
    for op in ops:
        tokens.append(device.wait(op))
        device.work(6)
    return tokens[len(prompt) :]


learn.check("generate_tokens", generate_tokens)

# %% [markdown]
# That is why you can't go for lunch: each token is the input of the next one. A picture of 1,000
# pixels can be computed in one step; a text of 1,000 tokens is 1,000 steps, one after the other.
#
# ## Exercise 3: but must the host see it? · hard
#
# The next step needs the token. Does it need the *host*? The device has a memory of its own, and a
# job can read there what the job before has left. `step` below does so: it needs nothing from the
# host. As it stands, the host still waits before it launches the next one, and the device idles.
#
# Keep one job ahead: launch it *before* you wait for the one in front. Not two: any token may be the
# end of the text, and each job launched after it is wasted. So don't launch more than `count`
# either (it is at least 1).


# %% tags=["exercise"]
def generate_ahead(device, model, prompt, count):
    memory = list(prompt)  # lies on the device

    def step():
        memory.append(model(memory))
        return memory[-1]

    tokens = []
    for _ in range(count):
        op = device.launch(step, 10)
        tokens.append(device.wait(op))
        device.work(6)
    return tokens


learn.check("generate_ahead", generate_ahead)

# %% [markdown]
# ## The same in the package
#
# Your last function is what SGLang calls `event_loop_overlap`. Here are both ways with one request,
# on the package's device.

# %%
ahead = learn.simulate("overlap", requests=1, new_tokens=8, copy_ms=0)
behind = learn.simulate("serial", requests=1, new_tokens=8, copy_ms=0)
learn.timing(behind, ahead)

# %%
learn.table(behind, ahead)

# %% [markdown]
# (*Makespan*: from beginning to end.)
#
# What is still missing? Many people ask at the same time, so a step computes one token for *each* of
# them (**continuous batching**, [Orca](https://www.usenix.org/conference/osdi22/presentation/yu),
# 2022). Its requests change with every step, and memory is short. The program that decides that is the
# **scheduler**: the host's 6 ms. The other lessons are about it.
#
# ## The server
#
# The server now has four requests in each step, and still takes turns: an answer takes 2,626 ms
# instead of 8,429 ms. `learn.rush(0)` runs the 25 requests with the settings after lesson 0.

# %%
learn.rush(0)

# %% [markdown]
# ## In the real systems
#
# - On a GPU of NVIDIA the queue is a [CUDA
#   stream](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#streams); `launch` is a kernel
#   launch, `wait` a synchronize. In PyTorch every operation on a GPU is launched like that, and
#   `.item()` or `.tolist()` waits.
# - [mlx-lm](https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py) has exercise 3 in
#   `generate_step`: it hands over the next step before it reads this one.
# - [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm) is an engine in 1,200 lines that works
#   like exercise 2; [mini-sglang](https://github.com/sgl-project/mini-sglang) is one like exercise 3.
#
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: Device</summary>
#
# ```python
# class Device:
#     def __init__(self):
#         self.now = self.free_at = 0
#
#     def work(self, ms):
#         self.now += ms
#
#     def launch(self, fn, ms):
#         self.free_at = max(self.now, self.free_at) + ms
#         return fn(), self.free_at
#
#     def wait(self, op):
#         value, end = op
#         self.now = max(self.now, end)
#         return value
# ```
#
# Two other ways. Keep a list of jobs and let a clock walk through it, event by event: more lines, and
# jobs can wait for other things than time. Or take a thread and a real clock: then it is no
# simulation any more (`minisched run --device thread`), and every run is a little different.
#
# </details>
#
# <details><summary>Exercise 2: generate_tokens</summary>
#
# One loop: launch, wait, append, work. You can work *before* you append as well, but not before you
# wait. And a recursive `generate` is as right, until Python's stack ends.
#
# </details>
#
# <details><summary>Exercise 3: generate_ahead</summary>
#
# Launch the first before the loop, in the loop the next one before the wait. Other ways: a queue of
# ops of length two (`append`, `popleft`), which grows into pipelines; or a generator that yields
# tokens, and its caller does the host's work.
#
# </details>
#
# **Next:** many requests, a real loop, and the gap with a name: [lesson 1, the
# bubble](01_bubble.py).
