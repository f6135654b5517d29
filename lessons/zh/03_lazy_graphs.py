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
#     title: 两个惰性图
#     topics: [mlx_async, lazy_chain]
#     extras: [lessons, mlx]
#     minutes: 30
# ---

# %% [markdown]
# # 两个惰性图
#
# **问题。** 在 Mac 上，模型用 MLX 运行。它的数组是**惰性**的（lazy）：`a @ b` 什么都不计算，只记下要计算什么（一个**图**，graph），
# 直到有人读取数字。第 1 课用队列让主机和设备重叠，第 2 课用缓冲区存放还不存在的 token。只用惰性数组能做到吗？
#
# **服务器。** 一个回答需要 1,825 ms（第 1 课），运行在有流的 GPU 上。
#
# *你的程序（**host**，主机）交出工作，然后继续，GPU（**device**，设备）计算。在 Linux 上，MLX 在 CPU 的一个线程上计算；想法相同。*

# %%
from time import perf_counter

import mlx.core as mx

from minisched import learn
from minisched.core import Request, SamplingParams
from minisched.devices.registry import open_device
from minisched.loops.mlx_async import mlx_async as mlx_loop
from minisched.loops.run import run_loop
from minisched.models.registry import open_model
from minisched.scheduler.repeat import can_chain

# %% [markdown]
# ## 先预测
#
# 下面，MLX 把两个矩阵相乘。四行代码被计时：构建图，交出它，要数字，再要一次。哪一行慢？如果不交出呢，哪一行慢？

# %% tags=["guess"]
guess = None  # 1 to 4: the line that is slow

# %% [markdown]
# ## 一次运行
#
# 首先是真正的 MLX：下面的时间来自这台机器，所以每次运行都不同。`mx.async_eval` 交出一个图，立刻返回；`item` 要数字，所以等待。

# %%
a = mx.random.normal((512, 512))
mx.eval(a)


def timed(action):
    start = perf_counter()
    action()
    return 1000 * (perf_counter() - start)


lazy = (a @ a).sum()
times = {
    "1 build the graph: a @ a": timed(lambda: a @ a),
    "2 hand it over: mx.async_eval": timed(lambda: mx.async_eval(lazy)),
    "3 want the number: item": timed(lazy.item),
    "4 want it again": timed(lazy.item),
}
learn.bars(times, "ms", row=guess, title="Only the line that wants the number waits")

# %% [markdown]
# 大部分时间在 `item`：主机停在那里。没有 `async_eval` 时也会这样，因为 `item` 会交出还是图的东西；但是那样设备就一直无事可做，直到主机
# 来要。
#
# ## 练习 1：读取之前先交出 · hard
#
# 一个接一个地写 token。`step(y)` 构建 `y` 之后那个 token 的图（`y` 自己也可以是惰性的！），主机为此用 1 ms（图里的 *prepare*）；
# `async_eval(y)` 交出它；`y.item()` 读取它；`host_work(token)` 是主机对一个完成的 token 做的事（*process*）。目前一切都正确，
# 但是主机工作时设备空闲。改变顺序，使设备那里总有一步。交出的步不要多于 `count`（至少为 1）。
# 多构建一个从不交出的图，或者把同一个图交出两次，都不算错。
#
# 检查器用虚拟时钟和 MLX 的调用运行你的代码，并画出它看到的。`learn.hint("generate")` 有帮助。


# %% tags=["exercise"]
def generate(step, first, count, async_eval, host_work):
    tokens, y = [], step(first)
    for _ in range(count):
        async_eval(y)
        tokens.append(y.item())
        host_work(tokens[-1])
        y = step(y)
    return tokens


learn.check("generate", generate)

# %% [markdown]
# ## 一张图：惰性数组与流
#
# 服务器同时对很多请求做同样的事。上面：第 1 课的循环，有流和 FutureMap。下面：SGLang 的 MLX 循环（`event_loop_overlap_mlx`），两者都
# 没有。（它画在同样的泳道上；不同的只是一步建立在什么之上。）稳定的一步，两者用时相同。多出的 20 ms 在两端：链开始之前先读取第一步；在主机看到
# 第十二步是最后一步之前，又发出了第十三步。

# %%
costs = {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "requests": 2, "new_tokens": 12}
streams, lazy_graphs = learn.simulate("overlap", **costs), learn.simulate("mlx_async", **costs)
learn.table(streams, lazy_graphs)

# %%
learn.timing(streams, lazy_graphs)

# %% [markdown]
# 下一张图是 token 的数组，每步一个。条纹的格子是建立在还没有数字的数组上的一步；它下面是直到数字算出来的时间。有两个图在途，这一课因此得名。

# %%
learn.view("lazy_chain", lazy_graphs)

# %% [markdown]
# ## 练习 2：在惰性的 token 上继续链 · hard
#
# 这是那个循环的一轮。`pending` 是设备正在运行的一步。`engine.chain(batch)` 再取一次同样的请求（不可能时给出 None），
# `engine.run_batch(batch, previous)` 发出建立在 `previous` 的 token 之上的一步。
#
# 下面几行是为这个练习写的。它们有两个错误，第一个掩盖了第二个。改正顺序，运行它，读判定。（第二个错误是公开过的：
# [#22416](https://github.com/sgl-project/sglang/pull/22416) 的一段摘录顺序正确，但是没有交出 `previous`。）


