"""Reading config.json: whatever stands in it, the answer is a model or one sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisched.models.weights import WeightsError, check_tensors, read_config

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=4,
)


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may spoil."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def edit(file: Path, **changes: Any) -> None:
    """Change entries of a JSON file; ``...`` removes one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value != ...}))


def complaint(model: Path) -> str:
    """The one sentence that ``read_config`` refuses with."""
    with pytest.raises(WeightsError) as caught:
        read_config(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral'; only"),
        ({"model_type": ...}, "model_type is None; only"),
        ({"hidden_size": ...}, "hidden_size is missing."),
        ({"hidden_size": "64"}, "hidden_size is '64', not a whole number above 0."),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a whole number above 0."),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1, not a number above 0."),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rope_theta": float("nan")}, "rope_theta is nan, not a number above 0."),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"head_dim": 15}, "4 attention heads cannot share 2 key-value heads of head_dim 15"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_scaling of type 'dynamic' is"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters of type 'longrope' is"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', not an object."),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported."),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"quantization": {"bits": 4}}, "quantization {'bits': 4} is not supported."),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not an id or a list."),
    ],
)
def test_an_unusable_config_is_refused(model: Path, changes: dict[str, Any], what: str) -> None:
    edit(model / "config.json", **changes)
    assert complaint(model).startswith(f"{model / 'config.json'}: {what}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_config_is_read_or_refused(model: Path, tiny_llama: Path, data: st.DataObject) -> None:
    """Whatever stands in config.json, the answer is a model or one sentence, and comes at once."""
    config = json.loads((tiny_llama / "config.json").read_text())
    extra = ["rope_scaling", "rope_parameters", "quantization"]
    keys = data.draw(st.sets(st.sampled_from([*config, *extra]), min_size=1, max_size=3))
    config |= {key: data.draw(json_values, label=key) for key in keys}
    (model / "config.json").write_text(json.dumps(config))
    try:
        check_tensors(model, read_config(model))
    except WeightsError as error:
        assert str(model) in str(error)


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": 5.0}, 5.0),
        ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7}}, 7.0),
        ({"rope_theta": ..., "rope_scaling": None}, 10_000.0),
        ({"rope_scaling": {"rope_type": "default"}}, 10_000.0),
    ],
)
def test_rope_theta_old_and_new(model: Path, changes: dict[str, Any], theta: float) -> None:
    edit(model / "config.json", **changes)
    assert read_config(model).rope_theta == theta
    assert transformers.AutoConfig.from_pretrained(model).rope_parameters["rope_theta"] == theta


def test_defaults_are_those_of_transformers(model: Path) -> None:
    optional = ["num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings"]
    edit(model / "config.json", **dict.fromkeys([*optional, "tie_word_embeddings"], ...))
    ours, theirs = read_config(model), transformers.AutoConfig.from_pretrained(model)
    for name in [*optional, "tie_word_embeddings"]:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kv_heads", [None, ..., 2])
def test_key_value_heads_that_are_null_are_not_absent(
    model: Path, kind: str, kv_heads: Any
) -> None:
    sizes = {"num_attention_heads": 32, "hidden_size": 512, "head_dim": 16}
    edit(model / "config.json", model_type=kind, num_key_value_heads=kv_heads, **sizes)
    theirs = transformers.AutoConfig.from_pretrained(model).num_key_value_heads
    assert read_config(model).num_key_value_heads == theirs


def test_end_of_text_comes_from_both_configs(model: Path) -> None:
    assert read_config(model).eos_ids == {0}
    (model / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert read_config(model).eos_ids == {0, 3, 5}
    edit(model / "config.json", eos_token_id=None)
    assert read_config(model).eos_ids == {3, 5}
    (model / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert complaint(model).startswith(f"{model / 'generation_config.json'}: eos_token_id is 'x'")
