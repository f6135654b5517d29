"""GitHub's workflows: actionlint accepts them, and what they call is here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
LINT = """
const { createLinter } = await import(process.env.LINTER);
const { readFileSync } = await import("fs");
const lint = await createLinter();
for (const path of JSON.parse(process.env.PATHS))
  for (const found of lint(readFileSync(path, "utf8"), path))
    console.log(`${path}:${found.line}: ${found.message}`);
"""


@pytest.mark.thorough
def test_actionlint_accepts_each_workflow_and_refuses_a_wrong_one(
    pyodide: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(
        WORKFLOWS[0].read_text("utf-8").replace("matrix.python", "matrix.pyhton"), "utf-8"
    )

    def found(*paths: Path) -> str:
        given = "[" + ", ".join(f'"{path}"' for path in paths) + "]"
        linter = (pyodide / "actionlint" / "node.mjs").as_uri()
        command = ["node", "--input-type=module", "-e", LINT]
        env = {"PATH": os.environ["PATH"], "LINTER": linter, "PATHS": given}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=env, encoding="utf-8"
        ).stdout

    assert shutil.which("node") and len(WORKFLOWS) == 2
    assert found(*WORKFLOWS, ROOT / "lessons" / "template" / "grade.yml") == ""
    assert 'property "pyhton" is not defined' in found(wrong)


def test_every_python_of_the_package_is_tried_on_each_platform() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    matrix = yaml.safe_load(text)["jobs"]["first-half"]["strategy"]["matrix"]
    promised = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert matrix["python"] == promised
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    parts = {one["part"] for one in matrix["include"]}
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert all(f'"$part" = {part} ]' in script for part in parts)


def test_the_two_builds_of_the_site_are_the_same() -> None:
    steps = (ROOT / ".github/workflows/docs.yml").read_text("utf-8")
    hosted = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text("utf-8"))
    (install,) = hosted["python"]["install"]
    assert f"pip install -e '.[{','.join(install['extra_requirements'])}]'" in steps
    (packages,) = hosted["build"]["jobs"]["pre_build"]
    assert packages in steps and (ROOT / hosted["sphinx"]["configuration"]).exists()
    page = (ROOT / "lessons/site/docs/running.md").read_text("utf-8")
    assert all(line in page for line in ("pip install -e '.[site,lessons,mlx]'", packages))
