"""Small models of the hub's families: ours from a config, and a directory that we wrote."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt.graph import bind
from fidgpt.graph import build as build_graph
from fidgpt.interop import from_hf, load_hf, save_hf
from fidgpt.model import LanguageModel, materialize

SETTINGS = {
    "vocab_size": 300,
    "n_positions": 24,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 100,
    "layer_norm_epsilon": 1e-4,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture(scope="session")
def settings() -> dict[str, Any]:
    """What config.json says of a small GPT-2."""
    return dict(SETTINGS)


@pytest.fixture(scope="session")
def build() -> Callable[[fdl.Config], LanguageModel]:
    """`build(cfg)`: its model with memory, in float32."""

    def build(cfg: fdl.Config) -> LanguageModel:
        with torch.device("meta"):
            model = build_graph(bind(cfg).model)
        materialize(model, device=torch.device("cpu"), seed=0)
        return model.eval()

    return build


@pytest.fixture(scope="session")
def load(build: Callable[[fdl.Config], LanguageModel]) -> Callable[[Path], LanguageModel]:
    """`load(directory)`: the model of a directory, with the weights of it."""

    def load(directory: Path) -> LanguageModel:
        model = build(from_hf(str(directory)))
        load_hf(model, directory)
        return model

    return load


@pytest.fixture
def directory(build: Callable[[fdl.Config], LanguageModel], tmp_path: Path) -> Path:
    """A directory that we wrote ourselves, to spoil."""
    path = tmp_path / "gpt2"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SETTINGS | {"model_type": "gpt2"}))
    save_hf(build(from_hf(str(path))), path, seq_len=24)
    return path
