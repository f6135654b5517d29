// Looks a pair of costs up in the grid of runs, and draws what happened. Draws nothing by itself.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const LEFT = 118, RIGHT = 850; // of the timing, in its own units
const LANES = ["host", "device", "copy"];

function shape(parent, tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  parent.append(made);
  return made;
}

const factor = ([serial, overlap]) => serial.makespan / overlap.makespan;

function outcome(pair) {
  if (Math.abs(factor(pair) - 1) < data.tie) return "tie";
  return factor(pair) > 1 ? "win" : "lose";
}

// -- the map: every pair of costs, and the one that is chosen -------------------------------------

const CELL = { x: 46, y: 34, width: 250 / data.devices.length, height: 170 / data.hosts.length };
const cellAt = (host, device) => ({
  x: CELL.x + device * CELL.width,
  y: CELL.y + (data.hosts.length - 1 - host) * CELL.height,
  width: CELL.width - 1,
  height: CELL.height - 1,
});

let length = data.lengths.length - 1; // which of the grids is shown
const pairAt = (h, d) => data.grids[length][h][d];

function drawMap() {
  const map = find("map");
  map.replaceChildren();
  shape(map, "text", { x: 4, y: 14, class: "run" }, "Serial time / overlap time, whole run");
  data.hosts.forEach((host, h) => data.devices.forEach((device, d) => {
    const pair = pairAt(h, d), place = cellAt(h, d);
    const cell = shape(map, "rect", { ...place, class: `cell ${outcome(pair)}` });
    shape(cell, "title", {}, `host ${host}, device ${device} ms: ${factor(pair).toFixed(2)}×`);
    shape(map, "text", { x: place.x + place.width / 2, y: place.y + place.height / 2 + 3.5,
      class: `in-${outcome(pair)}`, "text-anchor": "middle", style: "font-size:8.5px;pointer-events:none" },
      factor(pair).toFixed(2));
    cell.addEventListener("click", () => choose(h, d));
  }));
  data.hosts.forEach((host, h) => shape(map, "text", { x: CELL.x - 6,
    y: cellAt(h, 0).y + CELL.height / 2 + 3, "text-anchor": "end", style: "font-size:9px" }, host));
  data.devices.forEach((device, d) => shape(map, "text", { x: cellAt(0, d).x + CELL.width / 2,
    y: 217, "text-anchor": "middle", style: "font-size:9px" }, device));
  shape(map, "text", { x: 46, y: 232, class: "faint" }, "device, ms a step →");
  shape(map, "text", { x: 4, y: 30, class: "faint" }, "host, ms ↑");
  let x = 46;
  for (const [kind, words] of [["win", "overlap wins"], ["tie", `tie (${100 * data.tie} %)`], ["lose", "loses"]]) {
    shape(map, "rect", { x, y: 239, width: 12, height: 9, class: kind });
    shape(map, "text", { x: x + 16, y: 247 }, words);
    x += 26 + words.length * 6.2;
  }
  shape(map, "rect", { class: "here", id: "here", rx: 2 });
}

// -- the timing of a few settled steps ------------------------------------------------------------

function drawRun(run, name, top, scale) {
  const drawing = find("timing");
  shape(drawing, "text", { x: 4, y: top + 12, class: "run" }, name);
  LANES.forEach((lane, at) => {
    const y = top + 20 + at * 26;
    shape(drawing, "text", { x: 4, y: y + 15 }, lane);
    shape(drawing, "rect", { x: LEFT, y, width: run.window * scale, height: 22, class: "lane" });
  });
  drawIdle(run, top, scale);
  for (const [lane, phase, step, start, end, wasted] of run.boxes) {
    const x = LEFT + start * scale, width = (end - start) * scale, y = top + 20 + lane * 26;
    const [fill, ink] = data.paints[phase];
    const looks = phase === "wait" || wasted ? { class: wasted ? "wasted" : "wait" }
      : { fill, stroke: "var(--gap)" };
    const said = wasted ? "wasted" : phase;
    const box = shape(drawing, "rect", { x, y, width, height: 22, rx: 2, ...looks });
    shape(box, "title", {}, `${said} ${step || ""}, ${+(end - start).toFixed(3)} ms`);
    const words = [`${said} ${step || ""}`, `${step || ""}`].find((w) => w.length * 6.4 + 4 < width);
    if (words && phase !== "wait") {
      shape(drawing, "text", { x: x + width / 2, y: y + 15, "text-anchor": "middle",
        style: `fill:${wasted ? "var(--bubble)" : ink};pointer-events:none` }, words);
    }
  }
}

