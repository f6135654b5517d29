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
#     title: 还不存在的 token
#     topics: [future_map, token_pool, mini_normal, mini_overlap]
#     extras: [lessons]
#     minutes: 30
# ---

# %% [markdown]
# # 还不存在的 token
#
# **问题。** 为了让 GPU 一直忙，主机在第 N 步还在运行时就发出第 N+1 步（第 1 课）。但是第 N+1 步的输入*正是*第 N 步将要选出的 token。
# 主机必须发送数字，而且必须现在发送。用哪个数字代表一个未知的 token？
#
# **服务器。** 一个回答需要 1,825 ms（第 1 课）。它的每个 token 都正确吗？
#
# *你的程序（**host**，主机）把工作放进 GPU 的队列，GPU（**device**，设备）按顺序处理。设备有自己的内存。一步留在那里的值，下一步可以
# 直接读取，不用问主机。*

# %%
from minisched import learn
from minisched.loops.mini import mini_overlap
from minisched.relay import FutureMapPool, FutureMapRing, TokenPool

# %% [markdown]
# ## 先预测
#
# 代替未知的 token，*你*会发送哪个数字：零，最后一个已知的 token，请求的名字，还是一个地址？其中哪一个不是任何真实的 token？把你的数字写进下
# 一个单元。

# %% tags=["guess"]
guess = None  # the number that you would send

# %% [markdown]
# ## 一次运行
#
# 两个请求，重叠运行。表里是主机为最初几步发送的输入，以及每一步将要选出的 token 的槽位（slot）。

# %%
run = learn.simulate("overlap", requests=2, new_tokens=6)
learn.inputs_sent(run, guess=guess)

# %% [markdown]
# 这就是办法。**负数**不是 token（0 是）：-1 表示*“这个 token 在槽位 1，到那里再查”*。这些槽位在设备内存里的一个小缓冲区中，叫做
# **FutureMap**。设备读取槽位 1 的时候，前一步已经写好了它，因为队列保持顺序。
#
# ## 一张图
#
# 每一行是一个槽位，每一列是一步。深色格子是把 token 存进槽位的一步。浅色格子是读取它的一步，不经过主机。读取之后，槽位被另一个 token
# **重用**（同一行的下一个深色格子）：槽位轮流分配，一圈又一圈。

# %%
learn.view("future_map", run)

# %% [markdown]
# ## 练习 1：查找 · 3 lines
#
# 这是设备在每一步里最先做的事。`ids` 是主机发送的输入，其中一些是负数；`token_ids_map[s]` 是槽位 `s` 的内容。返回真正的 token。目前占位
# 符自己进入了模型。


# %% tags=["exercise"]
def resolve(ids, token_ids_map):
    return ids


learn.check("resolve", resolve)

# %% [markdown]
# 软件包的版本不用 `if` 做同样的事：GPU 对全部元素一起做一件事，所以它查找*每一个* id（不是占位符的读取槽位 0），然后逐个元素选择。`xp`
# 是设备的数组库。

# %%
learn.show(FutureMapRing.resolve_future, "xp = ", look_at=("where",))

# %% [markdown]
# ## 练习 2：分配槽位 · 3 lines
#
# 每个发出的步为其中的每个请求需要一个槽位。`future_ct` 是这一圈里到目前为止分配的槽位数；返回这些槽位（从 1 开始：槽位 0 会是 token 0）
# 和新的计数。缓冲区是有限的：计数到达 `limit` 时，槽位重新从 1 开始。只有一个批的第一个槽位必须在限度之内：缓冲区比限度长，所以一个批的槽位
# 可以连在一起。（稍早一点重新开始，或者逐个槽位重新开始，也可以。）


# %% tags=["exercise"]
def alloc(future_ct, num_reqs, limit):
    slots = range(future_ct + 1, future_ct + 1 + num_reqs)
    return slots, future_ct + num_reqs


learn.check("alloc", alloc)

# %% [markdown]
# SGLang 的做法：只有一个批的*开头*回绕，所以它的槽位连在一起。

# %%
learn.show(FutureMapRing.alloc_future_indices, "start = ", look_at=("% self.future_limit",))

# %% [markdown]
# ## 练习 3：环要有多大？ · hard
#
# 一个槽位只有在它的 token 被读取之后才能重用；如果更早被占用，它就被**套圈**（lapped），token 就丢失了。但是它什么时候被读取？长的
# prompt 分成 **chunk**（块）计算，prompt 优先，每个块也占用一个槽位。一个
# token 已经就绪的请求，可能要等一整队的块，才轮到它的下一步，而环一直在转。
#
# 说出环可以在多少个槽位处回绕，使未读的 token 永远不被覆盖：最多 `max_running_requests` 个请求同时运行，每个最多 `context_len` 个
# token，块的大小是 `chunk`；并且不超过所需的两倍。（不必数得精确：可以把这个请求自己也算作排在前面的请求，再为每个请求加上最多四个槽位；这
# 从不算太多。）目前的代码是 SGLang 最初的做法
# （[#10715](https://github.com/sgl-project/sglang/pull/10715)，`FutureMap`）。运行它，看看红色的部分：那里一个请求的 token
# 被另一个请求拿走了。（在这些运行里 `context_len` 是 19。）


