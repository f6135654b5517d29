// The page's side of worker.js: a function of a Python module becomes a promise of its text.

export class Python {
  constructor(module, onProgress) {
    this.waiting = new Map();
    this.asked = 0;
    this.worker = new Worker(new URL(`worker.js?${module}`, import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.progress) onProgress(data.progress);
      else this.settle(data);
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      this.fail(event.message || "Python could not be loaded.");
    };
  }

  call(name, text = "") {
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, name, text });
    });
  }

  // Whatever it is doing; this one cannot be called again.
  stop() {
    this.worker.terminate();
    this.fail("Stopped.");
  }

  fail(error) {
    for (const id of [...this.waiting.keys()]) this.settle({ id, error });
  }

  settle({ id, value, error }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (error === undefined) resolve(value);
    else reject(new Error(error));
  }
}
