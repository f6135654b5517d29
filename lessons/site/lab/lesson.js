// A lesson's exercises, live: each cell with the tag `exercise` becomes an editor with its verdict.
// Without this script, or without Python, the page has them as text.

import { editor } from "./editor.js";
import { forget, mine, read, write } from "./kept.js";
import { Python } from "./python.js";

const MOST_SECONDS = 120; // of one check; what is right takes a few

const lesson = location.pathname.split("/").at(-1).replace(/\.html$/, "");
const cells = [...document.querySelectorAll("div.cell")].filter(source);
const exercises = cells.filter((cell) => cell.matches(".tag_exercise"));
const sources = cells.map(source);
const names = new Map(exercises.map((cell) => [cell, source(cell).match(/learn\.check\("(\w+)"/)[1]]));
const editors = new Map();
let python = null;
let running = null; // what is to be done when it is stopped

const loading = Object.assign(document.createElement("label"), { className: "loading" });
loading.append(document.createElement("progress"), document.createElement("span"));

for (const cell of exercises) makeLive(cell);
for (const cell of document.querySelectorAll("div.cell.tag_guess")) askGuess(cell);
if (exercises.length) watchFirst(exercises[0]);
for (const cell of document.querySelectorAll("div.cell.tag_costs")) addSliders(cell);
showProgress();

function source(cell) {
  return cell.querySelector(".cell_input pre")?.textContent.trimEnd() ?? "";
}

function makeLive(cell) {
  const start = source(cell);
  const name = names.get(cell);
  const known = read(lesson, name);
  const heading = cell.closest("section")?.querySelector("h2, h3")?.firstChild.textContent ?? name;
  const area = editor(known.text ?? start, `${heading}: your lines`, run, (text) => {
    write(lesson, name, { ...read(lesson, name), text });
  });
  const said = Object.assign(document.createElement("div"), { className: "said" });
  said.setAttribute("role", "status");
  const buttons = {
    run: button("Run", run, "Shift+Enter"),
    hint: button("Hint", hint, "One more each time"),
    again: button("Start again", again, "Back to the lines that the lesson begins with"),
  };
  const bar = Object.assign(document.createElement("div"), { className: "bar" });
  bar.append(...Object.values(buttons), keys());
  const box = Object.assign(document.createElement("div"), { className: "live" });
  box.append(area, bar, said);
  cell.querySelector(".cell_input").replaceWith(box);
  cell.classList.toggle("right", Boolean(known.passed));
  editors.set(cell, area);
  area.addEventListener("focus", wake, { once: true });

  async function run() {
    if (running) return running();
    const before = cells.slice(0, cells.indexOf(cell)).map((it) => editors.get(it)?.value ?? source(it));
    const answer = await ask("exercise", JSON.stringify({ before, lines: area.value, mine: mine() }));
    if (!answer) return;
    const { html, text, passed, mine: kept } = JSON.parse(answer);
    said.innerHTML = html;
    if (text) said.prepend(Object.assign(document.createElement("pre"), { textContent: text }));
    if (passed) mine(kept);
    const is = read(lesson, name);
    write(lesson, name, { text: area.value, passed: passed || is.passed });
    cell.classList.toggle("right", passed || Boolean(is.passed));
    cell.classList.add("tried");
    showProgress();
  }

  async function hint() {
    const answer = await ask("hint", name);
    if (answer) said.append(Object.assign(document.createElement("p"), { textContent: answer }));
  }

  // One call of Python; meanwhile the button stops it.
  async function ask(what, text) {
    const problem = (words) => {
      said.replaceChildren(Object.assign(document.createElement("p"), { textContent: words }));
    };
    if (what === "exercise") problem("Running …");
    buttons.run.textContent = "Stop";
    running = () => python.stop();
    wake();
    progressOf = problem;
    try {
      return await python.call(what, text);
    } catch (error) {
      problem(error.message);
      python.stop();
      python = null; // the next one is a fresh one
      return "";
    } finally {
      buttons.run.textContent = "Run";
      running = progressOf = null;
    }
  }

  function again() {
    area.show(start);
    forget(lesson, name);
    said.replaceChildren();
    cell.classList.remove("right", "tried");
    showProgress();
    area.focus();
  }
}

// Python takes seconds to load: that begins when the first exercise comes near, or has the focus.
let progressOf = null;
function wake() {
  python ??= new Python("cells", tell, MOST_SECONDS, loading.remove.bind(loading));
}

function tell(text) {
  loading.querySelector("span").textContent = text;
  progressOf?.(text);
}

function watchFirst(cell) {
  cell.querySelector(".live").prepend(loading);
  const near = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    near.disconnect();
    wake();
  }, { rootMargin: "100% 0px" });
  near.observe(cell);
}

