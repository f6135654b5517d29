"""The worked examples of CONTRIBUTING.md, followed word by word in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (Add an? [a-z ]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
FOLDERS = ("minisched", "tests", "traces", "diagrams", "lessons")
FILES = ("pyproject.toml", "README.md", "README.zh-CN.md")
STEP = re.compile(
    r"^(?:New file `(?P<new>[^`\n]+)`"
    r"|Whole file `(?P<whole>[^`\n]+)`, of which the beginning is there already"
    r"|In `(?P<path>[^`\n]+)`, (?P<how>below|replace) (?P<tick>`+)(?P<line>[^\n]+)(?P=tick))"
    r":\n\n```(?:python|markdown)\n(?P<text>.*?)```$|^```sh\n(?P<commands>.*?)```$",
    re.M | re.S,
)
CLEAN = ("ruff check .", "ruff format --check .", "mypy minisched")


def follow(section: str, root: Path) -> list[str]:
    """Do to a copy what a section says; the commands that it ends with."""
    commands: list[str] = []
    steps = list(STEP.finditer(SECTIONS[section]))
    assert len(steps) == len(re.findall("^```", SECTIONS[section], re.M)) // 2, (
        f"{section}: a block is not understood"
    )
    for step in steps:
        if step["new"]:
            assert not (root / step["new"]).exists(), f"{step['new']} is there already"
            (root / step["new"]).write_text(step["text"], "utf-8")
        elif step["whole"]:
            assert (root / step["whole"]).exists(), f"{step['whole']} has no beginning"
            (root / step["whole"]).write_text(step["text"], "utf-8")
        elif step["path"]:
            source, line = (root / step["path"]).read_text("utf-8"), f"{step['line']}\n"
            assert source.count(f"\n{line}") == 1, f"{step['path']} has no single line {line!r}"
            kept = line if step["how"] == "below" else ""
            changed = source.replace(f"\n{line}", f"\n{kept}{step['text']}")
            (root / step["path"]).write_text(changed, "utf-8")
        else:
            commands += step["commands"].splitlines()
    return commands


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return the root of a copy of the checkout."""
    root = tmp_path / "minisched"
    ignored = shutil.ignore_patterns("__pycache__", "node_modules", "out")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    return root


def run(line: str, root: Path) -> str:
    """A command as in a shell there: what it printed, if it went well."""
    env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    env["PYTHONPATH"] = str(root)
    env.pop("MINISCHED_THOROUGH", None)
    done = subprocess.run(
        line, shell=True, cwd=root, env=env, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.thorough
def test_the_page_is_enough(copy: Path) -> None:
    """Each section is followed after those before it, and its commands end well."""
    for section in SECTIONS:
        commands = follow(section, copy)
        assert commands
        for line in commands:
            said = run(line, copy)
            assert "every law held" in said or not line.startswith("minisched check"), said
    for line in CLEAN:
        run(line, copy)
