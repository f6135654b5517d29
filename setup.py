"""The parts of the package's metadata that are derived: its links and its long description.

pyproject.toml has everything else. The address of the project is ``tool.minisched.repository``
there, or ``MINISCHED_GITHUB=OWNER/NAME`` in a fork.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(?P<mark>!?)\[(?P<words>[^][]*)\]\((?P<to>[^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def address() -> str:
    """Return the address of the repository, without a slash at its end. May be empty."""
    fork = os.environ.get("MINISCHED_GITHUB", "")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named: str = settings["tool"]["minisched"]["repository"]
    return f"https://github.com/{fork}" if fork else named.rstrip("/")


def project_urls(repository: str) -> dict[str, str]:
    """Return the links of an index's page; none without an address."""
    if not repository:
        return {}
    owner, name = repository.split("/")[-2:]
    return {
        "Homepage": f"https://{owner}.github.io/{name}/",
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def long_description(readme: str, repository: str) -> str:
    """Return the README as an index can show it: no link is relative.

    Without an address, a link to a file becomes its words, and a picture is left out.
    """

    def absolute(link: re.Match[str]) -> str:
        if re.match(r"https?://", link["to"]):
            return link[0]
        if not repository:
            return "" if link["mark"] else link["words"]
        return (
            f"{link['mark']}[{link['words']}]({repository}/{kind[link['mark']]}/main/{link['to']})"
        )

    kind = {"!": "raw", "": "blob"}
    parts = FENCE.split(readme)
    parts[::2] = [LINK.sub(absolute, part) for part in parts[::2]]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))


if __name__ == "__main__":
    setup(
        long_description=long_description(
            (ROOT / "README.md").read_text(encoding="utf-8"), address()
        ),
        long_description_content_type="text/markdown",
        project_urls=project_urls(address()),
    )
