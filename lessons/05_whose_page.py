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
#     title: Whose page is it?
#     topics: [radix_cache, page_allocator]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # Whose page is it?
#
# **The question.** Six people ask the same assistant. Each prompt begins with the same 200 tokens of
# instructions ("You are a helpful ..."), and then come ten of their own. Must the device read the
# instructions six times? And if it reads them once: which request owns that memory, and until when?
#
# **The server.** An answer takes 1,576 ms (lesson 4). Each question begins with the same 200 tokens.
#
# *The device keeps keys and values (**KV**) for each token that it has read of a prompt. That
# memory comes in **pages** of a few tokens. A request that runs has a row in the **request table**,
# which lists its pages in order, as a page table does for a process.*
#
# ## Predict first
#
# The six prompts have 1,260 tokens in all. How many have to be computed, if what is in memory is
# found again? And what does the KV of a token depend on: on that token, or on all before it, too?

# %%
import minisched as ms
from minisched import learn
from minisched.core import Request, SamplingParams
from minisched.memory.pool import LeasePool
from minisched.memory.radix_cache import EvictableLeaves, RadixCache

# %% tags=["guess"]
guess = None  # prompt tokens that are computed, of 1,260

# %% [markdown]
# ## A run
#
# The same six requests, 30 ms apart, without and with the **prefix cache**.


# %%
def asked(rid, prompt, answer, at_ms):
    params = SamplingParams(max_new_tokens=answer, ignore_eos=True)
    return Request(rid, prompt, params, at_ms * 1_000_000)


instructions = list(range(200))
people = [asked(f"p{n}", [*instructions, *range(200 + n, 210 + n)], 8, 30 * n) for n in range(6)]
rows, counts = [], {}
for name, off in {"without": True, "with": False}.items():
    run = ms.run(people, "overlap", config={"disable_radix_cache": off})
    counts[name] = computed = sum(
        m.attrs["extend_len"] for m in run.trace.marks if m.name == "admit"
    )
    rows.append((name, f"{computed:,}", f"{run.metrics.ttft.p50 / 1e6:.1f} ms"))
learn.Table(("prefix cache", "prompt tokens computed", "first token, median"), tuple(rows))

# %%
learn.bars(counts, "tokens", guess, "The prefix cache saves four of five prompt tokens")

# %% [markdown]
# 260: the first 210, and then ten each. The answers are the same, because a token's KV depends on
# all tokens before it, and those are the same. That is why only a *beginning* can be shared. (Of a
# prompt that is in the cache as a whole, the last token is computed all the same: without it there is
# nothing to choose the next one from.)
#
# ## A picture: pages and their owners
#
# Now a run that is small enough to look at: 36 pages of one token. `abc` and `afg` begin alike. Then
# comes `x`, which shares no prefix and needs room; and at last `abd`, which begins like `abc`.

# %%
A, B, C, F, G = [1, 2, 3, 4], [5, 6, 7], [8, 9], [20, 21, 22], [30, 31]
small = [
    asked("abc", A + B + C, 6, 0),
    asked("afg", A + F + G, 6, 20),
    asked("x", range(100, 112), 5, 150),
    asked("abd", A + B + [40, 41], 4, 230),
]
run = ms.run(small, "overlap", config={"kv_tokens": 36})
learn.view("page_allocator", run)

# %% [markdown]
# Dark boxes are a request's, light ones the cache's, and dotted ones are the cache's without a reader.
# Where the colour of a page changes, its owner changes: the request fills it, the cache takes it
# over, another request reads it, and in the end it is free again.
#
# ## A picture: the tree
#
# The cache is a **radix tree**: each box is a run of tokens with their pages, and a prompt is a way
# down from the root. Follow the four moments: `afg` comes and the box is *split* where the two part;
# what it computed is *inserted*; `x` needs room, and the end of an answer is *evicted*; `abd`
# ends and leaves a branch of its own.

# %%
learn.view("radix_cache", run)

# %% [markdown]
# ## The lines it is about
#
# A request that starts opens a **lease**: a row of the table, which begins with the pages of the
# prefix that was found. From the marked line on, they may not be evicted.

# %%
learn.show(LeasePool.open, "lease = self", look_at=("inc_lock_ref",))

