"""The topics: one word names an idea in its code, picture, lesson, laws, trace and view."""

from __future__ import annotations

import re
from pathlib import Path

TOPICS = {  # topic -> the folder of its code
    "radix_cache": "memory",
    "page_allocator": "memory",
    "schedule_policy": "policy",
    "prefill": "policy",
    "decode": "policy",
    "retraction": "policy",
    "mixed_chunk": "policy",
    "unified": "policy",
    "future_map": "relay",
    "token_pool": "relay",
    "lazy_chain": "relay",
    "placeholder_fill": "relay",
    "prev_sampled": "relay",
    "generation_batch_result": "worker",
    "grammar_manager": "scheduler",
    "serial": "loops",
    "overlap": "loops",
    "overlap_thread": "loops",
    "mini_normal": "loops",
    "mini_overlap": "loops",
    "mlx_async": "loops",
    "vllm_step": "loops",
    "vllm_batch_queue": "loops",
    "vllm_pp": "loops",
    "mindie_plugin": "loops",
    "mindie_placeholder": "loops",
    "mindie_dual": "loops",
    "mindie_single": "loops",
    "multi_step": "loops",
    "pd": "loops",
}


def parts(topic: str) -> dict[str, str]:
    """Where each part of a topic belongs, as a pattern of paths from the repository's root."""
    return {
        "code": f"minisched/{TOPICS[topic]}/{topic}.py",
        "diagram": f"diagrams/{topic}.puml",
        "picture": f"diagrams/{topic}.svg",
        "laws": f"tests/{TOPICS[topic]}/test_*.py",  # which of them: ``laws``
        "trace": f"traces/{topic}.json",
        "lesson": f"lessons/[0-9][0-9]_{topic}.py",
        "view": f"minisched/export/views/{topic}.py",
    }


def laws(topic: str, tests: Path) -> Path | None:
    """The file of its folder that tests a topic: by its name, or by a heading in it.

    In a file of several topics such a heading is a line ``# -- vllm_pp: stages of a pipeline ---``.
    """
    heading = re.compile(rf"^# -- {topic}: ", re.M)
    for path in sorted(tests.glob(f"{TOPICS[topic]}/test_*.py")):
        if path.stem == f"test_{topic}" or heading.search(path.read_text(encoding="utf-8")):
            return path
    return None


def taught(lessons: Path) -> dict[str, str]:
    """Topic -> the lesson that teaches it, as the headers of the lessons in a folder say.

    A lesson's header (``minisched:``, ``topics: [..]``) names its own topic, and smaller ones.
    """
    found = {}
    for path in sorted(lessons.glob("[0-9][0-9]_*.py")):
        header = re.search(r"^#\s+topics: \[(.*)\]$", path.read_text(encoding="utf-8"), re.M)
        found.update(dict.fromkeys(re.findall(r"\w+", header[1]) if header else [], path.stem))
    return found
