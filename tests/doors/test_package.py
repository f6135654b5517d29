"""The package as an index shows it and as a user installs it: metadata, links, lowest versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import minisched
from minisched.cli.app import COMMANDS
from tests.doors.conftest import GIVEN, ROOT, copy_of_the_sources

ADDRESS = "https://github.com/some-body/some-fork"


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        return message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return .ci/package.py as a module."""
    spec = spec_from_file_location("package", ROOT / ".ci" / "package.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_has_one_version_and_all_that_an_index_shows(wheel: Path) -> None:
    found = metadata_of(wheel)
    assert found["Version"] == minisched.__version__
    assert found["Author"] == "The minisched authors" and found["License-Expression"]
    assert len(found["Keywords"].split(",")) >= 5
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)}
    assert versions | {"Typing :: Typed"} <= set(found.get_all("Classifier", []))
    assert found["Description-Content-Type"] == "text/markdown"


def links(markdown: str) -> list[str]:
    """Return where each link and picture of a page leads."""
    return re.findall(r"(?:\]\(|src=\"|srcset=\")([^()\s\"]+)", markdown)


def test_no_link_of_the_long_description_is_relative(script: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    relative = [to for to in links(readme) if not to.startswith("http")]
    assert len(relative) > 20
    assert all((ROOT / to.partition("#")[0]).exists() for to in relative)
    without = script.long_description(readme, "")
    assert all(to.startswith("https://") for to in links(without))
    assert "the lessons" in without and "<picture>" not in without
    absolute = script.long_description(readme, ADDRESS)
    for before, after in zip(links(readme), links(absolute), strict=True):
        assert after in (before, f"{ADDRESS}/blob/main/{before}", f"{ADDRESS}/raw/main/{before}")
        assert after.startswith("https://")
    assert f'src="{ADDRESS}/raw/main/diagrams/compare.svg"' in absolute


def test_one_variable_has_the_address(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINISCHED_GITHUB", raising=False)
    assert bool(script.project_urls(script.address(ROOT))) == bool(script.address(ROOT))
    monkeypatch.setenv("MINISCHED_GITHUB", "some-body/some-fork")
    urls = script.project_urls(script.address(ROOT))
    assert urls["Homepage"] == "https://some-body.github.io/some-fork/"
    assert {"Repository", "Issues", "Changelog"} < set(urls) and urls["Repository"] == ADDRESS


@pytest.mark.thorough
def test_the_sdist_builds_the_same_wheel_and_both_pass_the_index_s_checks(
    wheel: Path, tmp_path: Path
) -> None:
    source = copy_of_the_sources(tmp_path / "source")

    def run(*arguments: object) -> None:
        command = [sys.executable, "-m", *map(str, arguments)]
        own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NO_COLOR": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=own, timeout=600, encoding="utf-8"
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    built = tmp_path / "dist"
    run("build", "--no-isolation", "--outdir", built, source)  # the wheel from the sdist
    (again,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert set(first.namelist()) == set(second.namelist())
    run("twine", "check", "--strict", *built.iterdir())
    run("check_wheel_contents", again)


CORE = [*(f"{name} --help" for name in COMMANDS), "--help", "--version", "compare --requests 2",
        "check out/serial.json"]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("extra", "lines"),
    [
        ("", CORE),
        ("sweep", ["sweep grid.toml --backend dask --jobs 1"]),
        ("mlx", ["compare --loops mlx_async --device mlx --requests 2"]),
    ],
)
def test_the_lowest_versions_work(
    wheel: Path, tmp_path: Path, extra: str, lines: list[str]
) -> None:
    """The package and an extra run with the lowest version of each requirement."""
    venv.create(tmp_path / "low", with_pip=True)
    programs = tmp_path / "low" / "bin"
    wanted = [Requirement(text) for text in metadata_of(wheel).get_all("Requires-Dist", [])]
    lowest = [
        f"{one.name}[{','.join(one.extras)}]=={bound.version}"
        for one in wanted if one.marker is None or (extra and one.marker.evaluate({"extra": extra}))
        for bound in one.specifier if bound.operator == ">="
    ]  # fmt: skip
    assert len(lowest) >= 2
    pip = [programs / "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--force-reinstall", wheel, *lowest], check=True, timeout=600)
    shutil.copyfile(GIVEN / "grid.toml", tmp_path / "grid.toml")
    for line in lines:
        done = subprocess.run(
            [programs / "minisched", *line.split()], cwd=tmp_path, capture_output=True, text=True,
            env={"PATH": str(programs), "HOME": str(tmp_path)}, timeout=300, encoding="utf-8",
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (line, done.stderr)
