"""Published files of config.json make the models that transformers makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fidgpt.graph import bind, build
from fidgpt.interop import from_hf
from fidgpt.model import LanguageModel, LatentAttention, RoPE

from .published import PUBLISHED

pytestmark = pytest.mark.xdist_group("transformers")  # whose import takes seconds


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_windows_and_waves_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    config = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        theirs: Any = AutoModelForCausalLM.from_config(config)
        ours: Any = build(bind(from_hf(str(tmp_path))).model)
    assert count(ours) == count(theirs)
    layers = [layer.self_attn for layer in theirs.model.layers]
    attentions = [block.attention for block in ours.blocks]
    assert [one.scale for one in attentions] == pytest.approx([one.scaling for one in layers])
    assert windows(attentions) == [getattr(one, "sliding_window", None) for one in layers]
    rotary = type(theirs.model.rotary_emb)(config)
    kinds = getattr(config, "layer_types", None) or [None] * len(attentions)
    for kind, attention in dict(zip(kinds, attentions, strict=True)).items():
        expected, amplitude = waves_of(rotary, kind)
        found, ours_amplitude = waves(attention.rope)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
        assert ours_amplitude == pytest.approx(amplitude)


def count(model: LanguageModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def windows(attentions: list[Any]) -> list[int | None]:
    return [None if isinstance(one, LatentAttention) else one.window for one in attentions]


def waves(rope: RoPE) -> tuple[Tensor, float]:
    """How fast each pair turns, in radians a position, and what cosine and sine are times."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    frequencies = rope.theta**-exponents
    if rope.scaling is None:
        return frequencies, 1.0
    return rope.scaling(frequencies, theta=rope.theta), rope.scaling.amplitude


def waves_of(rotary: Any, kind: str | None) -> tuple[Tensor, float]:
    """The same of transformers, which may have two kinds of them."""
    start = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
    amplitude = getattr(rotary, f"{start}attention_scaling", 1.0)
    return getattr(rotary, f"{start}inv_freq"), amplitude
