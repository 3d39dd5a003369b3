"""Fields of config.json that change the logits of transformers change ours, or are refused."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import tiered
from torch import Tensor

from fidgpt.graph import ConfigError
from fidgpt.model import LanguageModel

from .more_recipes import MORE_RECIPES
from .recipes import RECIPES
from .test_families import random_model, random_tokens

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]

# What the RoPE of a file may have beside its theta.
_LENGTH = {"original_max_position_embeddings": 16}
_YARN = {"rope_type": "yarn", "factor": 3.0, **_LENGTH}
_LLAMA3 = {"rope_type": "llama3", "factor": 3.0, **_LENGTH}
_LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_FACTORS = {"short_factor": [1.5] * 8, "long_factor": [3.0] * 8}
ROPES: list[dict[str, Any]] = [
    *({key: 0.5} for key in ("partial_rotary_factor", "attention_factor", "factor", "mscale")),
    {"rope_theta": 77.0},
    *({"rope_type": kind, "factor": 3.0} for kind in ("linear", "dynamic", "proportional")),
    {"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5},
    _LLAMA3,
    _LLAMA3 | {"low_freq_factor": 2.0},
    *(_YARN | one for one in ({}, {"partial_rotary_factor": 0.5}, {"attention_factor": 1.5})),
    *(_YARN | one for one in ({"beta_fast": 9.0}, {"beta_slow": 2.0}, {"truncate": False})),
    *(_YARN | {"mscale": 0.5} | one for one in ({}, {"mscale_all_dim": 0.7})),
    _YARN | {"mscale_all_dim": 0.7},
    {"rope_type": "longrope", "factor": 3.0, **_LENGTH, **_FACTORS},
]
# What a file is of, the number format, and what is returned beside the logits.
OTHER = {"model_type", "architectures", "dtype", "torch_dtype", "output_attentions"}
OTHER |= {"output_hidden_states", "return_dict", "transformers_version"}
Load = Callable[[Path], LanguageModel]


def changes(config: Any, source: str) -> Iterator[dict[str, Any]]:
    """Yield fields that the class or the code of a model mentions, with other values."""
    known = config.to_dict()
    read = re.findall(r'config(?:, "|\.)(\w+)', source)
    for key in sorted({*known, *read} - OTHER):
        for value in others(known.get(key)):
            yield {key: value}
    ropes = known.get("rope_parameters") or {}
    kinds = [kind for kind, one in ropes.items() if isinstance(one, dict)]
    for rope in ROPES:
        if not kinds:
            yield {"rope_parameters": ropes | rope}
            yield {
                "rope_parameters": ...,
                "rope_theta": ropes.get("rope_theta"),
                "rope_scaling": rope,
            }
        for kind in kinds:
            yield {"rope_parameters": ropes | {kind: ropes[kind] | rope}}
    yield {"rope_parameters": ..., "rope_theta": 77.0}
    yield {"rope_parameters": ..., "partial_rotary_factor": 0.5}


def others(value: Any) -> list[Any]:
    """Return values that differ from one, of its type or, if it is None, of several."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, max(value // 2, 1)]
        case float():
            return [value * 1.5 + 0.1]
        case str():
            return ["gelu", "relu", "gelu_new"]
        case list():
            return [value[::-1]] if value[::-1] != value else []
        case None:
            return [True, 2, 0.5]
    return []


def logits_of(directory: Path, weights: dict[str, Tensor], tokens: Tensor) -> Tensor | None:
    """Return what transformers computes by a config.json, None if it fails or has other tensors."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    try:
        with no_init_weights():  # faster
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
        model.load_state_dict(weights)
        return model.eval()(tokens, use_cache=False).logits
    except Exception:  # every class has its own
        return None


ALL = RECIPES | {
    name: recipe for name, recipe in MORE_RECIPES.items() if name not in ("gpt-sw3", "kimi_k2")
}


@pytest.mark.parametrize("name", tiered(ALL, {"gpt2", "gpt_neox", "ministral3"}))
@torch.no_grad()
def test_fields_that_change_logits_are_followed_or_refused(name: str, tmp_path: Path, load: Load):
    theirs = random_model(ALL[name])
    theirs.save_pretrained(tmp_path)
    path, tokens, weights = tmp_path / "config.json", random_tokens(), theirs.state_dict()
    whole, known = json.loads(path.read_text()), theirs(tokens).logits
    source = Path(sys.modules[type(theirs).__module__].__file__ or "").read_text()
    matter: set[str] = set()
    wrong: list[str] = []
    for change in changes(theirs.config, source):
        keys = {key: one for key, one in (whole | change).items() if one is not ...}
        path.write_text(json.dumps(keys))
        logits = logits_of(tmp_path, weights, tokens)
        if logits is None or torch.equal(logits, known):
            continue
        matter |= change.keys()
        try:
            ours = load(tmp_path)
        except ConfigError:
            continue
        limit = 1e-5 if name in RECIPES else 5e-5  # as in the tests of each
        if not (ours(tokens) - logits).abs().max() < limit:
            wrong.append(str(change))
    assert not wrong
    assert matter  # or nothing was tried
