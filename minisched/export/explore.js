// The page: its state and address, the picture, dragging, and costs from recorded traces.

const byId = (id) => document.getElementById(id);
const isDark = matchMedia("(prefers-color-scheme: dark)");
const sum = (costs, phases) => phases.reduce((total, phase) => total + costs[phase], 0);

// -- State: the loop, the language, and the cost of each phase in nanoseconds --

const MOST = 1e9; // nanoseconds of one box
let state, words;

// The loop on offer for a loop's name, which may end in a relay.
const offered = (name) =>
  [name, name?.split(":")[0]].find((it) => it !== "serial" && familyOf(it));

function first() {
  const loop = offered(START.loop) ?? "overlap";
  return { loop, costs: { ...START.costs }, source: START.source };
}

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  state = { ...first(), lang: START.lang, phases: asked.get("phases") === "1" };
  state.loop = offered(asked.get("loop")) ?? state.loop;
  if (WORDS[asked.get("lang")]) state.lang = asked.get("lang");
  for (const phase of PHASES) {
    const cost = Math.round(parseFloat(asked.get(phase)) * 1e6);
    if (cost >= 0 && cost <= MOST) state.costs[phase] = cost;
  }
  if (!sum(state.costs, RUN)) state.costs.forward = START.costs.forward;
}

function writeAddress() {
  const said = new URLSearchParams({ loop: state.loop, lang: state.lang });
  if (state.phases) said.set("phases", 1);
  for (const phase of PHASES) said.set(phase, state.costs[phase] / 1e6);
  history.replaceState(null, "", "#" + said);
}

// -- The picture. Colours are attributes, so that a saved file needs no style sheet --

const SVG = "http://www.w3.org/2000/svg";
const FONT = 'system-ui, "DejaVu Sans", Arial, "Noto Sans CJK SC", sans-serif';
const ROWS = { host: 38, thread: 30, forward: 38, copy: 22 }; // lanes, and their heights
const SIZE = 13, MARGIN = 20, BOLD = { "font-weight": 700 };

function add(parent, tag, attributes, text) {
  const node = parent.appendChild(document.createElementNS(SVG, tag));
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  if (text) node.textContent = text;
  return node;
}

function write(svg, x, y, text, fill, anchor = "start", more = {}) {
  add(svg, "text", { x, y, fill, "text-anchor": anchor, "font-size": SIZE, ...more }, text);
}

const widthOf = (text, size = SIZE) =>
  [...text].reduce((width, letter) => width + size * (letter > "\u2e80" ? 1 : 0.6), 0);
const ms = (time) => `${Number((time / 1e6).toPrecision(4))} ${words.ms}`;

// Empty a picture. Return it with its width and colours.
function begin(svg, width, colours) {
  svg.replaceChildren();
  svg.setAttribute("font-family", FONT);
  const tile = { width: 6, height: 6, patternTransform: "rotate(45)", patternUnits: "userSpaceOnUse" };
  add(add(svg, "pattern", { id: "idle", ...tile }), "path", { d: "M0 0v6", stroke: colours.bubble, "stroke-width": 3 });
  return { svg, width, colours };
}

function end({ svg, width }, height, margin = 0) {
  const wide = width + 2 * margin, high = height + margin;
  const size = { width: wide, height: high, viewBox: `${-margin} 0 ${wide} ${high}` };
  for (const name in size) svg.setAttribute(name, size[name]);
}

// Join the phases that a lane does with one step; with `state.phases`, each is a box.
function boxesOf(run, lane) {
  const found = [];
  for (const { phase, step, start, end } of run.boxes.filter((box) => box.lane === lane)) {
    const last = found.at(-1), verb = Object.keys(VERBS).find((it) => VERBS[it].includes(phase));
    if (!state.phases && last?.verb === verb && last.step === step && last.end === start) {
      last.end = end;
      last.phases.push(phase);
    } else found.push({ verb, step, start, end, phases: [phase] });
  }
  return found.filter((box) => box.end > Math.max(box.start, run.start));
}

