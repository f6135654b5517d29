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
#     title: 从零开始
#     topics: []
#     extras: [lessons]
#     minutes: 25
# ---

# %% [markdown]
# # 从零开始
#
# **问题。** 你有一块 GPU，想要一百个词的文本。为什么不能把全部工作交给 GPU，然后去吃午饭？
#
# **服务器。** 整个课程里，你的团队只有一台服务器，它一次只回答一个请求。25 个人在半秒内提问，一个回
# 答从提问到最后一个 token 平均需要 8,429 ms。每一课要么降低这个数字，要么保护它。
#
# 这一课从一张白纸开始，写出其他课程的全部基础：二十行的 **device**（设备），以及在它上面写出文本的循环。没有隐藏的部分，也不需要
# GPU。
#
# *四个词。* **Host**（主机）是你的程序，在 CPU 上运行。**Device**（设备）是卡上的第二台计算机，即 GPU。**Token** 是词的一部分，
# 这里用一个数表示。**Model**（模型）读取到目前为止的全部 token，给出下一个。

# %%
from minisched import learn, nano
from minisched.devices.sim import SimStream

# %% [markdown]
# 整个课程讲的是一张图。`minisched/nano.py` 用 300 行写出一个完整的引擎。下一个单元运行它：同样四个请求，先用串行循环，再用重叠循环。
# 一个字符是一毫秒，一个数字是一步的编号。

# %%
nano.main()

# %% [markdown]
# 在串行循环里，设备（`forward`）等待主机（`schedule` 和 `process`）。在重叠循环里，它只在开头等待。现在不必读这个文件：各课会写出它的
# 每一部分。
#
# ## 先预测
#
# 对每个 token，设备需要 10 ms，主机需要 6 ms。它们轮流工作。多少毫秒之后四个 token 都完成？把 `None` 换成你的数字，然后运行这个单元。
# 下面的图在那里有一条虚线。

# %% tags=["guess"]
guess = None  # ms for four tokens

# %% [markdown]
# ## 一次运行
#
# 你的设备最后会这样工作，循环也由你来写：上面是主机的泳道，下面是设备的泳道。一种颜色代表一个任务，它的时间等于模型计算一个 token 的时间。
# 主机先*调度*这个任务（plan，即 `schedule`：下一步运行什么？），设备*运行*它（run，即 `forward`），主机再*处理*它的结果（read，即
# `process`：这个 token 是什么意思？）。然后轮到下一个任务。

# %%
serial = learn.simulate("serial", requests=1, new_tokens=4, copy_ms=0)
learn.timing(serial, whole=True, guess_ms=guess)

# %% [markdown]
# 斜线部分是昂贵的设备什么都不做的时间。记住这张图。现在从一张白纸开始。
#
# ## 练习 1：设备就是一个队列和一个时钟 · hard
#
# 这里不在 GPU 上计算，只记录它的时间。`now` 是主机的时钟，单位是 ms。
#
# - `work(ms)`：主机做自己的事，用这么长时间。
# - `launch(fn, ms)`：把一个任务放进队列。*主机不等待*。任务在它已经发出、并且前面的任务全部完成时开始，用 `ms` 的时间。按发出的顺序
#   调用 `fn()` 得到它的值（可以在 `launch` 里调用：模拟的只是时间），并返回一个东西，使 `wait` 能认出这个任务。
# - `wait(op)`：主机停下来，直到这个任务完成，并得到它的值。主机可以再次等待同一个任务：那时任务已经完成，值也相同。
#
# 目前的设备没有队列：任务运行时，主机什么都不做。


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
# 卡住了？在自己的单元里运行 `learn.hint("Device")`，次数不限。正确答案连同它的整个单元保存在工作文件夹的 `mine.py` 里。
#
# 一个 10 ms 的任务，加上主机 6 ms 别的事：等待之后，主机的时钟是 10；如果是 16 ms 的事，就是 16。如果主机工作的时间比任务长，它就完全不用等。这就是*异步*工作的全部想法，在你的代码里就是两个 `max`。
#
# 其他课程的设备与它相同，只是多一些东西：几个队列（**stream**，流），互相等待的 op，以及对每件事的记录。

# %%
learn.show(SimStream.launch)

