"""Every topic's view as SVG, as PlantUML where that fits, and as text; and ``minisched view``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minisched.export.recipes import trace_of
from minisched.export.views import FORMS, NothingToShow, decode, draw, parts_of
from minisched.export.views.text_page import COLUMNS
from minisched.topics import TOPICS
from minisched.trace import Trace

REPOSITORY = Path(__file__).resolve().parents[1]
EMPTY = Trace("serial", "sim", "hash", "virtual", (), (), (), ())


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_a_picture_and_a_text(topic: str) -> None:
    trace = trace_of(topic)
    text = draw(topic, trace, "text")
    lines = text.splitlines()
    assert max(map(len, lines)) <= COLUMNS, [line for line in lines if len(line) > COLUMNS]
    assert text == draw(topic, trace, "text") and text.endswith("\n")
    assert len(lines) > 5 and lines[0].strip() and "\x1b" not in text and "<" not in lines[0]
    assert draw(topic, trace) == draw(topic, trace, "svg")
    assert draw(topic, trace).startswith("<svg ")


@pytest.mark.parametrize("topic", TOPICS)
def test_plantuml_is_there_or_one_sentence_says_where(topic: str) -> None:
    try:
        puml = draw(topic, trace_of(topic), "puml")
    except NothingToShow:
        raise
    except ValueError as error:
        assert str(error).count(".") == 1 and "has no PlantUML form; " in str(error)
        named = str(error).rpartition(" are ")[2].rstrip(".").split(", ")
        assert named and topic not in named
        return
    assert puml.startswith("@startuml\n") and puml.endswith("@enduml\n")
    assert puml == draw(topic, trace_of(topic), "puml")


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("form", FORMS)
def test_an_empty_trace_gets_one_sentence_in_every_form(topic: str, form: str) -> None:
    for part in parts_of(topic) or ("",):
        with pytest.raises(ValueError, match=r"^[^.]*\.$") as error:
            draw(topic, EMPTY, form, part)
        if "PlantUML form" not in str(error.value):
            assert isinstance(error.value, NothingToShow)


def test_what_is_not_there_is_said_in_one_sentence() -> None:
    trace = trace_of("serial")
    for arguments, words in (
        (("nope",), "unknown topic 'nope'; the topics are radix_cache, "),
        (("serial", "png"), "unknown form 'png'; the forms are svg, puml, text."),
        (
            ("serial", "svg", "nope"),
            "topic 'serial' has no part 'nope'; its parts are timing, sequence, steps.",
        ),
        (
            ("decode", "svg", "steps"),
            "topic 'decode' has no part 'steps'; it has one picture only.",
        ),
        (
            ("mindie_placeholder", "puml"),
            "part 'ledger' of topic 'mindie_placeholder' has no PlantUML form; its parts that have "
            "one are timing, sequence, steps.",
        ),
    ):
        with pytest.raises(ValueError) as error:
            draw(arguments[0], trace, *arguments[1:])
        assert str(error.value).startswith(words)


def test_a_topic_without_plantuml_names_those_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(decode, "puml")
    with pytest.raises(ValueError, match=r"^topic 'decode' has no PlantUML form; ") as error:
        draw("decode", trace_of("decode"), "puml")
    named = str(error.value).rpartition(" are ")[2].rstrip(".").split(", ")
    assert "overlap" in named and "decode" not in named
    assert "mindie_placeholder" in named  # its ledger has none, but its other parts have


def test_a_loop_with_a_picture_of_its_own_shows_that_first() -> None:
    assert parts_of("vllm_batch_queue") == ("queue", "timing", "sequence", "steps")
    assert parts_of("mindie_placeholder") == ("ledger", "timing", "sequence", "steps")
    assert parts_of("decode") == ()
    text = draw("vllm_batch_queue", trace_of("vllm_batch_queue"), "text")
    assert "place 2" in text and "place 3" not in text
    ledger = draw("mindie_placeholder", trace_of("mindie_placeholder"), "text")
    assert "tokens of step 5" in ledger and " -1" in ledger


# -- the command -------------------------------------------------------------------------------


def golden(topic: str) -> str:
    return str(REPOSITORY / "traces" / f"{topic}.json")


def test_each_form_and_part_goes_where_it_belongs(view: Any, tmp_path: Path) -> None:
    trace, source = trace_of("overlap"), golden("overlap")
    for arguments, name, form, part in (
        ((), "overlap.svg", "svg", ""),
        (("--part", "timing"), "overlap.svg", "svg", "timing"),
        (("--part", "steps"), "overlap_steps.svg", "svg", "steps"),
        (("--form", "puml"), "overlap.puml", "puml", ""),
        (("--form", "puml", "--part", "sequence"), "overlap_sequence.puml", "puml", "sequence"),
        (("--form", "text", "--out", "a.txt"), "a.txt", "text", ""),
    ):
        assert view("overlap", source, *arguments) == (0, f"{name}\n", "")
        assert (tmp_path / name).read_text() == draw("overlap", trace, form, part)
        (tmp_path / name).unlink()
    for part in parts_of("overlap"):
        code, out, err = view("overlap", source, "--form", "text", "--part", part)
        assert (code, err) == (0, "") and out == draw("overlap", trace, "text", part)
    code, out, err = view("overlap", source, "--form", "puml", "--out", "-")
    assert (code, err) == (0, "") and out.startswith("@startuml")
    assert not list(tmp_path.iterdir())


def test_a_part_of_its_own_keeps_the_topic_s_name(view: Any, tmp_path: Path) -> None:
    source = golden("vllm_batch_queue")
    assert view("vllm_batch_queue", source, "--part", "queue")[1] == "vllm_batch_queue.svg\n"
    timing = "vllm_batch_queue_timing.svg\n"
    assert view("vllm_batch_queue", source, "--part", "timing")[1] == timing


def test_bad_forms_and_parts_are_one_sentence(view: Any, tmp_path: Path) -> None:
    for arguments, words in (
        (
            ("serial", "missing.json", "--form", "png"),
            "--form is 'png', but it must be one of svg,",
        ),
        (("serial", golden("serial"), "--part", "nope"), "has no part 'nope'; its parts are "),
        (("decode", golden("decode"), "--part", "steps"), "it has one picture only."),
        (
            ("mindie_placeholder", golden("mindie_placeholder"), "--form", "puml"),
            "no PlantUML form",
        ),
        (("overlap", golden("overlap"), "--out", "no/such.svg"), "can't be written: No such file"),
    ):
        code, out, err = view(*arguments)
        assert (code, out) == (2, "") and words in err, err
        assert err.count("\n") == 1 and "Traceback" not in err
    assert not list(tmp_path.iterdir())
