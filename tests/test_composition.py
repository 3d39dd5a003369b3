"""Features on top of each other: drawn at random, in any order one graph, and it learns."""

import functools
import random
from itertools import combinations

import fiddle as fdl
import pytest
import torch
from small_models import shrunk, start, tiered

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigError, clone, fingerprint
from fidgpt.model import materialize

pytestmark = pytest.mark.slow

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
LATENT = {"deepseek_v2_lite", "deepseek_v3"}  # they have no key heads to normalize or add to
REFUSAL = "refused"
CHANGE_MODELS = {"adapters", "attention", "blocks", "embeddings", "heads", "latent", "losses"}
FEATURES = [
    name
    for name in fiddlers.__all__
    if getattr(fiddlers, name).__module__.rpartition(".")[2] in {*CHANGE_MODELS, "positions"}
    or name in {"use_mup", "use_moe"}
]


@functools.cache
def outcome(family: str, *names: str) -> str:
    """The fingerprint of a family after some fiddlers, or that one of them refuses."""
    try:
        return fingerprint(composed(family, [*names]))
    except ConfigError:
        return REFUSAL


def is_unrelated(family: str, one: str, other: str) -> bool:
    """Whether two fiddlers commute and neither undoes the other."""
    together = outcome(family, one, other)
    if together in {outcome(family, one), outcome(family, other), REFUSAL}:
        return False
    return together == outcome(family, other, one)


def drawn(index: int) -> list[str]:
    """Features at random that have nothing to do with each other."""
    family, chance = FAMILIES[index % len(FAMILIES)], random.Random(index)
    names: list[str] = []
    for name in chance.sample(FEATURES, len(FEATURES)):
        if all(is_unrelated(family, one, name) for one in names):
            names.append(name)
        if len(names) == 2 + index % 10:
            break
    return names


_shrunk = functools.cache(shrunk)


def composed(family: str, names: list[str]) -> fdl.Config:
    cfg = clone(_shrunk(family))
    for name in names:
        getattr(fiddlers, name)(cfg)
    return cfg


@pytest.mark.parametrize("index", tiered(range(42), range(len(FAMILIES))))
def test_any_features_in_any_order_are_one_graph_and_train(index: int) -> None:
    family, names = FAMILIES[index % len(FAMILIES)], drawn(index)
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
def test_every_two_features_build(family: str) -> None:
    """Each pair on one family; which features go with which family is tried one by one."""
    for pair in list(combinations(FEATURES, 2))[FAMILIES.index(family) :: len(FAMILIES)]:
        try:
            build_trainer(composed(family, [*pair]))
        except ConfigError as error:
            assert family in LATENT or "use_mla" in pair, f"{pair}: {error}"