# %% tags=["exercise"]
def turn(engine, pending):
    engine.process_batch_result(pending)
    batch = engine.chain(pending.batch)
    following = engine.run_batch(batch) if batch else None
    return following


learn.check("turn", turn)

# %% [markdown]
# 软件包里的几行：`launch_next` 在在途那一步的惰性 token 上构建链上的一步，之后循环才等待那一步。（`why_not_chain` 说明下一步必须等待这些
# token 的情况：grammar 必须先看到它们。这一课的最后一节解释 `chain_extend`。）

# %%
learn.show(
    mlx_loop,
    "if pending_curr is not None",
    "finalize(engine, pending_curr, cache)",
    look_at=("launch_next", "finalize"),
)

# %% [markdown]
# ## 练习 3：链什么时候必须断开？ · 3 lines
#
# 在一条链里，每一步的请求与前一步相同，不问调度器。这不能永远继续下去。在每一步之前，循环问 `may_chain`：
#
# - `batch`：在途那一步里请求的 id；
# - `running`：如果现在问调度器，接下来会 decode 的请求的 id（两个列表里都有的请求，顺序相同）；
# - `waiting`：已经到来、还不在任何一步里的请求的 id；
# - `chunked`：计算了一半的 prompt 的 id，或者 None；
# - `pages_short`：每个请求再多一个 token，还缺多少页内存（0：有空间）。
#
# 目前链从不断开。过于小心也不对：没有原因就断开的链浪费时间。


# %% tags=["exercise"]
def may_chain(batch, running, waiting, chunked, pages_short):
    return True


learn.check("may_chain", may_chain)

# %% [markdown]
# 软件包里的同一个问题。

# %%
learn.show(can_chain, "if scheduler.waiting_queue")

# %% [markdown]
# ## 在真正的惰性数组上
#
# 还是这个循环，不是模拟：MLX 在这台机器上构建、计算和读取，时间是测出来的。模型是它所读取的一切的精确哈希，所以一个错误的输入会改变它之后的全部
# token。


# %%
def two_requests():
    return [Request(rid, range(4), SamplingParams(max_new_tokens=12)) for rid in "ab"]


simulated, real = (
    run_loop("mlx_async", open_device(name), open_model("hash", name), two_requests())
    for name in ("sim", "mlx")
)
print("the same tokens:", simulated.outputs == real.outputs)

# %%
learn.timing(real)

# %% [markdown]
# ## 服务器
#
# 一个回答仍然需要 1,825 ms。在 Mac 上，惰性数组代替流完成同样的工作。

# %%
learn.rush(3)

# %% [markdown]
# ## 在真实系统里
#
# - **mlx-lm** 做练习 1：
#   [`generate_step`](https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py) 构建下一个 token，对它调用
#   `mx.async_eval`，然后才 yield 前一个。
# - **SGLang** 做练习 2 和 3，在
#   [`hardware_backend/mlx/scheduler_mixin.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/hardware_backend/mlx/scheduler_mixin.py)：
#   `event_loop_overlap_mlx` 在 `prev.lazy_tokens` 上继续链，一有请求等待就断开链。值得学习的一个 bug：链上的一步跳过了调度器的状态，
#   所以没有为它的 token 预留内存（[#30093](https://github.com/sgl-project/sglang/issues/30093)）。
# - **一步一次 `async_eval`。** 三步只调用一次时，第一步要和第三步一起才就绪。
# - **什么时候不值得。** 如果一步几乎不占用设备的时间，它就隐藏不了主机的工作；如果每来一个请求就断开链，就没有链。有很多短请求时，上面的图会全是
#   空隙。SGLang 的循环就是这样。软件包的循环有一个选项：在链会断开的地方，无论下一步是什么，都把它调度在在途那一步之后
#   （`mlx_async:chain_extend=true`）。它的代价和收益在 `lessons/site/docs/mlx_caches.md` 里。
#
# ## 答案，以及其他做法
#
# <details><summary>练习 1：generate</summary>
#
# 在循环之前交出第一步。在循环里：在 `y` 上构建下一个，需要时交出它，读取 `y`，工作，然后让 `y` 成为下一个。mlx-lm 把同样的东西写成生成器，读取在
# `yield` 之后。或者在读取一个之前交出*两个*：这里不会更快，文本结束时多浪费一步。
#
# </details>
#
# <details><summary>练习 2：turn</summary>
#
# 先 chain，用 `pending` 发出，之后才处理 `pending`。也可以不交出那一步，由 relay 自己记住上一步；那么没有循环会忘记它，但是两个模型不能共用
# 一个 relay。或者每一行带着自己的惰性 token，像 MLX 的缓存那样。
#
# </details>
#
# <details><summary>练习 3：may_chain</summary>
#
# `not waiting and chunked is None and batch == running and pages_short == 0`。另外两种做法：每次都问调度器，无论它回答什么都接到
# 链上（`chain_extend=true`）。或者固定地连续若干步，之后才查看，像 multi-step 调度那样（第 9 课）：这期间到来的请求要等待。
#
# </details>
#
# **下一课：** 到目前为止，批里的请求由软件包选择。从第 4 课起（英文），由你选择。
#
# 在你自己的机器上：`minisched compare --loops overlap,mlx_async`，用真正的模型时
# `minisched compare --device mlx --model smollm2`。在那之前，`minisched fetch smollm2` 取来权重；只有这一步需要 torch
# （`pip install 'minisched[torch]'`）。