# %% tags=["exercise"]
def limit(max_running_requests, context_len, chunk):
    return 3 * max_running_requests


learn.check("limit", limit)

# %% [markdown]
# ## 服务器
#
# 一个回答仍然需要 1,825 ms。这一课保护它的 token：槽位被套圈会改变 token，而不改变时间。

# %%
learn.rush(2)

# %% [markdown]
# ## 在真实系统里
#
# 你刚才看到的 bug 在实践中出现过。SGLang 把环变大了（[#13713](https://github.com/sgl-project/sglang/pull/13713)：
# `max_running_requests * (3 +
# ceil(context_len / chunk))`）。sglang-jax 后来也遇到了它：同时有很多请求时，它对小学数学题（GSM8K）的正确率从 95.5 % 降到 70 %
# （[#1487](https://github.com/sgl-project/sglang-jax/issues/1487)，
# [#1504](https://github.com/sgl-project/sglang-jax/pull/1504)）。没有崩溃，没有警告：只是 token 错了。
#
# 后来 SGLang 去掉了环（[#25862](https://github.com/sgl-project/sglang/pull/25862)）。请求在请求表里本来就有一行，行号就是它的
# 槽位。不分配槽位，所以没有槽位会被套圈。（主机还不知道的 token 是 `None`。）

# %%
learn.show(FutureMapPool.bind, "ids = [", "]", look_at=("-row",))

# %% [markdown]
# mini-sglang 更进一步：它把*全部* token 放在设备上，在一个 **token pool** 里，每个请求一行，每个位置一个槽位。prompt 先复制到那里；之后
# 一步在前一步写入的地方读取输入，主机不再发送 token。

# %%
learn.show(TokenPool.bind)

# %% [markdown]
# 它的循环是最短的。`mini_normal` 轮流工作，`mini_overlap` 保留前一步；周围的引擎相同。

# %%
learn.show(mini_overlap, "while True")

# %% [markdown]
# 其他系统对同一个问题有其他答案。这里同样的请求用每一种运行：token 相同，时间几乎相同（其中一个先复制 prompt）。

# %%
relays = ["ring", "pool", "token_pool", "prev_sampled", "request_state", "fill_device"]
runs = [learn.simulate("overlap", requests=2, new_tokens=6, relay=relay) for relay in relays]
learn.table(*runs, names=relays)

# %% [markdown]
# | 这里 | 在哪个系统 | token 在哪里等待 |
# |---|---|---|
# | `ring` | #25862 之前的 SGLang，[`managers/overlap_utils.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/overlap_utils.py) | 在环的下一个槽位 |
# | `pool` | 今天的 SGLang，同一个文件 | 在它那一行的槽位 |
# | `token_pool` | [mini-sglang](https://github.com/sgl-project/mini-sglang)，`scheduler/scheduler.py` | 在它的位置，在设备上全部 token 的副本里 |
# | `prev_sampled` | [vLLM](https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu_model_runner.py)，`prev_sampled_token_ids` | 在上一步的输出里；主机写 -1 |
# | `request_state` | vLLM 的新 runner，[`v1/worker/gpu/states.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/worker/gpu/states.py) | 在它的请求的槽位里；主机什么也不写 |
# | `fill_device` | MindIE-LLM，`plugins/plugin_manager.py`，一条实验路径 | 同上，按行填入 |
#
# 练习 1 最初的样子也是一个公开过的 bug：在 [vLLM #46899](https://github.com/vllm-project/vllm/pull/46899) 里，过时的 -1 占位符
# （草稿的）进入了模型。
#
# ## 答案，以及其他做法
#
# <details><summary>练习 1：resolve</summary>
#
# `[token_ids_map[-token] if token < 0 else token for token in ids]`。不用 `if` 时是
# `where(ids < 0, map[clamp(-ids, 0)], ids)`，GPU 更喜欢这样。vLLM 对全部未知的 token 用 -1，并且*散射*（scatter）：它记住上一次
# 输出的哪些行属于哪里，在前向计算之前把 token 写到这些 -1 上。
#
# </details>
#
# <details><summary>练习 2：alloc</summary>
#
# 同样的槽位，以及 `(future_ct + num_reqs) % limit`。另外两种做法：一直计数，在命名槽位时取 `count % limit`；或者什么都不分配，让请求
# 的行就是它的槽位。最后一种是 SGLang 今天的做法。
#
# </details>
#
# <details><summary>练习 3：limit</summary>
#
# `max_running_requests * (3 + ceil(context_len / chunk))`，SGLang 就是这样。更紧的：其他请求全在前面，每个带着它全部的块，再加上你
# 自己的槽位，`(m - 1) * ceil((n - 1) / c) +
# 1`。或者让问题消失：主机一有值就用主机的值，那么三步的槽位就够了。
#
# </details>
#
# **下一课：** [第 3 课](03_lazy_graphs.py)完全不需要缓冲区。在那里，还不存在的 token 自己就是一个对象。
