"""Every topic has its code, picture, laws, trace and view; what has no lesson is named."""

from __future__ import annotations

from pathlib import Path

from minisched.topics import TOPICS, laws, parts, taught

ROOT = Path(__file__).resolve().parents[2]
TAUGHT = taught(ROOT / "lessons")
HAVE_LESSONS = {"serial", "overlap", "future_map", "mlx_async", "lazy_chain"}


def is_there(topic: str, part: str, pattern: str) -> bool:
    """Whether the repository has this part of a topic."""
    if part == "laws":
        return laws(topic, ROOT / "tests") is not None
    return any(ROOT.glob(pattern)) or (part == "lesson" and topic in TAUGHT)


def test_every_topic_is_complete_but_for_the_lessons_that_are_still_to_come() -> None:
    lacking = {
        (topic, part, pattern)
        for topic in TOPICS
        for part, pattern in parts(topic).items()
        if not is_there(topic, part, pattern)
    }
    assert lacking == {
        (topic, "lesson", parts(topic)["lesson"]) for topic in TOPICS if topic not in HAVE_LESSONS
    }


def test_laws_are_found_by_a_file_s_name_or_by_a_heading_in_the_topic_s_own_folder(
    tmp_path: Path,
) -> None:
    for name, text in {
        "loops/test_pd.py": "",
        "loops/test_vllm.py": "# -- vllm_pp: stages ---\n\n# -- vllm_step: a step ---\n",
        "loops/test_other.py": "x = 1  # -- serial: not at a line's beginning\n# -- overlap\n",
        "relay/test_mlx_async.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = {topic: path.name for topic in TOPICS if (path := laws(topic, tmp_path))}
    assert found == {"pd": "test_pd.py", "vllm_pp": "test_vllm.py", "vllm_step": "test_vllm.py"}


def test_a_lesson_teaches_its_own_topic_and_others_by_name() -> None:
    for path in (ROOT / "lessons").glob("[0-9][0-9]_*.py"):
        assert TAUGHT.get(path.stem[3:]) == path.stem, f"{path.name} does not name its own topic"
    assert set(TAUGHT) <= set(TOPICS)


def test_every_view_belongs_to_a_topic() -> None:
    views = {  # a view is a module with a function ``view``; what views share has none
        path.stem
        for path in (ROOT / "minisched" / "export" / "views").glob("*.py")
        if "\ndef view(trace: Trace) -> str:" in path.read_text(encoding="utf-8")
    }
    assert views == set(TOPICS)