// Draw runs below each other. Each shows `span` nanoseconds, from the start of the same step.
function drawLoops(page, runs, span, y, isSaved) {
  const { svg, width, colours } = page;
  page.left = Math.max(...Object.keys(ROWS).map((lane) => widthOf(words[lane]))) + 12;
  page.scale = (width - page.left) / span;
  for (const run of runs) {
    const time = (run.time * run.turns) / STEPS;
    write(svg, 0, y + 14, run.loop, colours.ink, "start", { ...BOLD, "font-size": 15 });
    write(svg, widthOf(run.loop, 15) + 14, y + 14, ms(time) + words[run.turns > 1 ? "token" : "step"], colours.faint);
    y += 24;
    for (const lane in ROWS) {
      const boxes = boxesOf(run, lane), height = ROWS[lane];
      if (!boxes.length) continue;
      add(svg, "rect", { x: page.left, y, width: width - page.left, height, rx: 4, fill: colours.lane });
      write(svg, page.left - 8, y + height / 2 + 4.5, words[lane], colours.faint, "end");
      drawLane(page, run, lane, boxes, y, isSaved);
      y += height + 5;
    }
    y += 10;
  }
  end(page, y, isSaved ? MARGIN : 0);
}

function drawLane({ svg, width, colours, left, scale }, run, lane, boxes, y, isSaved) {
  const x = (time) => Math.min(left + Math.max(time - run.start, 0) * scale, width);
  const height = ROWS[lane], baseline = y + height / 2 + 4.5, seen = new Set();
  let before = left;
  for (const { verb, step, start, end, phases } of boxes) {
    const from = x(start), room = x(end) - from, middle = from + room / 2;
    if (lane === "forward" && from > before + 1) drawIdle(svg, colours, before, from, y, height);
    before = from + room;
    if (from >= width) break;
    const [fill, ink] = START.steps[step % START.steps.length];
    const label = `${state.phases ? phases[0] : words[verb]} ${step}`, cost = sum(state.costs, phases);
    // The tab key stops at the first box of each kind.
    const group = add(svg, "g", isSaved ? {} : {
      class: "box", role: "slider", tabindex: seen.has(`${phases}`) ? -1 : 0, "aria-label": `${run.loop}: ${label}`,
      "aria-valuetext": ms(cost), "aria-valuenow": cost / 1e6, "data-phases": phases,
      "data-key": [run.loop, step, phases],
    });
    seen.add(`${phases}`);
    add(group, "title", {}, `${label}: ${ms(cost)}`);
    add(group, "rect", { x: from + 0.5, y, width: Math.max(room - 1, 0.8), height, rx: 3, fill });
    const text = [label, `${step}`].find((it) => widthOf(it) < room - 8);
    if (text) write(group, middle, baseline, text, ink, "middle");
    const hasRoom = room > 8 && (!text || widthOf(text) < room - 14);
    const grip = { d: `M${before - 3.5} ${baseline - 10}v12`, stroke: ink, "stroke-opacity": 0.5 };
    if (!isSaved && hasRoom && before < width) add(group, "path", grip);
  }
}

function drawIdle(svg, colours, from, to, y, height) {
  const room = to - from, middle = from + room / 2, wide = widthOf(words.idle) + 10;
  const box = { x: from + 1, y: y + 0.5, width: room - 2 > 0 ? room - 2 : 1, height: height - 1, rx: 3 };
  add(svg, "rect", { ...box, fill: "url(#idle)", stroke: colours.bubble });
  if (room < wide + 4) return;
  add(svg, "rect", { x: middle - wide / 2, y: y + 10, width: wide, height: 18, rx: 3, fill: colours.paper });
  write(svg, middle, y + 23.5, words.idle, colours.bubble, "middle", BOLD);
}

// -- The curve: the speed-up if the host were faster or slower --

const LOW = 1 / 16, HIGH = 16; // of the host's time over the device's time
const bothRuns = (costs) => ["serial", state.loop].map((loop) => settled(loop, costs));

function factorAt(times) {
  const costs = { ...state.costs };
  for (const phase of HOST) costs[phase] = Math.round(costs[phase] * times);
  return speedUp(...bothRuns(costs));
}

