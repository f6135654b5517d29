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
#     title: Where overlap must wait
#     topics: [grammar_manager, generation_batch_result, trtllm_overlap, beam_search]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # Where overlap must wait
#
# **The question.** So far the host never needed the newest token to launch the next step. But a
# request may want its answer to be valid JSON, and the tokens so far decide which may come next. Must
# the whole machine stop for it?
#
# **The server.** An answer takes 619 ms (lesson 7). Every fourth question has a rule for its answer,
# and the loop waits for it.
#
# *A **grammar** decides which tokens may follow (here a regular expression; a JSON schema in life). The
# host keeps it, and builds a **mask** from it: a list of the tokens that may be sampled. A **penalty**
# makes tokens less likely that were generated before. Both read a request's history.*
#
# You need Python, half an hour, and three times a few lines.

# %%
import minisched as ms
from minisched import learn
from minisched.core import SamplingParams
from minisched.features.history import _lacks
from minisched.loops.overlap import overlap
from minisched.recipes import trace_of
from minisched.worker import Step
from minisched.worker.verify import count_accepted

# %% [markdown]
# ## A run
#
# Four requests, first free, then all with a rule: four words. Each step of the second run needs a
# mask, which needs the token before, which is in flight.
#
# **Predict first.** Overlap makes the free run 1.7 times as fast as the serial loop. How much of
# that is left with the rule?

# %% tags=["guess"]
guess = None  # times as fast as the serial loop, with the rule

# %%
loops = ["overlap", "mindie_plugin", "mlx_async"]
free = SamplingParams(max_new_tokens=24, ignore_eos=True)
ms.compare(ms.requests(4, free), loops)

# %%
rule = SamplingParams(max_new_tokens=24, regex="([a-z]+ ){3}[a-z]+")
ms.compare(ms.requests(4, rule), loops)

# %%
ruled = ms.compare(ms.requests(4, rule), loops)
learn.bars(ruled.speedup, "×", guess, "Overlap keeps its speed with a rule; mlx_async loses it")

# %% [markdown]
# It depends on *what* waits. `overlap` waited in 23 steps and lost nothing. `mlx_async` lost
# everything and a bit more.
#
# ## A picture
#
# A step is two things: a **forward pass**, which reads the last token and computes how likely each
# next one is, and the **sampling**, which chooses. The pass takes nearly all the time, and it reads
# its token on the device. Only the sampling needs the mask. So the pass is launched immediately; while
# the device computes, the host processes the last result, builds the mask (olive), and launches the
# sampling. Where the pass is short, the device waits for the mask (hatched).

# %%
learn.view("grammar_manager", trace_of("grammar_manager"))

# %% [markdown]
# ## Exercise 1: who must wait? · 3 lines
#
# You are asked once for each row of a step that is about to be launched: has its request a grammar, has
# it penalties (both True or False), and how many of its tokens are `unknown` to the host (sampled by
# steps in flight)? Say whether the sampling must wait for this row. Waiting for nothing is a mistake,
# too. (Stuck? `learn.hint("must_wait")`)


# %% tags=["exercise"]
def must_wait(has_grammar, has_penalties, unknown):
    return False


learn.check("must_wait", must_wait)

# %% [markdown]
# The package's lines. A step that names a request counts as one of its placeholders, the one that is
# asked about, too; hence the `- 1`. (`late_penalties` is a setting: whether penalties may be a token
# late. Here they may not.)

# %%
learn.show(_lacks, "missing = ", look_at=("late_penalties else",))

# %% [markdown]
# ## Exercise 2: a loop that waits · hard
#
# Your loop of lesson 1, and three calls more: `engine.must_delay_sample(batch)` asks the question of
# exercise 1, `engine.run_batch(batch, delay_sample=True)` launches the pass without the sampling, and
# `engine.launch_batch_sample_if_needed(pending)` builds the mask and launches the rest.
#
# As it stands the loop is right and careful: where a row must wait, it processes the last result
# first, and launches nothing meanwhile. Change the order, so that only the sampling waits.


# %% tags=["exercise"]
def waiting_loop(engine):
    last = None
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        delay = bool(batch) and engine.must_delay_sample(batch)
        if delay and last:
            engine.process_batch_result(last)
            last = None
        pending = engine.run_batch(batch) if batch else None
        if last:
            engine.process_batch_result(last)
        elif not batch:
            engine.on_idle()
        last = pending
        yield


