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
# ---

# %% [markdown]
# # When overlap wins, ties and loses
#
# Overlap hides the host's work behind the device's. So it can save at most the smaller of the two: a
# factor of two where both take equally long, and next to nothing where one of them does nearly all
# the work. That is one axis of the map. The other is how long an answer is. The first token has
# nothing to hide behind. And whoever launches a step before the last one's token is known may launch
# it for a request that has just ended.
#
# Each number below is a run on the simulator: 12 requests, 4 at a time, beside the serial loop. All
# designs schedule by the same rules (SGLang's), so what differs is the order of things alone.

# %% tags=["hide-input"]
from minisched.export.notebook import NotebookPicture
from minisched.export.scene_svg import to_svg
from minisched.sweep.break_even import measure_break_even

by_length = measure_break_even()
NotebookPicture(to_svg(by_length.scene))

# %% [markdown]
# Read it from below. With 64 tokens to an answer, every design that keeps two steps in flight comes
# close to what its column allows. With one token, there is a difference of principle: `overlap` (since
# SGLang 0.5.23) and `vllm_async` count, see that the only token is on its way, and launch nothing
# more. By the same rules they are the same map: what the relay is called plays no part in it.
# `overlap_thread`, SGLang's older worker thread, and `mindie_dual` don't count, and launch a step in
# vain for every batch that ends: with answers of one token that is half of all steps. `mlx_async`
# chains steps only while nobody waits, and here somebody mostly does. `multi_step` runs several steps
# at a time, whatever the answers need.
#
# ## Where nobody can count
#
# A length can be foreseen. A stop token can't: nobody knows that it is the last one before it is
# there. The same map with answers that end so, after as many tokens on average:

# %% tags=["hide-input"]
by_stop = measure_break_even(["overlap", "vllm_async", "overlap_thread"], is_stopped=True)
NotebookPicture(to_svg(by_stop.scene))

# %% [markdown]
# Now those who count lose on short answers, too. What is computed in vain is one row for each
# request, and a row in a batch that runs anyhow costs little; a whole step in vain is what hurts, and
# that happens where all of a batch ends at once.
#
# For your own costs: `minisched map --host-ms 3 --device-ms 12`, and `minisched calibrate` measures
# what yours are. `minisched sweep` runs any other grid.
