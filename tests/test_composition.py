"""Features on top of each other: drawn at random, in any order one graph, and it learns."""

import random
from collections.abc import Iterator
from itertools import combinations

import fiddle as fdl
import pytest
import torch
from fiddling import tiered
from learning import start
from shrunk import shrunk

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigError, clone, fingerprint
from fidgpt.model import materialize

FAMILIES = [
    "gpt2_124m",
    "llama3_2_1b",
    "mistral_7b",
    "qwen2_5_0_5b",
    "qwen3_0_6b",
    "gemma2_2b",
    "gemma3_270m",
    "olmo2_1b",
    "smollm3_3b",
    "mixtral_8x7b",
    "qwen3_30b_a3b",
    "deepseek_v2_lite",
    "deepseek_v3",
    "gpt_oss_20b",
]
# Latent attention has no heads of keys to normalise or to add to.
LATENT = {"deepseek_v2_lite", "deepseek_v3"}
# One of a row at most: they speak of one thing.
FEATURES = [
    ["use_rope", "use_alibi", "use_learned_positions", "use_sinusoidal_positions"],
    ["use_qk_norm", "use_value_embeddings", "use_mla"],
    ["use_softcap"],
    ["use_sinks"],
    ["use_sliding_window"],
    ["use_swiglu", "use_geglu", "use_gelu", "use_squared_relu"],
    ["use_layer_norm", "use_rms_norm", "use_offset_norm"],
    ["use_parallel_block", "use_sandwich_norm", "use_post_norm", "use_pre_norm"],
    ["use_moe"],
    ["use_document_mask"],
    ["use_z_loss"],
    ["use_mtp"],
    ["use_lora"],
    ["use_mup"],
    ["tie_embeddings", "untie_embeddings"],
    ["share_blocks"],
]


def draws(count: int) -> Iterator[tuple[str, list[str]]]:
    """Families in turn, each with one feature to all of them."""
    chance = random.Random(0)
    for index in range(count):
        rows = chance.sample(FEATURES, 2 + index % (len(FEATURES) - 1))
        family = FAMILIES[index % len(FAMILIES)]
        names = [chance.choice(row) for row in rows]
        if family in LATENT:
            names = ["use_mla" if name in FEATURES[1] else name for name in names]
        yield family, names


def composed(family: str, names: list[str]) -> fdl.Config:
    cfg = shrunk(family)
    for name in names:
        getattr(fiddlers, name)(cfg)
    return cfg


@pytest.mark.parametrize(
    ("family", "names"),
    [
        pytest.param(
            *draw, marks=[pytest.mark.long] if index >= len(FAMILIES) else [], id=str(draw)
        )
        for index, draw in enumerate(draws(42))
    ],
)
def test_any_features_in_any_order_are_one_graph_and_train(family, names):
    cfg = composed(family, names)
    orders = [names[::-1], random.Random(1).sample(names, len(names))]
    for order in orders:
        assert fingerprint(composed(family, order)) == fingerprint(cfg), order
    trainer = build_trainer(cfg)
    model = trainer.model
    materialize(model, device=torch.device("cpu"), seed=0)
    if trainer.trainable is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trainer.trainable(name, parameter))
    state = start(trainer, max_grad_norm=1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokens = torch.randint(0, 257, (2, 33), generator=torch.Generator().manual_seed(0))
    losses = [trainer.update(state, tokens)["loss"] for _ in range(3)]
    assert losses[-1] < losses[0]
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert moved <= trained
    assert len(trained - moved) <= len(trained) // 4, trained - moved


@pytest.mark.parametrize("family", tiered(FAMILIES, {"gemma3_270m", "deepseek_v3", "gpt_oss_20b"}))
def test_every_two_features_build(family):
    """Each pair on one family; which features go with which family is tried one by one."""
    start = shrunk(family)
    singles = [name for row in FEATURES for name in row]
    for pair in list(combinations(singles, 2))[FAMILIES.index(family) :: len(FAMILIES)]:
        cfg = clone(start)
        try:
            for name in pair:
                getattr(fiddlers, name)(cfg)
            build_trainer(cfg)
        except ConfigError as error:
            assert family in LATENT or "use_mla" in pair, f"{pair}: {error}"