function drawCurve(page, factor) {
  const { svg, width, colours } = page, left = 40;
  const ratio = sum(state.costs, [...PLAN, ...READ]) / sum(state.costs, RUN);
  const x = (value) => left + (Math.log(value / LOW) / Math.log(HIGH / LOW)) * (width - left - 12);
  const points = [];
  for (let at = 0; at <= 80 && ratio; at++) {
    const value = LOW * (HIGH / LOW) ** (at / 80);
    points.push([value, factorAt(value / ratio)]);
  }
  const factors = [factor, ...points.map((point) => point[1])];
  const least = Math.min(1, Math.floor(Math.min(...factors) * 2) / 2);
  const most = Math.max(2, Math.ceil(Math.max(...factors) * 2) / 2);
  const y = (value) => 160 - ((value - least) / (most - least)) * 120;
  write(svg, 0, 14, words.curve, colours.faint);
  for (let value = least; value <= most; value += 0.5) {
    add(svg, "path", { d: `M${left} ${y(value)}H${width}`, stroke: colours.grid });
    write(svg, left - 8, y(value) + 4.5, `${value}×`, colours.faint, "end");
  }
  for (const value of [0.125, 0.25, 0.5, 1, 2, 4, 8]) write(svg, x(value), 182, `${value}`, colours.faint, "middle");
  const path = points.map(([value, reached]) => `${x(value)} ${y(reached)}`).join("L");
  add(svg, "path", { d: `M${path || "0 0"}`, fill: "none", stroke: colours.token, "stroke-width": 2.5 });
  const cx = x(Math.min(Math.max(ratio, LOW), HIGH)), isLeft = ratio < 1 || cx > width - 60;
  add(svg, "circle", { id: "dot", cx, cy: y(factor), r: 7, fill: START.steps[0][0], stroke: colours.ink });
  const place = [cx + (isLeft ? -12 : 12), y(factor) - 10];
  write(svg, ...place, `${factor.toFixed(2)}×`, colours.ink, isLeft ? "end" : "start", BOLD);
  svg.setAttribute("aria-label", words.curve);
  end(page, 190);
}

// -- The whole page --

let span = 0, scale = 1; // of the picture: nanoseconds, and pixels a nanosecond

function titleOf(factor) {
  if (Math.abs(factor - 1) < 0.005) return words.equal(state.loop);
  return factor > 1
    ? words.faster(state.loop, factor.toFixed(2))
    : words.slower(state.loop, (1 / factor).toFixed(2));
}

function reasonOf(run) {
  const isHosts = ({ lane, start }) => lane === "host" && start >= run.start && start < run.start + run.time;
  const host = sum(state.costs, run.boxes.filter(isHosts).map((box) => box.phase)) / STEPS;
  const time = run.time / STEPS, idle = time - sum(state.costs, RUN);
  if (idle < time / 1000) return words.deviceBound(ms(host), ms(time));
  return host > time * 0.999 ? words.hostBound(ms(idle), ms(host)) : words.neither(ms(idle), ms(time));
}

// The picture has at least one period of each run, and a bit of the next one.
const spanOf = (runs, width) =>
  Math.max(...runs.map((run) => (run.time / STEPS) * Math.max(run.period + 0.2, width < 600 ? 1.3 : 2.1)));

// Draw everything. During a drag the axis stays.
function draw(isDragged = false) {
  const colours = START.colours[isDark.matches ? "dark" : "light"], svg = byId("loops");
  for (const name in colours) document.body.style.setProperty(`--${name}`, colours[name]);
  const key = document.activeElement.getAttribute("data-key"), width = Math.max(document.body.clientWidth - 32, 280);
  const runs = bothRuns(state.costs), factor = speedUp(...runs), title = titleOf(factor);
  if (!isDragged) span = spanOf(runs, width);
  const page = begin(svg, width, colours);
  drawLoops(page, runs, span, 4, false);
  scale = page.scale;
  drawCurve(begin(byId("curve"), width, colours), factor);
  if (key) svg.querySelector(`[data-key="${key}"]`)?.focus();
  byId("title").textContent = document.title = title;
  byId("reason").textContent = words.about[familyOf(state.loop)] + words.space + reasonOf(runs[1]);
  svg.setAttribute("aria-label", title);
}

function drawAll() {
  words = WORDS[state.lang];
  document.documentElement.lang = state.lang;
  for (const id of ["reset", "phases", "open", "language", "hint"]) byId(id).textContent = words[id];
  byId("phases").setAttribute("aria-pressed", state.phases);
  byId("source").textContent = words.source(state.source);
  byId("loop").value = state.loop;
  byId("loop").setAttribute("aria-label", words.loop);
  draw();
}

function change(changes) {
  Object.assign(state, changes);
  drawAll();
  writeAddress();
}

// -- Dragging and keys. The phases of a box keep their shares --

function resize(costs, phases, wanted) {
  const total = Math.min(Math.max(wanted, phases.includes("forward") ? unit() : 0), MOST);
  const old = sum(costs, phases), found = { ...costs };
  for (const phase of phases) found[phase] = old ? Math.round((costs[phase] / old) * total) : 0;
  found[phases[0]] += total - sum(found, phases);
  return found;
}

