"""Families that rotate in layers with a window only, in every order of layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.interop import save_hf
from fidgpt.model import LanguageModel

from .more_recipes import MORE_RECIPES
from .test_families import random_model, random_tokens

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("transformers")]
_SLIDING, _FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("exaone4", {"layer_types": [_FULL] * 3}),  # none of them is rotated
        ("exaone4", {"layer_types": [_FULL] * 3, "sliding_window": None}),  # and so each
        ("exaone_moe", {"layer_types": [_FULL, _SLIDING, _FULL]}),  # the first is no mixture
        ("exaone_moe", {"first_k_dense_replace": 2}),
        ("cohere2", {"layer_types": [_FULL] * 3}),
    ],
)
def test_layers_without_a_window_are_those_of_transformers(
    family: str,
    change: dict[str, Any],
    tmp_path: Path,
    load: Callable[[Path], LanguageModel],
):
    from transformers import AutoModelForCausalLM

    theirs = random_model(MORE_RECIPES[family].changed(window=5, **change))
    theirs.save_pretrained(tmp_path / "theirs")
    ours, tokens = load(tmp_path / "theirs"), random_tokens()
    logits = theirs(tokens, use_cache=False).logits
    assert (ours(tokens) - logits).abs().max() < 5e-5
    save_hf(ours, tmp_path / "ours", seq_len=64, model_type=family)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert (back(tokens, use_cache=False).logits - logits).abs().max() < 5e-5