# %% [markdown]
# ## 练习 2：一个 token 接一个 token · 3 lines
#
# 模型读取到目前为止的*全部* token，给出下一个。在设备上，一个 token 用 10 ms；然后主机对每个 token 用 6 ms 做自己的工作（转成文本，
# 发给客户端，决定下一步运行什么）。下面的代码在第一个 token 出来之前就发出了全部任务。运行它，看看这些 token，然后改正。（`device`
# 与你写的一样；`fn` 读到的是发出时的内容。）


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
# 所以你不能去吃午饭：每个 token 都是下一个 token 的输入。1,000 个像素的图片可以在一步里算完；1,000 个 token 的文本是 1,000 步，
# 一步接一步。
#
# ## 练习 3：但是主机必须先看到它吗？ · hard
#
# 下一步需要这个 token。它需要*主机*吗？设备有自己的内存，一个任务可以在那里读到前一个任务留下的内容。下面的 `step` 就是这样：它不需要主机
# 的任何东西。目前主机仍然先等待，再发出下一个任务，所以设备空闲。
#
# 让一个任务提前：在等待前一个任务*之前*发出它。不要提前两个：任何一个 token 都可能是文本的结尾，之后发出的任务都是浪费。所以也不要发出超过
# `count` 个任务（它至少为 1）。


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
# ## 软件包里的同一件事
#
# 你最后写的函数，SGLang 叫做 `event_loop_overlap`。下面是一个请求在软件包的设备上的两种运行方式。

# %%
ahead = learn.simulate("overlap", requests=1, new_tokens=8, copy_ms=0)
behind = learn.simulate("serial", requests=1, new_tokens=8, copy_ms=0)
learn.timing(behind, ahead)

# %%
learn.table(behind, ahead)

# %% [markdown]
# （*Makespan*：从开始到结束的时间。）
#
# 还缺什么？很多人同时提问，所以一步为*每个*人计算一个 token（**continuous batching**，连续批处理，
# [Orca](https://www.usenix.org/conference/osdi22/presentation/yu)，2022）。每一步的请求都可能不同，内存也不够。决定这些的程序是
# **scheduler**（调度器）：它就是主机的那 6 ms。其他课程讲的就是它。
#
# ## 服务器
#
# 服务器现在每步有四个请求，主机和设备仍然轮流工作：一个回答需要 2,626 ms，而不是 8,429 ms。
# `learn.rush(0)` 用第 0 课之后的设置运行这 25 个请求。

# %%
learn.rush(0)

# %% [markdown]
# ## 在真实系统里
#
# - 在 NVIDIA 的 GPU 上，队列是 [CUDA stream](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#streams)；
#   `launch` 是 kernel launch，`wait` 是 synchronize。在 PyTorch 里，GPU 上的每个操作都这样发出，而 `.item()` 或 `.tolist()`
#   会等待。
# - [mlx-lm](https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py) 的 `generate_step` 就是练习 3：它在读取这一步
#   之前交出下一步。
# - [nano-vllm](https://github.com/GeeeekExplorer/nano-vllm) 是一个 1,200 行的引擎，像练习 2 那样工作；
#   [mini-sglang](https://github.com/sgl-project/mini-sglang) 像练习 3 那样工作。
#
# ## 答案，以及其他做法
#
# <details><summary>练习 1：Device</summary>
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
# 另外两种做法。保存一个任务列表，让时钟一个事件一个事件地走过它：行数更多，但是任务也可以等待时间以外的东西。或者用一个线程和真实的时钟：那就不再是
# 模拟（`minisched run --device thread`），每次运行都略有不同。
#
# </details>
#
# <details><summary>练习 2：generate_tokens</summary>
#
# 一个循环：launch，wait，append，work。也可以在 append *之前* 做 work，但是不能在 wait 之前。递归的 `generate` 同样正确，直到
# Python 的栈用完。
#
# </details>
#
# <details><summary>练习 3：generate_ahead</summary>
#
# 在循环之前发出第一个任务，在循环里先发出下一个，再等待。其他做法：长度为二的 op 队列（`append`，`popleft`），它可以扩展成流水线；或者一个
# 产生 token 的生成器，由它的调用者做主机的工作。
#
# </details>
#
# **下一课：** 很多请求，真正的循环，以及这段空闲时间的名字：[第 1 课，气泡](01_bubble.py)。
