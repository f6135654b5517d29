// A report of Python's, on the page.

const at = (id) => document.getElementById(id);
let picture = "";

export function showReport(report, took) {
  at("results").hidden = false;
  at("status").hidden = true;
  at("results").classList.remove("stale");
  at("verdict").textContent = report.verdict;
  at("verdict").className = report.identical ? "same" : "different";
  at("rows").replaceChildren(...report.rows.map(row));
  at("ideal").textContent =
    `Hiding everything behind the longest of host, device and copies would give ${report.ideal.toFixed(2)} ×.`;
  at("lost").replaceChildren(...[...report.lost, ...report.errors].map(item));
  at("settled").textContent = report.settled;
  at("took").textContent = `Simulated and drawn in ${took} ms, by Python in this page.`;
  showPicture(report);
}

export function showProblem(text) {
  at("status").hidden = false;
  at("status").textContent = text;
  at("results").classList.add("stale");
}

export function showProgress(text) {
  at("status").hidden = false;
  at("status").textContent = text;
}

function row(report) {
  const cells = [
    (report.makespan / 1e6).toFixed(2),
    report.speedup === null ? "–" : `${report.speedup.toFixed(2)} ×`,
    `${report.busy.toFixed(0)} %`,
    `${report.hidden.toFixed(0)} %`,
    report.steps,
    report.wasted,
  ].map((text) => Object.assign(document.createElement("td"), { textContent: text }));
  cells[0].dataset.ns = report.makespan;
  const head = Object.assign(document.createElement("th"), { scope: "row", textContent: report.loop });
  const line = document.createElement("tr");
  line.dataset.loop = report.loop;
  line.append(head, ...cells);
  return line;
}

function item(text) {
  return Object.assign(document.createElement("li"), { textContent: text });
}

function showPicture(report) {
  URL.revokeObjectURL(picture);
  picture = URL.createObjectURL(new Blob([report.svg], { type: "image/svg+xml" }));
  at("picture").src = picture;
  at("picture").alt = `The runs on one time axis. ${report.lost.join(" ")}`;
}
