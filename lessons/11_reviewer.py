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
#     title: You are the reviewer
#     topics: []
#     extras: [lessons]
#     minutes: 40
# ---

# %% [markdown]
# # You are the reviewer
#
# **The question.** Somebody's overlap scheduler passes its tests, and now and then an answer is
# wrong. You have a trace: who did what, and when. How do you find a bug that did not happen this
# time?
#
# **The server.** An answer takes 468 ms (lesson 10). Which wait could be left out?
#
# *A **lane** does one thing after the other: it is the host, or a **stream** of the device.
# An **op** is launched by the host and runs on a stream. A **race** is two lanes that touch the same
# memory, one of them to write, while nothing orders the two.*
#
# You need Python, forty minutes, and once about twenty lines.

# %%
from minisched import learn
from minisched.checks.history import PlayedOrder, _learned
from minisched.museum import find
from minisched.museum.patch import diff

# %% [markdown]
# ## A run
#
# Trace C, in which two requests are served. Their tokens are right. Something in it is wrong all the
# same.

# %%
unknown = learn.trace_of_bug("C")
learn.timing(unknown, whole=True, detail=True, title="trace C")

# %% [markdown]
# **Predict first.** The result is right: so what could be wrong with the run? Write down the moment at
# which something begins too early. The last picture of this lesson has a dashed line there.

# %% tags=["guess"]
guess = None  # ms, the moment in trace C at which something begins too early

# %% [markdown]
# A trace notes more than a picture shows: everything that a lane did, and which memory it touched.
# Here is what was done to the *pinned* memory: a small buffer of the host, from which a copy takes a
# prompt to the device.

# %%
learn.touches(unknown, "pinned")

# %% [markdown]
# The host writes, the stream reads, the host writes again. Good, *this time*: but did the host
# write the second time because the stream was done, or was it just lucky?
#
# ## A picture of it: clocks without time
#
# Leslie Lamport's answer (1978): forget the stopwatch. One thing surely **happens before** another if
# a chain leads from it to the other:
#
# - a lane does one thing after the other;
# - a launch comes before the op that it launches;
# - the end of an op comes before whatever follows on a lane that **waited** for it.
#
# A **vector clock** keeps that for each act: how many acts of *each* lane have surely happened by
# then, this one included. Act i happens before act j if j's clock knows as many acts of i's lane as
# i's own clock does: `clocks[i][lane] <= clocks[j].get(lane, 0)`.
#
# **An example.** Eight acts of one step. The host launches a forward pass (op 1) and the copy of its token
# (op 2). The copy stream waits for the forward pass, and the host waits for the copy. *Learns from* is the
# act of another lane that an act learns from.

# %%
learn.clocks_of_example()

# %% [markdown]
# The same as a picture: a box has the three numbers, and an arrow leads to each act that learns.

# %%
learn.picture_of_example()

# %% [markdown]
# Act 4 takes the larger number for each lane: `1 2 0` from act 3, and nothing from its own lane, which
# has done nothing yet. Then it counts itself: `1 2 1`. Act 5 learns from act 1 that the host has launched
# twice: `2 2 2`. Does act 1 happen before act 3? Act 1 is the host's second act, and act 3 knows of one:
# **no**, although it came first this time. Does act 0 happen before act 3? Act 3 knows of one act of the
# host: yes.
#
# ## Exercise 1: write it · hard
#
# `program` is a list of `(lane, kind, what)`, in an order that happened. Of kind `launch`, `begin`,
# `end` and `wait`, `what` is the number of an op (`begin` and `end` are on the op's own lane). `say`
# is like an `end`: a signal is given, for which others wait. Where a number has two signals, of either
# kind, the first counts. All other kinds touch memory. Give a list of clocks, one for each act: a
# dictionary from lanes to numbers.
#
# As it stands it believes in the order that happened. (Stuck? `learn.hint("happens_before")`)


# %% tags=["exercise"]
def happens_before(program):
    return [{"host": at, "forward": at, "copy": at} for at in range(len(program))]


learn.check("happens_before", happens_before)

# %% [markdown]
# In the package, what a lane learns when it begins or has waited (`giver` is the launch, or the end):

# %%
learn.show(_learned, "known = dict", look_at=("known[other] = moment", "giver.act.lane"))

# %% [markdown]
# ## Exercise 2: find a race · hard
#
# Now `clocks` are the right ones. A touch of memory is of kind `read`, `write` or `free` (after
# which no lane may touch it any more), and its `what` is `(memory, cells)`: a name, and the numbers of
# the cells. Give a pair of acts that race, by their numbers, or None.