learn.check("waiting_loop", waiting_loop)

# %% [markdown]
# SGLang's loop: launch, process, sample.

# %%
learn.show(
    overlap,
    "delay = engine",
    "launch_batch_sample_if_needed",
    look_at=("delay = engine", "the device runs", "launch_batch_sample_if_needed"),
)

# %% [markdown]
# ## The other wait: for the copy
#
# One wait is always there: to process a result, its tokens have to be on the host. They are
# copied on a stream of their own, and an **event** at the copy's end, `copy_done`, is all that the
# host waits for; not for the device to be done. In the picture that event is the diamond. In most
# steps the tokens lie ready before the host asks.

# %%
learn.view("generation_batch_result", trace_of("generation_batch_result"))

# %%
learn.show(
    Step.read, "values = self.copy_done", "values.tolist", look_at=("copy_done.synchronize",)
)

# %% [markdown]
# ## Exercise 3: which drafts count? · 3 lines
#
# Speculation makes a step bring more than one token. A cheap model guesses a few tokens ahead
# (**drafts**), and one forward pass reads all of them: `sampled[0]` is the model's token after the last
# one, `sampled[1]` its token after `drafts[0]`, and so on; there is one more of them than drafts. Give
# the tokens that count: those that the model would have sampled one by one.
#
# How many count is known only when the step has run. So the next step's lengths are unknown, too,
# and overlap has more to bring from step to step than a token.


# %% tags=["exercise"]
def accept(drafts, sampled):
    return sampled[:1]


learn.check("accept", accept)

# %% [markdown]
# On the device there are no loops: all drafts of all rows are compared together, and the first
# that differs is looked for with arrays.

# %%
learn.show(count_accepted, "at, none =", look_at=("count_equal",))

# %% [markdown]
# ## The server
#
# Now only the sampling waits for a rule. An answer takes 468 ms instead of 619 ms.

# %%
learn.rush(10)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: must_wait</summary>
#
# `unknown > 0 and (has_grammar or has_penalties)`. Or let penalties be one token late and not
# wait: SGLang does (here `late_penalties`); answers change a little. Or wait later: vLLM lets the
# worker wait for the token, at the sampling.
#
# </details>
#
# <details><summary>Exercise 2: waiting_loop</summary>
#
# Launch with `delay_sample=delay`, process `last`, then `launch_batch_sample_if_needed(pending)`.
# Or let a worker thread build the mask, as MindIE does: it gets the token and updates the grammar;
# but the pass waits for the mask. Or break the chain, as the MLX loop does: process, then launch.
# That is what you started with, and 0.91 x above.
#
# </details>
#
# <details><summary>Exercise 3: accept</summary>
#
# Count while `drafts[i] == sampled[i]`, and take one more. Or `zip` both and stop at the first
# difference. Or, for sampling with a temperature, accept each with a probability (rejection
# sampling); here the same seed samples both, so equality will do.
#
# </details>
#
# ## In the real systems
#
# - SGLang: `delay_sample_func` in
#   [`managers/scheduler.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py);
#   that closure kept the logits alive, until
#   [#20697](https://github.com/sgl-project/sglang/pull/20697). With drafts *and* a grammar the whole
#   batch waited up to 0.5.16. Since 0.5.17 its forward pass is launched first, and a barrier before
#   the sampling reads the last tokens
#   ([#31488](https://github.com/sgl-project/sglang/pull/31488)).
# - TensorRT-LLM launches the sampling of *every* step by itself, after the last tokens have arrived, so
#   its grammars need no case of their own: `minisched view trtllm_overlap`, and
#   [its place among the designs](site/docs/designs.md).
# - A beam search need not wait: the device itself chooses the next beams (`minisched view beam_search`,
#   and [rows that fork](site/docs/designs.md)).
# - vLLM made sampling a call of its own for this
#   ([#26866](https://github.com/vllm-project/vllm/pull/26866)). Penalties that read -1 as a token were
#   a bug ([#27878](https://github.com/vllm-project/vllm/issues/27878), cured in
#   [#26467](https://github.com/vllm-project/vllm/pull/26467)).
# - Stale -1 drafts that reached the model:
#   [#46899](https://github.com/vllm-project/vllm/pull/46899).
#
# On your own machine: `minisched compare --regex '[a-z]+'` counts the waits and their cost. In the
# next lesson, [lesson 11](11_reviewer.py), you look for missing waits.
