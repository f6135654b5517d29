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
#     title: 气泡
#     topics: [serial, overlap, overlap_thread]
#     extras: [lessons]
#     minutes: 35
# ---

# %% [markdown]
# # 气泡
#
# **问题。** 语言模型一次写一个 token。对每个 token，你的程序决定下一步运行什么，GPU 计算，然后你的程序查看结果。你的程序思考时，昂贵的
# GPU 在做什么？
#
# **服务器。** 一个回答需要 2,626 ms（第 0 课）。主机和设备轮流工作。
#
# *GPU 是卡上的第二台计算机。你的程序（**host**，主机）把工作放进它的队列，然后继续；GPU（**device**，设备）按顺序处理这个队列。这样的
# 队列叫做 **stream**（流）。主机只在要结果的地方等待。*
#
# 这里不需要 GPU：设备是模拟的，有自己的时钟，所以每次运行的数字都相同。

# %%
from minisched import learn
from minisched.export.notebook import show as step_through
from minisched.loops.overlap import overlap as overlap_loop
from minisched.loops.overlap_thread import overlap_thread as thread_loop
from minisched.loops.serial import serial as serial_loop

# %% [markdown]
# ## 先预测
#
# 对每个 token，主机需要 6 ms，设备 10 ms，把结果复制回主机 1 ms。主机和设备轮流工作。从一个 token 到下一个 token 是多少毫秒？设备
# 忙的时间占多少？把第一个数写进下一个单元；图在那里有一条虚线。

# %% tags=["guess"]
guess = None  # ms from one token to the next

# %% [markdown]
# ## 一次运行
#
# 两个请求各要十二个 token。一 **step**（步）为两者各计算下一个 token。主机在一步之前工作（谁在下一步运行？），在一步之后也工作（这个
# token 是什么意思？）。

# %%
costs = {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "requests": 2, "new_tokens": 12}
serial = learn.simulate("serial", **costs)
learn.table(serial)

# %% [markdown]
# 十二步用 204 ms：每个 token 17 ms，其中设备忙 10 ms。
#
# *Makespan*：从运行开始到结束。*Device idle*：设备的第一项和最后一项工作之间的空隙。*Same tokens*：与第一行相同。
#
# ## 一张图
#
# 这次运行中间的三步。时间从左到右。上面的泳道是主机，下面的泳道是设备。一种颜色代表一步：主机*调度*并发出它（plan），设备*运行*它（run），
# 主机再*处理*它的 token（read）。斜线的空隙就是**气泡**（bubble）：设备无事可做，因为它先等 token 的复制，再等主机。（用 `detail=True` 时，
# 每个阶段有自己的框，复制有自己的泳道。）

# %% tags=["costs"]
learn.timing(serial, guess_ms=guess)

# %% [markdown]
# 为什么主机不能一次把十二步都放进队列？因为每一步的输入是前一步选出的 token。这就是语言模型与图片不同的地方。
#
# ## 源码
#
# 刚才运行的循环，从已安装的软件包里读出。标记的一行要结果，所以主机停在那里，之后才考虑下一步。

# %%
learn.show(serial_loop, "while True", look_at=("process_batch_result",))

# %% [markdown]
# ## 练习 1：让它们同时工作 · hard
#
# `run_batch` 只把一步放进队列，立刻返回。所以主机可以在要这一步的结果*之前*发出下一步。（下一步需要一个还不存在的 token。这里由引擎处理；
# 下一课讲怎么做。）
#
# 下面是串行循环。`recv_requests` 接收已经到来的请求，`on_idle` 睡眠到下一个请求到来。`yield` 使它成为*生成器*：一个在那里暂停、以后
# 继续的函数。循环自己不会结束：全部请求完成后，引擎停止它。
#
# 把它改成晚一轮处理结果，这时设备正忙于下一步。你大约需要四行，以及一个跨越一轮的变量。
#
# - `engine.get_next_batch_to_run()` 给出一个批，没有可运行的东西时给出一个假值。
# - 按发出的顺序处理各步的结果，每步一次。
# - 同时有两步在途就够了。`on_idle` 用于没有别的事可做的轮次。
#
# 检查器用 `minisched check` 的**法则**（law）检查你的循环，每个循环都必须遵守它们：正确的 token（*identity*），每个请求都会结束，内存
# 不丢失，没有毫无进展的轮次（*livelock*），等等。
#
# 如果违反了一条法则，判定会指出它，并给出找到的最小的例子：每个请求在哪一轮到来，它的 prompt（这里 token 是数），新 token 的数量，以及设置，
# 例如以 token 计的内存（`kv_tokens`）和同时运行的请求数（`max_running_requests`）。*Is given up* 表示客户端挂断了。卡住了？在自己的
# 单元里运行 `learn.hint("my_loop")`，次数不限。


