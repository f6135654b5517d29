"""Finding a model: a whole Llama is accepted, and anything else gets one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from minisched.models.weights import INDEX, WeightsError, find_model, read_config, weight_files

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may spoil."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def complaint(directory: Path | str) -> str:
    """The one sentence that ``find_model`` refuses with."""
    with pytest.raises(WeightsError) as caught:
        find_model(directory)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def shard(model: Path, parts: int) -> None:
    """Split model.safetensors into files with an index, as large models are published."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    files = [f"model-{i + 1:05}-of-{parts:05}.safetensors" for i in range(parts)]
    where = {name: files[i % parts] for i, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in where if where[name] == file}, model / file)
    (model / INDEX).write_text(json.dumps({"weight_map": where}))


def test_a_directory_is_a_model(model: Path) -> None:
    assert find_model(model) == find_model(str(model)) == model
    assert weight_files(model) == [model / "model.safetensors"]


def test_a_model_in_shards(model: Path) -> None:
    shard(model, 3)
    assert find_model(model) == model
    assert [file.name[6:11] for file in weight_files(model)] == ["00001", "00002", "00003"]
    weight_files(model)[1].unlink()
    assert complaint(model) == f"{model} lacks model-00002-of-00003.safetensors."
    for index in ("[]", "{}", '{"weight_map": {"a": 1}}', "{"):
        (model / INDEX).write_text(index)
        assert complaint(model).startswith(f"{model / INDEX} ")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(model: Path, file: str) -> None:
    (model / file).unlink()
    assert complaint(model).startswith(f"{model} lacks {file}")


@same_folder
@given(st.data())
def test_a_cut_weights_file_is_refused(model: Path, tiny_llama: Path, data: st.DataObject) -> None:
    whole = (tiny_llama / "model.safetensors").read_bytes()
    length = data.draw(st.integers(0, 4000) | st.integers(0, len(whole) - 1))
    (model / "model.safetensors").write_bytes(whole[:length])
    assert complaint(model).startswith(f"{model / 'model.safetensors'} is not a whole safetensors")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff\xfe\x00"])
def test_a_damaged_config_is_refused(model: Path, content: bytes) -> None:
    (model / "config.json").write_bytes(content)
    assert complaint(model).startswith(f"{model / 'config.json'} is not ")


@same_folder
@given(st.data())
def test_the_first_missing_tensor_is_named(
    model: Path, tiny_llama: Path, data: st.DataObject
) -> None:
    names = [name for name, _ in read_config(tiny_llama).tensor_shapes()]
    gone = data.draw(st.sets(st.sampled_from(names), min_size=1))
    tensors = load_file(tiny_llama / "model.safetensors")
    kept = {name: tensors[name] for name in names if name not in gone}
    save_file(kept, model / "model.safetensors")
    first = next(name for name in names if name in gone)
    assert complaint(model) == f"{model} lacks the tensor {first}."


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda w: np.ascontiguousarray(w.T), "has shape [64, 512], but config.json asks for [5"),
        (lambda w: w[:-1], "has shape [511, 64], but config.json asks for [512, 64]."),
        (lambda w: w.astype(np.int8), "is I8; expected one of F64, F32, F16, BF16."),
    ],
)
def test_a_wrong_tensor_is_named(
    model: Path, spoil: Callable[[np.ndarray], np.ndarray], what: str
) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = spoil(tensors["lm_head.weight"])
    save_file(tensors, model / "model.safetensors")
    assert complaint(model).startswith(f"{model}: the tensor lm_head.weight {what}")


def test_a_model_that_was_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path))
    assert complaint("smollm2") == (
        "smollm2 is not on this machine yet; run: minisched fetch smollm2"
    )


@pytest.mark.parametrize("name", ["smolm2", "/no/such/folder", "./model", "a/b/c", ""])
def test_a_name_that_is_no_model(name: str) -> None:
    assert complaint(name).startswith(f"No model {name!r}: it is no known name (smollm2), ")


def test_a_hugging_face_id(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network an id is found in the hub's cache, or refused in one sentence."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert complaint("org/name").startswith("org/name could not be taken from Hugging Face: ")
    revision = "0" * 40
    snapshot = tmp_path / "models--org--name" / "snapshots" / revision
    shutil.copytree(tiny_llama, snapshot)
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text(revision)
    assert find_model("org/name") == snapshot


@pytest.mark.weights
def test_smollm2_is_found_by_its_name(smollm2: Path) -> None:
    assert find_model("smollm2") == smollm2
    config = read_config(smollm2)
    assert (config.rope_theta, config.rms_norm_eps, config.eos_ids) == (100_000.0, 1e-5, {2})
    assert len(list(config.tensor_shapes())) == 272
