"""Where a bug was published: ``vLLM #48245``, or a commit as ``mini-sglang 20fcd7f``."""

from __future__ import annotations

import re

REPOSITORIES = {  # on GitHub, where an issue's address leads to a pull request, too
    "SGLang": "sgl-project/sglang",
    "sglang-jax": "sgl-project/sglang-jax",
    "mini-sglang": "sgl-project/mini-sglang",
    "vLLM": "vllm-project/vllm",
    "vllm-ascend": "vllm-project/vllm-ascend",
    "vllm-omni": "vllm-project/vllm-omni",
    "MindIE-LLM": "Ascend/MindIE-LLM",
    "tt-metal": "tenstorrent/tt-metal",
}
SAME = {"mindie": "MindIE-LLM"}  # what else they are called
CURED_BY = {  # MindIE-LLM's numbers are not GitHub's; the commits that cured them are there
    "#42": "7360e68",
    "#75": "212297e",
    "#233": "90669ea",
}
REFERENCE = re.compile(r"([\w-]+) (#[1-9]\d*|[0-9a-f]{7,40})")


def address(reference: str) -> str:
    """The web address of a reference.

    Raises:
        ValueError: it is not ``NAME #NUMBER`` or ``NAME COMMIT``, or nobody knows the name, or of
            MindIE-LLM the number.
    """
    found = REFERENCE.fullmatch(reference)
    name = repository_of(found[1]) if found else ""
    if not found or not name:
        raise ValueError(
            f"{reference!r} is no reference; it must be a name with a number or a commit, such as "
            f"'vLLM #48245', and the names are {', '.join(REPOSITORIES)}."
        )
    repository, which = f"https://github.com/{REPOSITORIES[name]}", found[2]
    if name == "MindIE-LLM" and which.startswith("#"):
        if which not in CURED_BY:
            raise ValueError(f"{reference!r} has no commit; those known are {', '.join(CURED_BY)}.")
        which = CURED_BY[which]
    number = which.removeprefix("#")
    return f"{repository}/issues/{number}" if "#" in which else f"{repository}/commit/{number}"


def repository_of(name: str) -> str:
    """The usual spelling of a repository's name; empty if nobody knows it."""
    known = {other.lower(): other for other in REPOSITORIES} | SAME
    return known.get(name.lower(), "")
