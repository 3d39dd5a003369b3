"""Small GPT-2s: our model from a config, and a directory as Hugging Face would lay it out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt.cli.runs import build_trainer
from fidgpt.interop import gpt2_from_hf, load_gpt2, save_gpt2
from fidgpt.model import Transformer, materialize, sdpa

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
def build() -> Callable[[fdl.Config], Transformer]:
    """`build(cfg)`: its model with memory, in float32."""

    def build(cfg: fdl.Config) -> Transformer:
        for block in cfg.model.blocks:
            block.attention.kernel = sdpa
        model = build_trainer(cfg).model
        assert isinstance(model, Transformer)
        materialize(model, device=torch.device("cpu"), seed=0)
        return model.eval()

    return build


@pytest.fixture(scope="session")
def load(build: Callable[[fdl.Config], Transformer]) -> Callable[[Path], Transformer]:
    """`load(directory)`: the model of a directory, with the weights of it."""

    def load(directory: Path) -> Transformer:
        model = build(gpt2_from_hf(directory))
        load_gpt2(model, directory)
        return model

    return load


@pytest.fixture
def directory(build: Callable[[fdl.Config], Transformer], tmp_path: Path) -> Path:
    """A directory that we wrote ourselves, to spoil."""
    path = tmp_path / "gpt2"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SETTINGS | {"model_type": "gpt2"}))
    save_gpt2(build(gpt2_from_hf(path)), path)
    return path