// Costs change by a power of ten, about a hundredth of the picture.
const unit = () => Math.max(1, 10 ** Math.floor(Math.log10(span / 100)));
const rounded = (time) => Math.round(time / unit()) * unit();

byId("loops").onpointerdown = (event) => {
  const box = event.target.closest(".box");
  if (!box || event.button) return;
  event.preventDefault();
  box.focus();
  const svg = byId("loops"), phases = box.dataset.phases.split(","), costs = state.costs;
  svg.setPointerCapture(event.pointerId);
  svg.onpointermove = ({ clientX }) => {
    const time = sum(costs, phases) + (clientX - event.clientX) / scale;
    state.costs = resize(costs, phases, rounded(time));
    draw(true);
  };
  svg.onpointerup = svg.onpointercancel = () => {
    svg.onpointermove = svg.onpointerup = svg.onpointercancel = null;
    change({});
  };
};

byId("loops").onkeydown = (event) => {
  const phases = event.target.dataset.phases?.split(",");
  const direction = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
  if (!phases || !direction) return;
  event.preventDefault();
  const time = sum(state.costs, phases) + direction * unit() * (event.shiftKey ? 10 : 1);
  change({ costs: resize(state.costs, phases, rounded(time)) });
};

// -- Buttons --

// The picture as a file: wide, on light paper, below its title.
function saved() {
  const runs = bothRuns(state.costs), colours = START.colours.light;
  const page = begin(document.createElementNS(SVG, "svg"), 940, colours);
  add(page.svg, "rect", { x: -MARGIN, width: "100%", height: "100%", fill: colours.paper });
  write(page.svg, 0, 30, titleOf(speedUp(...runs)), colours.ink, "start", { ...BOLD, "font-size": 20 });
  drawLoops(page, runs, spanOf(runs, page.width), 50, true);
  return new XMLSerializer().serializeToString(page.svg);
}

byId("reset").onclick = () => change(first());
byId("phases").onclick = () => change({ phases: !state.phases });
byId("language").onclick = () => change({ lang: state.lang === "en" ? "zh" : "en" });
byId("loop").onchange = () => change({ loop: byId("loop").value });
byId("svg").onclick = () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([saved()], { type: "image/svg+xml" }));
  link.download = `${state.loop.replaceAll(":", "-")}.svg`;
  link.click();
};

// -- A recorded trace: the median cost of each phase in its decode steps (explore.py:costs_of) --

function costsOf(trace) {
  const found = {}, previous = {}, costs = {};
  const put = (name, { lane, start, end }, step) => {
    const times = (found[`${name}/${lane}`] ??= {});
    times[step] = (times[step] ?? 0) + end - start;
  };
  for (const item of trace.slices) {
    const { lane, name, step } = item, last = previous[lane];
    previous[lane] = item;
    if (item.mode !== "decode") continue;
    const follows = last?.name === "schedule";
    if (name === "prepare" && follows) put("schedule", last, step);
    put(name === "prepare" && !follows ? "advance step" : name, item, step);
  }
  for (const key in found) {
    const [phase, lane] = key.split("/"), times = Object.values(found[key]).sort((a, b) => a - b);
    const kind = HOST.includes(phase) ? /(host|thread)$/ : RUN.includes(phase) ? /forward$|^stage / : /copy$/;
    if (PHASES.includes(phase) && kind.test(lane))
      costs[phase] = (costs[phase] ?? 0) + times[(times.length - 1) >> 1];
  }
  return costs;
}

// A phase that the trace lacks keeps its cost.
async function openTrace(file) {
  try {
    const isGzip = new Uint8Array(await file.slice(0, 2).arrayBuffer()).join() === "31,139";
    const bytes = isGzip ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file;
    const trace = JSON.parse(await new Response(bytes).text());
    const costs = { ...state.costs, forward: 0, sample: 0, ...costsOf(trace) };
    if (trace.format !== "minisched trace" || !sum(costs, RUN)) throw TypeError();
    change({ costs, loop: offered(trace.loop) ?? state.loop, source: file.name });
  } catch {
    byId("source").textContent = words.wrong(file.name);
  }
}

byId("file").onchange = (event) => openTrace(event.target.files[0]);
document.ondragover = (event) => event.preventDefault();
document.ondrop = (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) openTrace(event.dataTransfer.files[0]);
};

// -- Start --

for (const { names } of Object.values(FAMILIES).slice(1))
  for (const name of names) byId("loop").append(new Option(name));
isDark.onchange = onresize = () => draw();
onhashchange = () => {
  readAddress();
  drawAll();
};
onhashchange();
