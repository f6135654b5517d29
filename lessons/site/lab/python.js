// The page's side of worker.js: a function of session.py becomes a promise of its text.

export class Python {
  constructor(onProgress) {
    this.waiting = new Map();
    this.asked = 0;
    this.worker = new Worker("worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.progress) onProgress(data.progress);
      else this.settle(data);
    };
    this.worker.onerror = (event) => {
      event.preventDefault();
      for (const id of [...this.waiting.keys()]) {
        this.settle({ id, error: event.message || "Python could not be loaded." });
      }
    };
  }

  call(name, text = "") {
    const id = ++this.asked;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, name, text });
    });
  }

  settle({ id, value, error }) {
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (error === undefined) resolve(value);
    else reject(new Error(error));
  }
}
