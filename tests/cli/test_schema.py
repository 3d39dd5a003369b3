"""--print=schema: which files of overrides an editor accepts, and what it completes."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from fidgpt.cli import train
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.index_build import schema_text
from fidgpt.graph import ConfigError
from fidgpt.graph.yaml import read_yaml

from .conftest import Command
from .test_overrides import SWEEP, WHOLE

OWN = own_catalogue()


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found = json.loads(schema_text(compose(["config:debug"], OWN).resolved, OWN))
    Draft7Validator.check_schema(found)
    return found


RIGHT = [
    *(WHOLE, SWEEP.replace("model:", '"model.x":'), "num_steps: 5", "num_steps: 2**5"),
    *(
        "num_steps: 1e3",
        "seed: '{num_steps} // 2'",
        "seed: ${env:SEED,1}",
        "micro_batch_size: null",
    ),
    *("micro_batch_size: 4", "optimizer: {lr: 3e-4, betas: [0.9, 0.99]}", "optimizer.lr: fast"),
    *("model: {norm: {use: torch.nn.LayerNorm, normalized_shape: 64}}", "samples: null"),
    *("samples: {prompts: [a, b], num_tokens: 3}", "trackers: [Console, TensorBoard]"),
    *("model: {blocks: [{attention: {window: 3}}]}", "evaluators: {validation: {every: 5}}"),
    *("config: debug\nfiddler: [use_gelu, {use_gqa: {num_kv_heads: 1}}]", "fiddler: use_gelu"),
    *("tag: {Dropout: 0.1, LearningRate*: 2}", "model: {blocks: [Block]}", "seed: 1_000"),
]
WRONG = [
    *("num_step: 5", "num_steps: five", "num_steps: 1.5", "num_steps: '5'", "seed: true"),
    *("num_steps: null", "num_steps: [1]", "num_steps: {a: 1}", "optimizer: {lr: fast}"),
    *("optimizer: {ls: 1}", "optimizer: {betas: [a, b]}", "model: {hidden_dm: 3}", "model: 5"),
    *("evaluators: {validaton: {every: 5}}", "evaluators: {validation: {every: x}}"),
]


@pytest.mark.parametrize("text", RIGHT)
def test_right_files_are_accepted(schema: dict[str, Any], text: str) -> None:
    errors = [one.message for one in Draft7Validator(schema).iter_errors(read_yaml(text))]
    assert not errors


@pytest.mark.parametrize("text", WRONG)
def test_wrong_files_are_refused_as_by_the_command(
    schema: dict[str, Any], text: str, tmp_path: Path
) -> None:
    assert not Draft7Validator(schema).is_valid(read_yaml(text))
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError):
        compose(["config:debug", f"yaml:{tmp_path / 'a.yaml'}"], OWN)


def test_it_completes_names_and_shows_docs(schema: dict[str, Any], command: Command) -> None:
    model = schema["definitions"][schema["properties"]["model"]["anyOf"][0]["$ref"].split("/")[-1]]
    depth = model["properties"]["num_layers"]
    assert depth["description"].startswith("number of layers") and depth["default"] == 2
    names = model["properties"]["norm"]["anyOf"]
    norm = schema["definitions"][names[0]["$ref"].split("/")[-1]]
    assert "OffsetRMSNorm" in norm["properties"]["use"]["anyOf"][0]["enum"]
    assert "use_gqa" in schema["properties"]["fiddler"]["anyOf"][0]["enum"]
    assert "LearningRate" in schema["properties"]["tag"]["properties"]
    done = command(train.main, "--config=config:debug", "--print=schema")
    assert done.status == 0 and json.loads(done.out) == schema
