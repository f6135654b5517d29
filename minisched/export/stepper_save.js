// What leaves the page: a link to this moment, its picture as an SVG, the runs for Perfetto.
"use strict";

function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

async function copyLink() {
  const link = location.href.split("#")[0] + addressOf(page);
  const button = document.querySelector('[data-do="link"]');
  try {
    await navigator.clipboard.writeText(link);
    button.textContent = "copied";
  } catch {
    location.hash = addressOf(page); // then the address bar has it
    button.textContent = "in the address";
  }
  setTimeout(() => { button.textContent = "link"; }, 1500);
}

// A pen with the methods of a canvas's that this page uses; it writes SVG.
class SvgPen {
  constructor(width) {
    this.canvas = { clientWidth: width };
    this.ruler = make("canvas", {}).getContext("2d");
    this.ruler.font = this.font = "11px system-ui, sans-serif";
    Object.assign(this, { shapes: [], d: "", dash: "", globalAlpha: 1, lineWidth: 1, textAlign: "left", top: 0 });
  }
  measureText(words) { return this.ruler.measureText(words); }
  createPattern() { return null; } // idle time has a pale fill
  setLineDash(lengths) { this.dash = lengths.join(" "); }
  save() { this.open = 0; }
  restore() { this.shapes.push("</g>".repeat(this.open)); this.open = 0; }
  rect(...at) { this.area = this.box(...at); }
  clip() {
    const name = `clip${this.shapes.length}`;
    this.write("clipPath", { id: name }, `<rect${Object.entries(this.area).map(([key, value]) => ` ${key}="${value}"`).join("")}/>`);
    this.shapes.push(`<g clip-path="url(#${name})">`);
    this.open += 1;
  }
  beginPath() { this.d = ""; }
  moveTo(x, y) { this.d += `M${x.toFixed(1)} ${(y + this.top).toFixed(1)}`; }
  lineTo(x, y) { this.d += `L${x.toFixed(1)} ${(y + this.top).toFixed(1)}`; }
  bezierCurveTo(...at) { this.d += `C${at.map((one, index) => (index % 2 ? one + this.top : one).toFixed(1)).join(" ")}`; }
  write(tag, values, inside = "") {
    const text = Object.entries(values).map(([name, value]) => ` ${name}="${value}"`).join("");
    this.shapes.push(`<${tag}${text}>${inside}</${tag}>`);
  }
  get line() {
    return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, opacity: this.globalAlpha, "stroke-dasharray": this.dash || "none" };
  }
  stroke() { this.write("path", { d: this.d, ...this.line }); }
  fill() { this.write("path", { d: this.d, fill: this.fillStyle, opacity: this.globalAlpha }); }
  box(x, y, width, height) {
    const [left, right] = [Math.max(x, 0), Math.min(x + width, this.canvas.clientWidth)];
    return { x: left.toFixed(1), y: (y + this.top).toFixed(1), width: Math.max(0, right - left).toFixed(1), height };
  }
  fillRect(...at) {
    const isPale = !this.fillStyle; // a pattern
    this.write("rect", { ...this.box(...at), fill: this.fillStyle || css("bubble"), opacity: isPale ? 0.25 : this.globalAlpha });
  }
  strokeRect(...at) { this.write("rect", { ...this.box(...at), ...this.line }); }
  fillText(words, x, y) {
    const anchor = this.textAlign === "center" ? "middle" : "start";
    const text = words.replace(/[&<>]/g, (sign) => `&#${sign.charCodeAt(0)};`);
    this.write("text", { x: x.toFixed(1), y: (y + this.top + 4).toFixed(1), fill: this.fillStyle, "text-anchor": anchor, opacity: this.globalAlpha }, text);
  }
}

function momentAsSvg() {
  const pen = new SvgPen(axis.clientWidth), width = axis.clientWidth;
  hatchings.clear(); // canvases have patterns, this has none
  for (const run of runsShown()) {
    Object.assign(pen, { fillStyle: css("ink"), textAlign: "left", globalAlpha: 1 });
    pen.fillText(run.loop, 4, 12);
    pen.top += 24;
    drawRun({ clientWidth: width, clientHeight: run.height, pen }, run, page);
    pen.top += run.height + 8;
  }
  drawAxis({ clientWidth: width, pen }, page.view);
  hatchings.clear();
  const height = Math.ceil(pen.top + 30), x = scaleOf(axis, page.view).x(page.time).toFixed(1);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" `
    + `font-family="system-ui, sans-serif" font-size="11"><title>${document.title}</title>`
    + `<rect width="${width}" height="${height}" fill="${css("paper")}"/>${pen.shapes.join("\n")}`
    + `<path d="M${x} 0V${height - 28}" stroke="${css("bubble")}" stroke-width="2"/></svg>\n`;
}

const saveSvg = () => save(`${runs[page.run].loop}.svg`, momentAsSvg(), "image/svg+xml");

// Chrome's trace events: a process for each run, a thread for each lane, microseconds.
function perfettoEvents() {
  return runsShown().flatMap((run) => [
    { ph: "M", name: "process_name", pid: run.index + 1, args: { name: run.loop } },
    ...run.lanes.flatMap((lane, at) => [
      { ph: "M", name: "thread_name", pid: run.index + 1, tid: at + 1, args: { name: lane.title } },
      ...lane.slices.map(({ phase, step, start, end, rids }) => ({
        ph: "X", name: step ? `${phase} ${step}` : phase, pid: run.index + 1, tid: at + 1, ts: start / 1000, dur: (end - start) / 1000,
        args: { requests: rids.join(" ") },
      })),
    ]),
  ]);
}

const savePerfetto = () => save("runs.perfetto.json", JSON.stringify({ traceEvents: perfettoEvents() }), "application/json");
