// The time of settled decode steps: some of the simulator's loops, each in its own order of calls.
"use strict";

const PLAN = ["schedule", "prepare", "launch"];
const READ = ["process", "output"];
const RUN = ["forward", "sample"];
const VERBS = { // what each phase does with its step
  plan: [...PLAN, "advance step", "fill"],
  read: [...READ, "postprocess"],
  run: RUN,
  copy: ["copy"],
};
const HOST = [...VERBS.plan, ...VERBS.read];
const PHASES = [...HOST, ...RUN, "copy"];

// A host and a device. A lane does one phase at a time, in order. Times are integer nanoseconds.
class Machine {
  constructor(costs) {
    this.costs = costs;
    this.boxes = []; // {lane, phase, step, start, end}
    this.free = {}; // the end of each lane's last phase
    this.arrived = []; // the time at which the tokens of each step are on the host
  }

  // Put a phase on a lane, at `after` or later. Return its end.
  does(lane, phase, step, after = 0) {
    const start = Math.max(this.free[lane] ?? 0, after);
    const end = start + this.costs[phase];
    this.boxes.push({ lane, phase, step, start, end });
    this.free[lane] = end;
    return end;
  }

  // Put phases on the host. Return the end of the last one.
  host(step, ...phases) {
    for (const phase of phases) this.does("host", phase, step);
    return this.free.host;
  }

  // Queue the ops of a step on the device.
  launch(step, time) {
    for (const op of RUN) time = this.does("forward", op, step, time);
    this.arrived[step] = this.does("copy", "copy", step, time);
  }

  // Block the host until a time.
  wait(time) {
    this.free.host = Math.max(this.free.host, time);
  }

  // Block the host until the tokens of a step have arrived, and read them.
  read(step, ...phases) {
    this.wait(this.arrived[step]);
    this.host(step, ...phases);
  }
}

// -- The loops: each runs `count` steps on a machine --

// Keep `depth` steps in flight: serial has 1, overlap 2.
function ahead(machine, count, depth) {
  for (let step = 1; step <= count; step++) {
    machine.launch(step, machine.host(step, ...PLAN));
    if (step >= depth) machine.read(step - depth + 1, ...READ);
  }
}

// Launch on a second thread. The host waits for the launch, and then for the step before.
function byThread(machine, count) {
  for (let step = 1; step <= count; step++) {
    const planned = machine.host(step, "schedule", "prepare");
    const launched = machine.does("thread", "launch", step, planned);
    machine.launch(step, launched);
    if (step === 1) continue;
    machine.wait(launched);
    machine.read(step - 1, ...READ);
  }
}

// Fill the tokens of the step before into a planned step, launch it, and then read those tokens.
function filledByHost(machine, count) {
  for (let step = 1; step <= count; step++) {
    machine.host(step, "schedule", "prepare");
    if (step > 1) {
      machine.wait(machine.arrived[step - 1]);
      machine.host(step, "fill");
    }
    const launched = machine.does("thread", "launch", step, machine.free.host);
    machine.launch(step, launched);
    if (step === 1) continue;
    machine.wait(launched);
    machine.host(step - 1, "postprocess", ...READ);
  }
}

// Plan a burst of `length` steps at a time, and read them together.
function bursts(machine, count, length) {
  for (let first = 1; first <= count; first += length) {
    for (let step = first; step < first + length; step++) {
      const phases = step === first ? PLAN : ["advance step", "launch"];
      machine.launch(step, machine.host(step, ...phases));
    }
    machine.wait(machine.arrived[first + length - 1]);
    for (let step = first; step < first + length; step++) machine.host(step, ...READ);
  }
}

// The loops on offer, in families. A request gets a token in every `turns`-th step, and `period` is
// the number of steps that repeat.
const ONE_AHEAD = ["overlap", "mini_overlap", "mlx_async", "vllm_async", "mindie_single"];
const FAMILIES = {
  serial: { names: ["serial"], run: ahead, option: 1 },
  ahead: { names: ONE_AHEAD, run: ahead, option: 2 },
  farAhead: { names: ["vllm_async:pool:depth=3"], run: ahead, option: 3 },
  thread: { names: ["overlap_thread"], run: byThread },
  fill: { names: ["mindie_plugin", "mindie_dual"], run: filledByHost },
  burst: { names: ["multi_step"], run: bursts, option: 4, period: 4 },
  turns: { names: ["vllm_batch_queue"], run: ahead, option: 2, turns: 2 },
};
const familyOf = (loop) =>
  Object.keys(FAMILIES).find((name) => FAMILIES[name].names.includes(loop));

// -- A settled stretch: a whole number of periods of every loop --

const FIRST = 25, STEPS = 12;

// Run a loop. Return its boxes, the start of step FIRST on the device, and the time of STEPS steps.
function settled(loop, costs) {
  const { run, option, turns = 1, period = 1 } = FAMILIES[familyOf(loop)];
  const machine = new Machine(costs);
  run(machine, FIRST + 2 * STEPS - 1, option);
  const begins = (step) =>
    machine.boxes.find((box) => box.phase === "forward" && box.step === step).start;
  const start = begins(FIRST);
  return { loop, boxes: machine.boxes, start, time: begins(FIRST + STEPS) - start, turns, period };
}

// How many times as fast as `serial` a run gives tokens.
const speedUp = (serial, run) => serial.time / (run.time * run.turns);
