"""What the package has from other files than pyproject.toml: links, long description, lessons.

hatchling calls the two hooks. The address of the project is ``tool.minisched.repository`` of
pyproject.toml, or ``MINISCHED_GITHUB=OWNER/NAME`` in a fork.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"<picture>.*?</picture>\n?", re.S)
SOURCE = re.compile(r"(?P<name>src|srcset)=\"(?P<to>[^\"]+)\"")
LINK = re.compile(r"\[(?P<words>[^][]*)\]\((?P<to>[^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


class Metadata(MetadataHookInterface):
    """Adds the long description and the links of an index's page to the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set both of them."""
        root = Path(self.root)
        readme = (root / "README.md").read_text(encoding="utf-8")
        text = long_description(readme, address(root))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = project_urls(address(root))


class Lessons(BuildHookInterface[Any]):
    """Puts the lessons into the wheel, where ``minisched learn`` finds them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each lesson, and its place below ``sys.prefix``."""
        lessons = Path(self.root) / "lessons"
        for pattern in ("*.py", "*.md", "zh/*.py", "template/*"):
            for path in lessons.glob(pattern):
                name = path.relative_to(lessons).as_posix()
                build_data["shared_data"][str(path)] = f"share/minisched/lessons/{name}"


def address(root: Path) -> str:
    """Return the address of the repository, without a slash at its end. May be empty."""
    fork = os.environ.get("MINISCHED_GITHUB", "")
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
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
            return link["words"]
        return f"[{link['words']}]({repository}/blob/main/{link['to']})"

    if not repository:
        readme = PICTURE.sub("", readme)
    readme = SOURCE.sub(rf'\g<name>="{repository}/raw/main/\g<to>"', readme)
    parts = FENCE.split(readme)
    parts[::2] = [LINK.sub(absolute, part) for part in parts[::2]]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))
