// The words of the page, in each language; START.words has those of the picture (by_step.py).

const WORDS = {
  en: {
    thread: "thread", copy: "copy",
    space: " ", step: " a step", token: " a token",
    faster: (loop, factor) => `${loop} is ${factor} times as fast as serial`,
    slower: (loop, factor) => `${loop} takes ${factor} times as long as serial`,
    equal: (loop) => `${loop} is as fast as serial`,
    about: {
      ahead: "While the device runs step N, the host reads step N-1 and plans step N+1.",
      farAhead: "Up to two planned steps wait for the device and hide a slow turn of the host.",
      thread: "A second thread launches each step, and the host waits for the launch.",
      fill: "The host fills the tokens of step N-1 into step N, then launches it.",
      burst: "The host plans four steps at a time, and reads them together.",
      turns: "Two batches take turns, so each request is in every second step.",
    },
    deviceBound: (host, run) =>
      `The device never waits: its ${run} a step hide the host's ${host}. A faster host gains nothing.`,
    hostBound: (idle, host) =>
      `The host never waits: it works for ${host} a step, so the device idles for ${idle}.`,
    neither: (idle, step) => `The device idles for ${idle} of each ${step}.`,
    hint: "A colour is a step. Drag the right edge of a box, or select it and press ← or →: its cost changes.",
    curve: "speed-up, by host time ÷ device time",
    reset: "reset", phases: "phases", open: "open a trace", language: "中文", loop: "loop",
    source: (from) =>
      `The costs are medians of the decode steps of ${from}. Prompts and ends cost more.`,
    wrong: (name) => `${name} has no costs: choose a minisched trace with decode steps (.json or .json.gz).`,
  },
  zh: {
    thread: "线程", copy: "拷贝",
    space: "", step: "／步", token: "／token",
    faster: (loop, factor) => `${loop} 的速度是 serial（串行）的 ${factor} 倍`,
    slower: (loop, factor) => `${loop} 的用时是 serial（串行）的 ${factor} 倍`,
    equal: (loop) => `${loop} 与 serial（串行）一样快`,
    about: {
      ahead: "设备运行第 N 步时，主机处理第 N-1 步的结果，并调度第 N+1 步。",
      farAhead: "设备前最多有两步在排队，因此主机偶尔慢一轮也不受影响。",
      thread: "每一步由第二个线程启动，主机等待启动完成。",
      fill: "主机把第 N-1 步的 token 填入第 N 步，然后才启动它。",
      burst: "主机一次调度四步，再一起处理结果。",
      turns: "请求分成两批轮流运行，每个请求隔一步运行一次。",
    },
    deviceBound: (host, run) =>
      `设备从不等待：主机每步的 ${host}全部藏在设备的 ${run}之后，主机再快也没有收益。`,
    hostBound: (idle, host) => `主机从不等待：它每步工作 ${host}，因此设备每步空闲 ${idle}。`,
    neither: (idle, step) => `每步 ${step}中，设备空闲 ${idle}。`,
    hint: "一种颜色代表一步。拖动方块的右边缘，或选中方块后按 ← →，即可改变它的耗时。",
    curve: "加速比（横轴：主机时间 ÷ 设备时间）",
    reset: "还原", phases: "各阶段", open: "打开 trace", language: "English", loop: "循环",
    source: (from) => `各项耗时是 ${from} 的 decode 步的中位数。prompt、请求结束和语法约束的代价更高。`,
    wrong: (name) => `${name} 中没有耗时：请选择带 decode 步的 minisched trace（.json 或 .json.gz）。`,
  },
};

for (const lang in WORDS) Object.assign(WORDS[lang], START.words[lang]);
