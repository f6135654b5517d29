"""The lab: a page that runs the simulator in the browser, with Python from the npm package."""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from .repository import ROOT, SITE

PYTHON = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip",
          "pyodide-lock.json")  # fmt: skip
NODE_MODULES = SITE / "node_modules"
ADVICE = "run `npm ci --prefix lessons/site` (it needs Node), then build the site again"
NOT_NEEDED = ("bench", "cli", "replay", "learn")  # folders of the package


def pages(node_modules: Path = NODE_MODULES) -> dict[str, str]:
    """The page that leads to the lab, or says what is missing."""
    return {"lab.md": HERE if has_python(node_modules) else MISSING}


def has_python(node_modules: Path = NODE_MODULES) -> bool:
    """Whether the npm package is installed."""
    return all((node_modules / "pyodide" / name).is_file() for name in PYTHON)


def write(out: Path, node_modules: Path = NODE_MODULES) -> None:
    """The lab's own files, Python, and minisched; everything it loads lies beside it.

    Raises:
        FileNotFoundError: the npm package is not installed.
    """
    folder = out / "lab"
    shutil.copytree(SITE / "lab", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_*"))
    (folder / "pyodide").mkdir(exist_ok=True)
    for name in PYTHON:
        shutil.copyfile(node_modules / "pyodide" / name, folder / "pyodide" / name)
    zip_package(folder / "minisched.zip")


def zip_package(archive: Path) -> None:
    """What the simulator and its pictures need of minisched; the same files give the same bytes."""
    package = ROOT / "minisched"
    with ZipFile(archive, "w", ZIP_DEFLATED) as made:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package)
            if path.suffix in (".py", ".js", ".css") and inside.parts[0] not in NOT_NEEDED:
                entry = ZipInfo(f"minisched/{inside.as_posix()}")
                made.writestr(entry, path.read_bytes(), ZIP_DEFLATED)


HERE = """\
# The lab: move a slider, and it runs again

The simulator behind `minisched compare`, running in your browser: choose two loops, and set how
long the host, the device and the copy take. Every change runs the workload again, checks that the
tokens are identical, and draws both runs.

<p class="big-link"><a href="lab/index.html">Open the lab</a></p>

It loads Python ([Pyodide](https://pyodide.org), MPL 2.0, 14 MB) from this site in a few seconds,
and nothing from anywhere else. A browser does not start it from a file: serve the site with
`python -m http.server -d out/site` and open `http://localhost:8000/`.

Some places to start:

- <a href="lab/index.html#host=6.7&forward=8">overlap wins</a>: the host has something to hide
- <a href="lab/index.html#host=1&forward=20">it ties</a>: the host has little to hide
- <a href="lab/index.html#host=2&forward=16&tokens=2">it loses</a>: two tokens, and a step too many
- <a href="lab/index.html#loops=vllm_async,mlx_async&needs=grammar">a grammar</a>: one design waits,
  the other idles
"""

MISSING = f"""\
# The lab

The lab runs the simulator in the browser, and was left out of this build: Python for the browser is
an npm package, and it is not installed. To have it, {ADVICE}.
"""