# %% tags=["exercise"]
def my_loop(engine):
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            pending = engine.run_batch(batch)
            engine.process_batch_result(pending)
        else:
            engine.on_idle()
        yield


learn.check("my_loop", my_loop)

# %% [markdown]
# ## 同样的请求，重叠
#
# 这是 SGLang 的循环处理同样的请求，画在串行循环的下面。设备计算一步时，主机处理前一步的结果，并调度后一步。token 相同。

# %%
overlapped = learn.simulate("overlap", **costs)
learn.table(serial, overlapped)

# %%
learn.timing(serial, overlapped)

# %% [markdown]
# 下面是做这件事的几行。`result_queue` 就是跨越一轮的变量；标记的几行先发出，后处理。其他几行处理特殊情况。

# %%
learn.show(
    overlap_loop,
    "delay = engine",
    "last_batch = batch",
    look_at=("result_queue.append", "the device runs"),
)

# %% [markdown]
# SGLang 最早的重叠用**线程**做同样的事：一个线程调度，另一个线程发出并等待（`overlap_thread`）。Python 同一时刻只让一个线程运行，所以
# 两个线程互相妨碍，后来一个循环取代了它们。

# %%
learn.show(thread_loop, "while True", look_at=("the thread launches",))

# %% [markdown]
# 如果愿意，可以一步一步走过两次运行：用方向键，或者拖动。旁边是每个循环的源码，以及它当时所在的行。

# %%
step_through([serial, overlapped], height=1000)

# %% [markdown]
# ## 练习 2：一步有多长？ · hard
#
# 在已经稳定的运行里，从一步到下一步平均需要多长时间？每一步主机需要 `host` ms，设备 `device` ms，复制 `copy` ms。`in_flight` 是可以
# 已经发出而尚未处理的步数：串行循环是 1，重叠是 2，再多提前发出一步的循环是 3。检查器用每种耗时的组合运行一次，与你的公式比较，并画出第一个不同的。（它画出那次运行的三步。
# 如果各步一长一短，三步的平均不完全等于整个运行的平均，而后者才算数。）


# %% tags=["exercise"]
def step_time(host, device, copy, in_flight):
    return host + device + copy


learn.check("step_time", step_time)

# %% [markdown]
# ## 重叠何时有利，何时打平，何时吃亏？
#
# 请求以**停止 token**（stop token）结束：模型把答案标记为完成。12 个新 token 和 3 个新 token 时，重叠各快多少倍？（网站的实验室里有
# 滑块。）

# %%
for new_tokens in (12, 3):
    print(f"{new_tokens} new tokens   " + "".join(f"device {d:>2} ms   " for d in (2, 6, 10, 20)))
    for host in (1, 6, 10, 20):
        ratios = []
        for device in (2, 6, 10, 20):
            costs = {"host_ms": host, "device_ms": device, "new_tokens": new_tokens}
            runs = [learn.simulate(loop, requests=1, stop=True, **costs).trace.end
                    for loop in ("serial", "overlap")]  # fmt: skip
            ratios.append(runs[0] / runs[1])
        print(f"host {host:>2} ms      " + "".join(f"{ratio:>7.2f} x      " for ratio in ratios))

# %% [markdown]
# ## 练习 3：让它吃亏 · 3 lines
#
# 重叠不是免费的。它发出一步时，还没有看到前一个 token。如果那是停止 token，这一步就浪费了。找出一组耗时，使重叠比串行*更慢*，慢 2 % 以上。


# %% tags=["exercise"]
def losing_costs():
    return {"host_ms": 6, "device_ms": 10, "copy_ms": 1, "new_tokens": 12}


learn.check("losing_costs", losing_costs)