# %% [markdown]
# ## Exercise 1: match · 3 lines
#
# A prompt has come to an edge of the tree. `edge` are the tokens on it, always whole pages of
# `page_size` tokens; `tokens` are those that are left of the prompt. How many **whole pages** may be
# shared? As it stands, the first request's pages are given to every request. Run it, and see which
# answer is wrong then.


# %% tags=["exercise"]
def shared_pages(edge, tokens, page_size):
    return min(len(edge), len(tokens)) // page_size


learn.check("shared_pages", shared_pages)

# %% [markdown]
# ## Exercise 2: lock · 3 lines
#
# A request reads the prefix that ends at `node`. Which nodes of the tree must not be evicted
# meanwhile? Give them in a list; the package adds one lock to each of them now, and takes it back
# when the request ends. `node.parent` is the node above; the root's parent is None. The root has no
# pages, so leave it out.


# %% tags=["exercise"]
def to_lock(node):
    return [node]


learn.check("to_lock", to_lock)

# %% [markdown]
# The same in the package. A page is **protected** while a request has a lock on it, otherwise
# **evictable**; evictable pages count as free when a request wants to start.

# %%
learn.show(RadixCache.inc_lock_ref, "for above in", look_at=("lock_ref += 1",))

# %% [markdown]
# ## Exercise 3: evict · 3 lines
#
# Memory is short, and something cached must go. `leaves` are the ends of all branches; each has
# `num_pages`, `lock_ref` (how many locks) and `last_used` (the larger, the later). Give back the one
# that goes. You are asked again until there is enough. As it stands, any leaf may go, also one that
# a request reads. As few tokens as possible should have to be computed again. Guess from the past: a
# prefix that was not used for long is not likely to come again.


# %% tags=["exercise"]
def evict(leaves):
    return leaves[0]


learn.check("evict", evict)

# %% [markdown]
# The package does not look at all leaves each time. It keeps them in a heap, and an entry that is
# no longer true is put right when it comes up:

# %%
learn.show(EvictableLeaves.pop, "while self._heap", look_at=("worth ==",))

# %% [markdown]
# ## The server
#
# The 200 tokens of instructions are computed once. An answer takes 751 ms instead of 1,576 ms.

# %%
learn.rush(5)

# %% [markdown]
# ## Solutions, and other ways
#
# <details><summary>Exercise 1: shared_pages</summary>
#
# Count while both are equal, then `// page_size`. *Another way*: the package compares blocks that
# double, because a Python loop over 30,000 tokens takes milliseconds. *A third*: vLLM has no tree.
# It hashes each page together with all before it and looks the hash up: no edges, no splits, and a
# prefix ends only where a page does.
#
# </details>
#
# <details><summary>Exercise 2: to_lock</summary>
#
# Walk up `parent`, and collect. *Another way*: lock the last node alone, and never evict one that
# has children. The pages are safe then, but the number of free ones is unknown: the sum of evictable
# pages counts the parents too. *A third*: vLLM counts on each block for itself.
#
# </details>
#
# <details><summary>Exercise 3: evict</summary>
#
# Of those without locks the least recently used. *Another way*: the least often used
# (`--radix-eviction-policy lfu`), which keeps the instructions that all prompts share. *A third*: the
# oldest (`fifo`), which needs no clock. Which one computes least depends on the requests.
#
# </details>
#
# ## In the real systems
#
# - **SGLang**:
#   [`mem_cache/radix_cache.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/mem_cache/radix_cache.py),
#   with `match_prefix`, `insert`, `inc_lock_ref`, `dec_lock_ref` and `evict` as here.
# - **vLLM**: hashed blocks, in
#   [`v1/core/block_pool.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/core/block_pool.py).
# - **A page with two owners** is a bug that stays hidden until an answer is wrong. In
#   [mini-sglang #111](https://github.com/sgl-project/mini-sglang/issues/111) a request that is given
#   up while it runs releases its pages twice. In
#   [vLLM #33377](https://github.com/vllm-project/vllm/issues/33377) it happens during a transfer.
#   `minisched museum` has both.
#
# On your own machine: `minisched compare --page-size 4`, and in the page it writes, the view of the
# pages. The next lesson, [lesson 6](06_full.py), begins where this one ends: everything is locked, and one
# more page is wanted.
