// The page's side of worker.js: a function of a Python module becomes a promise of its text.
// With `most`, a call that takes more seconds is stopped, and so is its Python.

export class Python {
  constructor(module, onProgress, most = 0, onReady = () => {}) {
    this.waiting = new Map();
    this.failed = ""; // why no call can be made any more
    this.late = null; // a timer: from when a call began, as Python takes a while to load
    this.asked = 0;
    this.worker = new Worker(new URL(`worker.js?${module}`, import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.progress) onProgress(data.progress);
      else if (data.ready) onReady();
      else if (data.began) this.limit(most);
      else this.settle(data);
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.fail(event.message || "Python could not be loaded.");
    };
  }

  call(name, text = "", file = null) {
    if (this.failed) return Promise.reject(new Error(this.failed));
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, name, text, file });
    });
  }

  limit(most) {
    const words = `Your lines were not done after ${most} s, and Python was stopped.`;
    clearTimeout(this.late);
    if (most) this.late = setTimeout(() => this.stop(words), 1000 * most);
  }

  // Whatever it is doing; this one cannot be called again.
  stop(words = "Stopped.") {
    this.worker.terminate();
    this.fail(words);
  }

  fail(error) {
    this.failed = error;
    for (const id of [...this.waiting.keys()]) this.settle({ id, error });
  }

  settle({ id, value, error }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    clearTimeout(this.late);
    if (error === undefined) resolve(value);
    else reject(new Error(error));
  }
}
