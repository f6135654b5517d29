"""An editable install is a path that type checkers follow, and not a hook of the import system."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.doors.conftest import copy_of_the_sources

BUILD = "from hatchling import build; print(build.build_editable('dist'))"
STRICT = """
from collections.abc import Iterator
import minisched as ms
from minisched.core import NoBatch, ScheduleBatch
from minisched.engine.engine import Engine

def mine(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            engine.process_batch_result(engine.run_batch(batch))
        else:
            engine.on_idle()
        yield batch

found = ms.compare(ms.requests(2, ms.SamplingParams(max_new_tokens=4)), loops=["overlap", mine])
speedup: float | None = found.speedup["overlap"]
holds: bool | None = ms.check(mine, workloads=2).holds
ms.show(ms.run(ms.requests(1), mine))
reveal_type(found.runs)
"""


@pytest.mark.thorough
def test_an_editable_install_is_seen_by_a_strict_type_checker(tmp_path: Path) -> None:
    copy, place = tmp_path / "clone", tmp_path / "elsewhere"
    copy_of_the_sources(copy)
    (copy / "dist").mkdir()
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True)
    (wheel,) = (copy / "dist").glob("*.whl")
    venv.create(tmp_path / "env")
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith("_finder.py")]
        archive.extractall(site)
    (path,) = site.glob("*.pth")
    assert path.read_text("utf-8").strip() == str(copy)
    place.mkdir()
    (place / "strict.py").write_text(STRICT, "utf-8")
    python = tmp_path / "env" / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "strict.py"],
        capture_output=True, text=True, cwd=place, env={"HOME": str(tmp_path)}, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "tuple[minisched.loops.run.Run, ...]" in done.stdout
