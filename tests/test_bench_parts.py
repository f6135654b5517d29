"""The frame of ``minisched bench``: parts, what is kept of them, and peers in their own process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from minisched.bench.kept import keep
from minisched.bench.machine import machine
from minisched.bench.peers import environment as peer_environment
from minisched.bench.peers.peer import Peer, PeerError
from minisched.bench.rows import Figure, as_json, not_measured
from minisched.cli.bench import name_of
from minisched.cli.bench_call import BenchCall
from minisched.cli.bench_parts import PARTS, find_part


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_loaded(part: str) -> None:
    assert callable(find_part(part))


def test_an_option_that_a_part_has_no_use_for_is_refused() -> None:
    with pytest.raises(ValueError, match="--nano-vllm is of no use to bench hidden"):
        BenchCall("hidden", nano_vllm=Path()).refuse("vidur", "nano_vllm")
    BenchCall("hidden").refuse("vidur", "nano_vllm")


def test_what_was_given_goes_before_a_parts_own() -> None:
    workload = BenchCall("hidden", device="sim", requests=7).workload(model="hash", requests=3)
    assert (workload.device, workload.model, workload.requests) == ("sim", "hash", 7)


def test_both_files_say_the_same(tmp_path: Path) -> None:
    rows = [
        Figure("a step", 2.0, 1.0, 3.0, "ms", 2.5, at_most=True),
        not_measured("b", "ms", "why"),
    ]
    document = as_json(rows)
    as_data, as_table = keep("some", document, tmp_path)
    assert json.loads(as_data.read_text()) == document and document["machine"] == machine()
    text = as_table.read_text()
    assert "| a step | 2 | 1 | 3 | ms | 2.5 | yes |" in text
    assert "| b | - | - | - | ms |  | why |" in text
    assert f"cpus {document['machine']['cpus']}" in text


# -- peers -----------------------------------------------------------------------------------------

ECHO = """
    import sys
    from minisched.bench.peers.serve import serve

    def start(settings):
        if settings.get("refuse"):
            raise ValueError("no such model")
        print("a library talks")

        def answer(question):
            if question.get("die"):
                sys.exit("out of memory")
            return {"sum": settings["base"] + question["add"]}

        return answer

    serve(start)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that runs the peer above, whichever module it is asked for."""
    script = tmp_path / "echo.py"
    script.write_text(dedent(ECHO), encoding="utf-8")
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n', encoding="utf-8")
    interpreter.chmod(interpreter.stat().st_mode | stat.S_IEXEC)
    return interpreter


def test_a_peer_answers_one_question_at_a_time(python: Path) -> None:
    with Peer(python, "echo", {"base": 40}, os.environ) as peer:
        assert [peer.ask({"add": number})["sum"] for number in (1, 2)] == [41, 42]
        with pytest.raises(PeerError, match="echo: KeyError: 'add'"):
            peer.ask({})
        assert peer.ask({"add": 3}) == {"sum": 43}
    assert peer.process.poll() is not None


def test_a_peer_that_cannot_start_or_ends_says_why(python: Path) -> None:
    with pytest.raises(PeerError, match="echo: ValueError: no such model"):
        Peer(python, "echo", {"refuse": True}, os.environ)
    with (
        Peer(python, "echo", {"base": 0}, os.environ) as peer,
        pytest.raises(PeerError, match="echo has ended: out of memory"),
    ):
        peer.ask({"die": True})


def test_an_environment_is_made_once_and_again_when_a_version_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without pip: what is tested is when it would be called, and what can be imported then."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(peer_environment, "pip", lambda python, *names: asked.append(names))
    monkeypatch.setattr(
        peer_environment.venv, "create",
        lambda folder, **options: bare(folder, **{**options, "with_pip": False}),
    )  # fmt: skip
    for version in ("1", "1", "2"):
        peers = {"one": peer_environment.Packages((f"one=={version}",), ("two==0",))}
        monkeypatch.setattr(peer_environment, "PEERS", peers)
        python = peer_environment.environment("one", tmp_path)
    assert asked == [("one==1",), ("--no-deps", "two==0"), ("one==2",), ("--no-deps", "two==0")]
    command = [python, "-c", "import minisched, importlib.util as u; print(u.find_spec('rich'))"]
    done = subprocess.run(
        command, env=peer_environment.clean_env(), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "None\n", done.stderr


bare: Any = peer_environment.venv.create


def test_what_cannot_be_installed_says_what_pip_said() -> None:
    with pytest.raises(PeerError, match=r"--no-such-option can't be installed: no such option"):
        peer_environment.pip(Path(sys.executable), "--no-such-option")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (BenchCall("overlap"), "overlap"),
        (BenchCall("overlap", device="mlx"), "overlap-device-mlx"),
        (BenchCall("cuda", model="8B", repetitions=7), "cuda-model-8B"),
        (BenchCall("hidden", model="/some/where", repetitions=1), "hidden-model-where-repeat-1"),
    ],
)
def test_a_part_of_a_part_does_not_take_its_table(call: BenchCall, name: str) -> None:
    assert name_of(call) == name