function drawIdle(run, top, scale) {
  const busy = run.boxes.filter((box) => box[0] === 1).sort((a, b) => a[3] - b[3]);
  let from = 0;
  for (const [start, end] of [...busy.map((box) => [box[3], box[4]]), [run.window, run.window]]) {
    if (start - from > 0.01) {
      const x = LEFT + from * scale, width = (start - from) * scale;
      shape(find("timing"), "rect", { x, y: top + 47, width, height: 20, class: "idle" });
      const words = `idle ${+(start - from).toFixed(2)} ms`;
      if (words.length * 6.6 < width) {
        shape(find("timing"), "text", { x: x + width / 2, y: top + 61, class: "idle-said",
          "text-anchor": "middle" }, words);
      }
    }
    from = Math.max(from, end);
  }
}

function drawTiming(pair) {
  const drawing = find("timing"), longest = Math.max(...pair.map((run) => run.window));
  drawing.replaceChildren();
  const scale = (RIGHT - LEFT) / longest;
  const apart = [1, 2, 5, 10, 20, 50].find((each) => longest / each <= 12) || 100;
  for (let at = 0; at <= longest; at += apart) {
    const x = LEFT + at * scale;
    shape(drawing, "line", { x1: x, x2: x, y1: 18, y2: 238, class: "grid" });
    shape(drawing, "text", { x, y: 254, "text-anchor": "middle" }, at);
  }
  shape(drawing, "text", { x: 4, y: 254, class: "faint" }, "time in ms");
  pair.forEach((run, at) => drawRun(run, data.loops[at], at * 120, scale));
}

// -- what is chosen -------------------------------------------------------------------------------

function choose(h, d) {
  const pair = pairAt(h, d), times = factor(pair).toFixed(2);
  find("host").value = h;
  find("device").value = d;
  find("host-said").textContent = `${data.hosts[h]} ms a step`;
  find("device-said").textContent = `${data.devices[d]} ms a step`;
  find("verdict").textContent = {
    win: `Overlap wins: ${times} times as fast.`,
    tie: `A tie: the same time, within ${100 * data.tie} %.`,
    lose: `Overlap loses: ${times} times as fast as serial.`,
  }[outcome(pair)];
  find("numbers").innerHTML = pair.map((run, at) => `<tr><td>${data.loops[at]}</td>` +
    `<td>${run.makespan} ms</td><td>${run.step === null ? "too few steps to settle" : `${run.step} ms`}</td></tr>`).join("");
  const place = cellAt(h, d);
  for (const [name, value] of Object.entries(place)) find("here").setAttribute(name, value);
  drawTiming(pair);
}

for (const [id, values] of [["host", data.hosts], ["device", data.devices]]) {
  Object.assign(find(id), { min: 0, max: values.length - 1, step: 1 });
  find(id).addEventListener("input", () => choose(+find("host").value, +find("device").value));
}

function chooseLength(at) {
  length = at;
  find("about").textContent = `One request, ended by a stop token; copy ${data.copy} ms a step, simulated time. ` +
    "Every pair of costs was run beforehand; drag, or click a cell.";
  find("shown").textContent = pairAt(0, 0)[0].step === null
    ? "Both whole runs, on one time axis:" : "A few settled steps of both, on one time axis:";
  drawMap();
}

data.lengths.forEach((tokens, at) => {
  const label = document.createElement("label"), button = document.createElement("input");
  Object.assign(button, { type: "radio", name: "length", checked: at === length });
  button.addEventListener("change", () => {
    chooseLength(at);
    choose(+find("host").value, +find("device").value);
  });
  label.append(button, ` ${tokens}`);
  find("lengths").append(label);
});
chooseLength(length);
choose(Math.max(0, data.hosts.indexOf(6)), Math.max(0, data.devices.indexOf(10)));
