"""Python in the browser: the lab, which runs the simulator, and the lessons' live exercises.

Python is Pyodide, from the npm package. A build without it has neither, and a page reports that.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from .repository import ROOT, SITE, text

PYTHON = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip",
          "pyodide-lock.json")  # fmt: skip
NODE_MODULES = SITE / "node_modules"
ADVICE = "run `npm ci --prefix lessons/site` (it needs Node), then build the site again"
NOT_NEEDED = ("bench", "cli")  # folders of the package


def pages(node_modules: Path = NODE_MODULES) -> dict[str, str]:
    """Return the lab and the page that checks a file, or pages that name the missing package."""
    found = {}
    for name, about, form in (("index", HERE, "form"), ("check", CHECK, "check")):
        page = about + "\n```{raw} html\n" + text(f"lessons/site/lab/{form}.html") + "```\n"
        title = about.partition("\n")[0]
        found[f"lab/{name}.md"] = page if has_python(node_modules) else f"{title}\n\n{MISSING}"
    return found


def has_python(node_modules: Path = NODE_MODULES) -> bool:
    """Return whether the npm package is installed."""
    return all((node_modules / "pyodide" / name).is_file() for name in PYTHON)


def write(out: Path, node_modules: Path = NODE_MODULES) -> None:
    """Write the scripts, Python, and minisched into one folder.

    Raises:
        FileNotFoundError: the npm package is not installed.
    """
    folder = out / "lab"
    shutil.copytree(
        SITE / "lab", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_*", "*.html")
    )
    (folder / "pyodide").mkdir(exist_ok=True)
    for name in PYTHON:
        shutil.copyfile(node_modules / "pyodide" / name, folder / "pyodide" / name)
    zip_package(folder / "minisched.zip")


def zip_package(archive: Path) -> None:
    """Pack the package for the lab and the lessons; the same files give the same bytes."""
    package = ROOT / "minisched"
    with ZipFile(archive, "w", ZIP_DEFLATED) as made:
        for path in sorted(package.rglob("*")):
            inside = path.relative_to(package)
            is_source = path.is_file() and "__pycache__" not in inside.parts
            if is_source and inside.parts[0] not in NOT_NEEDED:
                entry = ZipInfo(f"minisched/{inside.as_posix()}")
                made.writestr(entry, path.read_bytes(), ZIP_DEFLATED)


HERE = """\
# The lab: move a slider, and it runs again

The simulator of `minisched compare`, in your browser. Choose two loops, and set the times of host,
device and copy. Every change runs the workload again, through the serial loop and those two. The page
checks that the tokens are identical, and draws the runs. Python ([Pyodide](https://pyodide.org),
14 MB) comes from this site in a few seconds. The page loads nothing from other sites.
"""

CHECK = """\
# Check a trace here

Is your engine overlapped, and why does its device idle? Drop a trace of `torch.profiler` (`.json`, also
`.json.gz`), of Nsight Systems (`nsys export --type sqlite`), of `rocprofv3` (`--output-format rocpd`), or one
in [minisched's format](../traces/README.md). [Recipes](../lessons/site/docs/recipes.md) make one with six engines.

**The file stays on this machine.** Python ([Pyodide](https://pyodide.org), 14 MB) comes from this site and
reads the file in this page. The page sends nothing, and works without a network once it is loaded. 50 MB of
JSON take less than a minute. A larger file is faster with `minisched check FILE`, which gives the same answers.
"""

MISSING = f"""\
This page runs Python in the browser. It was left out of this build, because the npm package of
Python for the browser is not installed. To add it, {ADVICE}.
"""
