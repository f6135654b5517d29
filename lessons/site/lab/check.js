// The page that checks a file: it goes to Python in a worker of this page, and nowhere else.

import { Python } from "./python.js";

const MOST_MB = 500; // of a file; its events take several times as much memory
const at = (id) => document.getElementById(id);
let python = new Python("checker", tell);
let file = null;
let picture = "";
let clock = null;

function tell(text) {
  at("status").hidden = false;
  at("status").textContent = text;
}

async function check() {
  if (file.size > MOST_MB * 1e6) {
    tell(`${file.name} has ${megabytes()} MB, and this page takes ${MOST_MB}: run minisched check ${file.name}.`);
    return;
  }
  const start = performance.now();
  begin(start);
  try {
    const asked = { step: at("step").value, lane: at("lane").value };
    show(JSON.parse(await python.call("check", JSON.stringify(asked), file)));
    at("status").hidden = true;
    at("took").textContent = `Read and judged ${megabytes()} MB in ${seconds(start)} s, in this page.`;
  } catch (error) {
    tell(error.message);
  }
  end();
}

function begin(start) {
  at("results").hidden = true;
  at("stop").hidden = false;
  at("file").disabled = at("again").disabled = true;
  tell(`Reading ${file.name} …`);
  clock = setInterval(() => {
    at("status").dataset.took = `${seconds(start)} s`;
  }, 1000);
}

function end() {
  clearInterval(clock);
  delete at("status").dataset.took;
  at("stop").hidden = true;
  at("file").disabled = at("again").disabled = false;
}

function stop() {
  python.stop();
  python = new Python("checker", tell);
}

function show({ title, rows, svg }) {
  at("results").hidden = false;
  at("title").textContent = title;
  at("answers").replaceChildren(...rows.flatMap(row));
  URL.revokeObjectURL(picture);
  picture = svg ? URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })) : "";
  at("picture").hidden = !svg;
  at("picture").src = picture;
  at("picture").alt = svg ? "The steps of this run" : "";
}

function row({ sign, name, sentence, details, more }) {
  const head = made("dt", `${sign} ${name}`);
  const body = made("dd", sentence);
  head.dataset.sign = sign;
  body.append(...details.map((line) => made("p", line)));
  if (more.length) {
    const folded = made("details", "");
    folded.append(made("summary", "More"), ...more.map((line) => made("p", line)));
    body.append(folded);
  }
  return [head, body];
}

const made = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });

function take(files) {
  if (files.length !== 1) {
    tell(`These are ${files.length} files, and this page takes one at a time.`);
    return;
  }
  [file] = files;
  check();
}

const megabytes = () => (file.size / 1e6).toFixed(1);
const seconds = (start) => Math.round((performance.now() - start) / 1000);

at("file").addEventListener("change", () => at("file").files.length && take(at("file").files));
at("stop").addEventListener("click", stop);
at("asked").addEventListener("submit", (event) => {
  event.preventDefault();
  if (file) check();
});
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  at("check").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", kind === "dragenter" || kind === "dragover");
  });
}
at("check").addEventListener("drop", (event) => {
  if (!at("file").disabled) take(event.dataTransfer.files);
});
python.call("ready").then(
  () => {
    at("file").disabled = false;
    at("status").hidden = true;
  },
  (error) => tell(error.message),
);
