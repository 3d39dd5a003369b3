"""Small models of the hub's families: ours from a config, and a directory that we wrote."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from small_models import started

from fidgpt.graph import bind
from fidgpt.graph import build as build_graph
from fidgpt.interop import from_hf, load_hf, save_hf
from fidgpt.model import LanguageModel

GPT2 = {
    **{"model_type": "gpt2", "vocab_size": 300, "n_positions": 24, "n_embd": 48, "n_layer": 3},
    **{"n_head": 4, "n_inner": 100, "layer_norm_epsilon": 1e-4},
}


@pytest.fixture(scope="session")
def published() -> dict[str, dict[str, Any]]:
    """The config.json of models on the hub, without the keys on which nothing depends.

    Old files and new ones, with keys that are missing, and with those of transformers 5.
    """
    path = Path(__file__).parent.parent / "fixtures" / "hub_configs.json"
    return json.loads(path.read_text())


@pytest.fixture
def hub(tmp_path: Path) -> Callable[..., Path]:
    """`hub(**settings)`: a directory with nothing but a config.json."""

    def hub(**settings: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(settings))
        return tmp_path

    return hub


@pytest.fixture(scope="session")
def build() -> Callable[[fdl.Config], LanguageModel]:
    """`build(cfg)`: its model with memory, in float32."""

    def build(cfg: fdl.Config) -> LanguageModel:
        with torch.device("meta"):
            model = build_graph(bind(cfg).model)
        return started(model).eval()

    return build


@pytest.fixture(scope="session")
def load(build: Callable[[fdl.Config], LanguageModel]) -> Callable[[Path], LanguageModel]:
    """`load(directory)`: the model of a directory, with its weights."""

    def load(directory: Path) -> LanguageModel:
        model = build(from_hf(str(directory)))
        load_hf(model, directory)
        return model

    return load


@pytest.fixture
def directory(build: Callable[[fdl.Config], LanguageModel], tmp_path: Path) -> Path:
    """A small GPT-2 that we wrote, to damage."""
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "config.json").write_text(json.dumps(GPT2))
    path = tmp_path / "gpt2"
    save_hf(build(from_hf(str(tmp_path / "settings"))), path, seq_len=24)
    return path