# %% tags=["exercise"]
def race(program, clocks):
    touches = [i for i, act in enumerate(program) if act[1] in ("read", "write")]
    return (touches[0], touches[1]) if len(touches) > 1 else None


learn.check("race", race)

# %% [markdown]
# Yours, on trace C. (Until both exercises are right, the answer means nothing.)

# %%
program = learn.acts(unknown)
[(at, *program[at]) for at in race(program, happens_before(program)) or ()]

# %% [markdown]
# ## Exercise 3: three diagnoses · hard
#
# Two more traces. In each of the three something is broken. Say which law, and which slice breaks
# it: the name of a phase or an op, and its step. That slice comes at a wrong moment, or takes a wrong
# value. A slice that only follows from it does not count. Where several break the law, name any of
# them. Of a race, name either side. The laws:
#
# - `identity`: a request's tokens are those that it gets alone;
# - `race`: touches of the same memory are ordered;
# - `overlap`: the host works while the device does;
# - `leak`: what was taken is given back, once;
# - `livelock`: every request ends.

# %%
learn.timing(learn.trace_of_bug("A"), whole=True, detail=True, title="trace A")

# %%
learn.timing(learn.trace_of_bug("B"), whole=True, detail=True, title="trace B")


# %% tags=["exercise"]
def diagnose():
    return {
        "A": ("leak", "forward", 1),
        "B": ("leak", "forward", 1),
        "C": ("leak", "forward", 1),
    }


learn.check("diagnose", diagnose)

# %% [markdown]
# All three were published, and each is a line or two. Trace C's: one buffer served all steps. Now
# each step has one of its own, and the host writes none that a copy may still read (`-` is the code
# with the bug, `+` without). A wait would do as well, and cost the overlap.

# %%
print(diff(find("pinned_buffer_rewritten").edits))

# %% [markdown]
# Trace C again. The host writes the buffer for step 2 from 6.5 ms on (*prepare 2*). The copy of step 1
# may still read it: no arrow leads from the one to the other.

# %%
learn.timing(unknown, whole=True, detail=True, title="trace C, and your guess", guess_ms=guess)

# %% [markdown]
# ## The server
#
# An answer still takes 468 ms. Each wait that you found protects it: a race changes a token now and
# then, and no average shows it.

# %%
learn.rush(11)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: happens_before</summary>
#
# Copy the lane's newest clock; on a begin or a wait take the larger number for each lane from the
# launch or the end; count yourself. Or build a graph and search it for a path: simpler, and slow
# for many questions. Or keep only the last act that each lane knows, as the package does, where an
# act needs no copy as long as it learns nothing.
#
# </details>
#
# <details><summary>Exercise 2: race</summary>
#
# Compare each two touches. Or go through once, and keep for each cell the last write and the reads
# since: that is what the package does, by stretches of cells. Or let a tool watch while it runs,
# as NVIDIA's `compute-sanitizer --tool racecheck` does inside a kernel; between streams you need
# the order of launches and waits, as here.
#
# </details>
#
# <details><summary>Exercise 3: diagnose</summary>
#
# A `("overlap", "wait", 2)`: the host finishes a step before it launches the next, so nothing lies
# above anything. B `("identity", "forward", 3)`: it got step 1's token. C `("race", "prepare",
# 2)`. Or let `minisched check TRACE` find it.
#
# </details>

# %%
learn.show(PlayedOrder.__init__, 'if kind == "begin"', "_learned", look_at=("_learned",))

# %% [markdown]
# ## In the real systems
#
# - Trace A: [vllm-omni #4442](https://github.com/vllm-project/vllm-omni/issues/4442), "enabled", and
#   serial in the trace.
# - Trace B: an excerpt in [SGLang #22416](https://github.com/sgl-project/sglang/pull/22416) does not
#   hand the step before over (lesson 3).
# - Trace C: [mini-sglang #102](https://github.com/sgl-project/mini-sglang/issues/102) and
#   [vLLM #31841](https://github.com/vllm-project/vllm/pull/31841). A crash now and then, under load.
# - SGLang keeps what a step in flight reads in a ring of two batches (`record_batch_in_overlap`);
#   vLLM had pinned buffers overwritten in the middle of a copy, too
#   ([#25279](https://github.com/vllm-project/vllm/pull/25279)).
#
# On your own machine: `minisched museum` has all such bugs, each with its smallest case, and
# `minisched check traces/overlap.json` asks a file all these questions. In the next lesson,
# [lesson 12](12_your_engine.py), the traces are real.
