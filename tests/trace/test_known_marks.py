"""Marks that say too little, or something else, are refused: the file, the mark, what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from minisched.export import native
from minisched.trace.known_marks import COMMON, KNOWN

TRACES = Path(__file__).resolve().parents[2] / "traces"
WRONG: dict[str, list[Any]] = {
    "text": [3, None, True, ["a"], {}],
    "number": ["3", None, True, 3.0, float("nan"), [3]],
    "numbers": [3, None, "4 x", "-1", "4,5", "9" * 5000],
    "signed numbers": [3, None, "1-2", "x", "-"],
}
GOOD: dict[str, Any] = {"text": "a", "number": 1, "numbers": "1", "signed numbers": "-1"}
HEADER: dict[str, Any] = {
    **{"format": native.FORMAT, "version": native.VERSION},
    **{"loop": "x", "device": "x", "model": "x", "clock": "wall"},
    **{"slices": [], "edges": [], "counters": []},
}


def refused(marks: list[dict[str, Any]]) -> str:
    """The sentence for a file with these marks."""
    with pytest.raises(native.NotATrace) as caught:
        native.from_json(json.dumps({**HEADER, "marks": marks}), "x.json")
    said = str(caught.value)
    assert said.startswith("x.json is a damaged minisched trace: ")
    assert "\n" not in said and len(said) < 250
    return said


def is_read(marks: list[dict[str, Any]]) -> bool:
    try:
        native.from_json(json.dumps({**HEADER, "marks": marks}))
    except native.NotATrace:
        return False
    return True


def whole(name: str, time: int = 5) -> dict[str, Any]:
    """A mark with all that its name promises."""
    attrs = {key.removesuffix("*"): GOOD[kind] for key, kind in KNOWN[name].items()}
    return {"name": name, "time": time, "attrs": attrs}


def test_the_table_is_the_one_in_the_text() -> None:
    told: dict[str, dict[str, str]] = {}
    text = (TRACES / "README.md").read_text(encoding="utf-8")
    for names, attrs in re.findall(r"^\| ((?:`[a-z ]+`(?:, )?)+) \| (`.*?: .*?) \|", text, re.M):
        found = re.findall(r"`([\w ]+)`(\\\*)?: ([a-z ]+)", attrs)
        for name in re.findall(r"`(.+?)`", names):
            told[name] = {key + "*" * bool(star): kind for key, star, kind in found}
    assert told == KNOWN


@pytest.mark.parametrize("name", KNOWN)
def test_each_attribute_must_be_there_and_of_its_kind(name: str) -> None:
    other = {"name": "my own", "time": 1}
    for key, kind in {**KNOWN[name], **COMMON}.items():
        plain = key.removesuffix("*")
        for value in WRONG[kind]:
            mark = whole(name)
            mark["attrs"][plain] = value
            said = refused([other, mark])
            assert re.search(rf"marks\[1\], an? '{name}', has {plain} = ", said), said
        mark = whole(name)
        mark["attrs"].pop(plain, None)
        if key.endswith("*"):
            assert is_read([mark])
        else:
            assert re.search(rf"marks\[1\], an? '{name}', lacks '{plain}'", refused([other, mark]))


def test_a_token_for_each_request_and_times_in_order() -> None:
    mark = whole("tokens")
    mark["attrs"]["rids"] = "a b"
    assert "marks[0], a 'tokens', has 2 rids, but 1 tokens" in refused([mark])
    said = refused([whole("insert"), whole("finish", 4)])
    assert "marks[1], a 'finish', is at 4, before marks[0], which is at 5" in said
    sides = [whole("insert"), whole("finish", 4), whole("commit", 6)]
    sides[1]["attrs"]["side"] = "decode"
    text = json.dumps({**HEADER, "marks": sides})
    assert [mark.time for mark in native.from_json(text).marks] == [4, 5, 6]
    alike = [whole("page free"), whole("page free", 6)]
    alike[1]["attrs"]["pages"] = "x"
    assert "marks[1], a 'page free', has pages" in refused(alike)


def test_marks_of_other_names_may_say_anything_but_nothing() -> None:
    """Even under names that other marks have: ``step``, ``row``, ``rid``."""
    strange = {"step": "warm-up", "row": "x", "rid": 7, "pages": 2.5, "ok": True}
    assert is_read([{"name": "my own", "time": 0, "attrs": strange}])
    nothing: list[Any] = [None, [], {}]
    for value in nothing:
        said = refused([{"name": "my own", "time": 1, "attrs": {"x": value}}])
        assert "marks[0], a 'my own', has x = " in said
        item = {"id": 3, "lane": "host", "name": "launch", "start": 0, "end": 1}
        data = {**HEADER, "slices": [{**item, "attrs": {"x": value}}], "marks": []}
        with pytest.raises(native.NotATrace, match=r"slice 3 has x = "):
            native.from_json(json.dumps(data))


@pytest.mark.parametrize("golden", ["pd", "radix_cache", "mindie_placeholder"])
@pytest.mark.parametrize("value", ["absent", "zz"])
def test_what_is_not_refused_gives_no_traceback(
    tmp_path: Path, minisched: Any, golden: str, value: str
) -> None:
    """All attributes of a run's marks are damaged that may be: the questions are answered."""
    data = json.loads((TRACES / f"{golden}.json").read_text(encoding="utf-8"))
    may: dict[tuple[str, str], bool] = {}
    for mark in data["marks"]:
        for key in list(mark["attrs"]):
            damaged = {name: it for name, it in mark["attrs"].items() if name != key}
            damaged |= {} if value == "absent" else {key: value}
            if (mark["name"], key) not in may:
                may[mark["name"], key] = is_read([{**mark, "attrs": damaged}])
            if may[mark["name"], key] and key not in ("side", "rids"):
                mark["attrs"] = damaged
    assert set(may.values()) == {True, False}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    code, out, _ = minisched("check", "--json", str(path))
    assert code in (0, 1) and json.loads(out)