# %% [markdown]
# 原因是停止 token，主机无法预见它，所以对每个提前发出的循环都一样。如果请求因**长度**而结束，主机可以计数：`vllm_async`（vLLM 的
# `AsyncScheduler`）这样做，SGLang 0.5.23 版的 `overlap` 也这样做。0.5.21 版仍然发出那一步。（没有读过 0.5.22。）

# %%
by_length = {"host_ms": 1, "device_ms": 100, "requests": 1, "new_tokens": 12}
as_of_0_5_21 = "overlap:ring:enable_skip_finishing_decode=false"
loops = ("serial", as_of_0_5_21, "overlap", "vllm_async")
learn.table(*(learn.simulate(loop, **by_length) for loop in loops))

# %% [markdown]
# ## 服务器
#
# 用重叠循环，一个回答需要 1,825 ms，而不是 2,626 ms。（每四个回答中有一个必须遵守规则，循环在那里仍
# 要等待：见第 10 课。）

# %%
learn.rush(1)

# %% [markdown]
# ## 在真实系统里
#
# | 系统 | 轮流 | 重叠 |
# |---|---|---|
# | SGLang，[`managers/scheduler.py`](https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/managers/scheduler.py) | `event_loop_normal` | `event_loop_overlap`，从 [#2067](https://github.com/sgl-project/sglang/pull/2067) 起是默认 |
# | vLLM，[`v1/engine/core.py`](https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/core.py) | `step` | `step_with_batch_queue`，从 [#27614](https://github.com/vllm-project/vllm/pull/27614) 起在一块 GPU 上是默认 |
# | mini-sglang，[`scheduler/scheduler.py`](https://github.com/sgl-project/mini-sglang/blob/main/python/minisgl/scheduler/scheduler.py) | `normal_loop` | `overlap_loop` |
#
# - **主机真的这么慢吗？** 在 [sglang-jax #67](https://github.com/sgl-project/sglang-jax/issues/67) 里，7B 模型的一个
#   decode 步用 7 ms，调度它用 15 ms。
# - **吃亏的情况是真的。** 在 [sglang #2558](https://github.com/sgl-project/sglang/issues/2558) 里，一个用户关掉重叠后更快。
#   *第一个* token 也来得更晚：主机在查看它之前发出下一步（[#2067](https://github.com/sgl-project/sglang/pull/2067)）。
# - **开启不等于重叠。** 在 [vllm-omni #4442](https://github.com/vllm-project/vllm-omni/issues/4442) 里，选项是开的，而
#   trace 看起来仍然是串行的。像在这里一样，看 trace。
#
# ## 答案，以及其他做法
#
# <details><summary>练习 1：循环</summary>
#
# ```python
# def my_loop(engine):
#     last = None
#     while True:
#         engine.recv_requests()
#         batch = engine.get_next_batch_to_run()
#         pending = engine.run_batch(batch) if batch else None
#         if last:
#             engine.process_batch_result(last)
#         elif not batch:
#             engine.on_idle()
#         last = pending
#         yield
# ```
#
# 另外两种做法。像 SGLang 那样用一个步的 `deque`：发出时 append，处理时 `popleft`；队列更长时，在途的步更多，几块 GPU 的流水线需要这样
# （第 8 课）。或者把两轮写成一轮：在下一轮的*开头*、`run_batch` 之后处理 `last`；顺序相同，只是从圆圈的另一点开始写。
#
# </details>
#
# <details><summary>练习 2：公式</summary>
#
# `max(host, device, copy, (host + device + copy) / in_flight)`。一步在途时最后一项总是最大的；两步在途时，一个 token 走完一圈的
# 时间由两个分担。也可以画图得到：把两个 token 放在这么长的圆圈上，在一条泳道上不允许超越。或者先测量，再从表里猜；检查器不在意。
#
# </details>
#
# <details><summary>练习 3：吃亏的耗时</summary>
#
# 慢的设备，几乎没有主机的工作，短的答案：`host_ms=1, device_ms=20, new_tokens=3`。其他吃亏的方式：只有一个 token，浪费的一步就是全部的
# 一半；或者复制与设备一样长，停止 token 来得更晚。
#
# </details>
#
# **下一课：** 你提前发出的那一步需要一个还不存在的 token。它从哪里得到它？[第 2 课](02_future_map.py)。在你自己的机器上，
# `minisched compare` 画出两个循环。
