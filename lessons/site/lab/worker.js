// Python, in a thread of its own: the page stays responsive while a run is on.
// It receives {id, name, text} and answers {id, value} or {id, error}; {progress} while it loads,
// {ready} when that is over, and {began} when the call begins. With a {file}, that is where Python is, and the call gets its name as
// "path" and a function for progress. The file is not copied: Python reads from it.
// Its address says whose functions they are: worker.js?session.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const FILES = ["experiment.py", "report.py", "session.py", "cells.py", "checker.py"];
const DROPPED = "/dropped";

const python = start();
python.catch(() => {}).then(() => postMessage({ ready: true })); // an error is for the caller

async function start() {
  postMessage({ progress: "Loading Python (14 MB, once) …" });
  const files = ["minisched.zip", ...FILES].map(load);
  const [pyodide, archive, ...sources] = await Promise.all([loadPyodide(), ...files]);
  postMessage({ progress: "Loading minisched …" });
  pyodide.unpackArchive(archive, "zip");
  FILES.forEach((name, at) => pyodide.FS.writeFile(name, new Uint8Array(sources[at])));
  return { session: pyodide.pyimport(location.search.slice(1)), files: pyodide.FS };
}

async function load(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name} is missing (${answer.status}): build the site again.`);
  return answer.arrayBuffer();
}

function withFile(files, file, text) {
  if (files.analyzePath(DROPPED).exists) files.unmount(DROPPED);
  else files.mkdir(DROPPED);
  files.mount(files.filesystems.WORKERFS, { files: [file] }, DROPPED);
  return JSON.stringify({ ...JSON.parse(text), path: `${DROPPED}/${file.name}` });
}

onmessage = async ({ data: { id, name, text, file } }) => {
  try {
    const { session, files } = await python;
    postMessage({ began: id });
    const tell = (progress) => postMessage({ progress });
    const value = file ? session[name](withFile(files, file, text), tell) : session[name](text);
    postMessage({ id, value });
  } catch (error) {
    postMessage({ id, error: sentence(error) });
  }
};

// The last line of a Python traceback, without the name of its class.
function sentence(error) {
  const line = error.message.trim().split("\n").at(-1);
  return line.replace(/^\w+(Error|Exception): /, "");
}
