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
# Overlap runs the host's work while the device computes. So it saves at most the smaller of the two: a
# factor of two if both take equally long, and next to nothing if one of them does nearly all the
# work. That ratio is one axis of the map. The other axis is the length of an answer. The work for a
# first token can't overlap. A loop that launches a step before the last token is known may also
# launch it for a request that has just ended.
#
# Each number below is a run on the simulator: 12 requests, 4 at a time, compared with the serial
# loop. All designs schedule by the same rules (SGLang's), so only their order of work differs.

# %% tags=["hide-input"]
from minisched.export.notebook import NotebookPicture
from minisched.export.scene_svg import to_svg
from minisched.sweep.break_even import measure_break_even

by_length = measure_break_even()
NotebookPicture(to_svg(by_length.scene))

# %% [markdown]
# Read it from below. With answers of 64 tokens, every design with two steps in flight comes close to
# the limit of its column. With one token, the designs differ in principle:
#
# - `overlap` (since SGLang 0.5.23) and `vllm_async` count tokens. They see that the only token is in
#   flight, and launch nothing more. Under the same rules both have the same map, because the relay has
#   no influence on it.
# - `overlap_thread`, SGLang's older worker thread, and `mindie_dual` don't count. They launch a wasted
#   step for every batch that ends. With answers of one token that is half of all steps.
# - `mlx_async` chains steps only while no request waits, and here one usually waits.
# - `multi_step` runs several steps at a time, whatever the answers need.
#
# ## Where the host cannot count
#
# A length can be foreseen. A stop token can't: the host knows it only once it has been sampled. The
# next map has answers that end with a stop token, after as many tokens on average:

# %% tags=["hide-input"]
by_stop = measure_break_even(["overlap", "vllm_async", "overlap_thread"], is_stopped=True)
NotebookPicture(to_svg(by_stop.scene))

# %% [markdown]
# Now the designs that count lose on short answers, too. Each request wastes one row, and a row in a
# batch that runs anyhow costs little. A whole wasted step is expensive. It occurs if all requests of a
# batch end in the same step.
#
# For your own costs use `minisched map --host-ms 3 --device-ms 12`; `minisched calibrate` measures
# them. `minisched sweep` runs any other grid.