function showProgress() {
  const place = document.getElementById("progress");
  const right = [...names.values()].filter((name) => read(lesson, name).passed).length;
  if (place) place.textContent = `${right} of ${names.size} exercise${names.size === 1 ? "" : "s"} right`;
}

// A prediction: the cell `guess = None  # words` becomes a field. The guess is kept, and the next cell
// that uses it draws it.
function askGuess(cell) {
  const at = cells.indexOf(cell);
  const start = sources[at];
  const drawing = sources.findIndex((text, other) => other > at && /\bguess\b/.test(text));
  const kept = read(lesson, "guess");
  const field = Object.assign(document.createElement("input"), { type: "number", step: "any", value: kept.text ?? "" });
  const label = Object.assign(document.createElement("label"), { textContent: `Your guess, ${start.split("#")[1].trim()} ` });
  label.append(field);
  const said = Object.assign(document.createElement("small"), { className: "said" });
  said.setAttribute("role", "status");
  const box = Object.assign(document.createElement("form"), { className: "guess" });
  box.append(label, button("Keep", () => {}, "Enter"), said);
  box.querySelector("button").type = "submit";
  cell.querySelector(".cell_input").replaceWith(box);
  if (kept.drawn) show(kept.drawn);
  box.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text) return forget(lesson, "guess");
    write(lesson, "guess", { text });
    said.textContent = "Kept. It is being drawn into the run …";
    const before = sources.slice(0, drawing);
    before[at] = `guess = ${text}`;
    try {
      wake();
      const answer = await python.call("exercise", JSON.stringify({ before, lines: sources[drawing], mine: mine() }));
      const { html, text: problem } = JSON.parse(answer);
      said.textContent = html ? "Kept, and drawn into the run below." : `Kept, but not drawn. ${problem}`;
      if (html) {
        show(html);
        write(lesson, "guess", { text, drawn: html });
      }
    } catch (error) {
      said.textContent = `Kept, but not drawn. ${error.message}`;
      python = null;
    }
  });

  function show(html) {
    const output = cells[drawing].querySelector(".cell_output");
    if (output) output.innerHTML = html;
  }
}

// Below the picture of a run: sliders of its costs, and its picture with them next to overlap's.
function addSliders(cell) {
  const box = Object.assign(document.createElement("div"), { className: "sliders" });
  const drawn = Object.assign(document.createElement("div"), { className: "said" });
  drawn.setAttribute("role", "status");
  const costs = { host: 6, device: 10, copy: 1 };
  let isBusy = false;
  let isStale = false;
  for (const [name, ms] of Object.entries(costs)) {
    const slider = Object.assign(document.createElement("input"), { type: "range", min: Number(name === "device"), max: 30, value: ms });
    const shown = Object.assign(document.createElement("output"), { textContent: `${ms} ms` });
    const label = document.createElement("label");
    label.append(`${name} `, slider, shown);
    box.append(label);
    slider.addEventListener("input", () => {
      costs[name] = slider.value;
      shown.textContent = `${slider.value} ms`;
      draw();
    });
  }
  box.append(drawn);
  cell.append(box);

  async function draw() {
    isStale = true;
    if (isBusy) return;
    isBusy = true;
    while (isStale) {
      isStale = false;
      const given = Object.entries(costs).map(([name, ms]) => `${name}_ms=${ms}`).join(", ");
      const runs = ["serial", "overlap"].map((loop) => `learn.simulate("${loop}", ${given}, requests=2, new_tokens=12)`);
      const lines = `learn.timing(${runs.join(", ")})`;
      const before = ["from minisched import learn"];
      try {
        wake();
        const answer = await python.call("exercise", JSON.stringify({ before, lines, mine: mine() }));
        const { html, text } = JSON.parse(answer);
        drawn.innerHTML = html;
        if (text) drawn.textContent = text;
      } catch (error) {
        drawn.textContent = error.message;
        python = null;
      }
    }
    isBusy = false;
  }
}

// A tap shows a picture of the lesson or of a verdict in a box that scrolls; a second tap closes it.
document.addEventListener("click", ({ target }) => {
  if (!target.matches(".cell_output img, .said img")) return;
  const box = Object.assign(document.createElement("dialog"), { className: "enlarged" });
  box.append(target.cloneNode(true));
  box.addEventListener("click", () => box.close());
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
});

function button(text, act, title) {
  const made = Object.assign(document.createElement("button"), { type: "button", title });
  made.textContent = text;
  made.addEventListener("click", act);
  return made;
}

function keys() {
  const text = "Shift+Enter runs; Escape, then Tab leaves";
  return Object.assign(document.createElement("small"), { textContent: text });
}
