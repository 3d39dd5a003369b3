"""Points of a sweep that share what they do not change, compared with points made alone."""

import contextlib
import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, outline
from fidgpt.model import InitError
from fidgpt.sweep import axis, pairs, points, repeat
from fidgpt.sweep.axes import Choice, Item

BASES = {
    "debug": ["config:debug"],
    "base": ["config:base", "fiddler:make_tiny"],
    "mixture": ["config:debug", "fiddler:use_moe(4, 2)", "fiddler:use_shared_expert"],
}
# Values that are right, wrong for a type, a constraint, a constructor or the model, or none.
NUMBERS = [
    "tag:LearningRate=1e-3,3e-3,-1,inf",
    "tag:WeightDecay=0,0.1,-0.5",
    "set:seed=1,2,x",
    "set:num_steps=4,8,0",
    "set:batch_size=2,4,0",
    "set:seq_len=16,32",
    "tag:HiddenDim=32,64,33",
    "set:model.num_layers=1,2",
    "set:model.norm.eps=1e-5,1e-6,-1",
    "set:vocab_size=257,300,8",
    "set:optimizer.betas=(0.9,0.95),(0.8,0.99),(2,0.9)",
    "set:parallel.mesh.replicate=1,2",
]
COMPUTED = [
    "set:num_steps={batch_size}*2,{batch_size}*3",
    "set:model.blocks[0].mlp.ffn_dim={HiddenDim}*2,{HiddenDim}//0,48",
    "set:schedule.warmup_steps={num_steps}//2,1",
]
RELATIVE = ["set:seed+=0,1", "tag:HiddenDim*=1,2", "tag:LearningRate*=2,0.5", "set:num_steps*=2,3"]
PARTS = [
    "fiddler:use_gelu,use_swiglu,use_geglu",
    "fiddler:use_gqa(1),use_alibi,use_qk_norm",
    "fiddler:use_lion,use_adamw,use_sgd",
    "fiddler:scale_depth(2),unroll",
    "fiddler:use_moe(4,2),use_mup",
    "fiddler:tie_embeddings,untie_embeddings,share_blocks",
    "use:model.norm=RMSNorm(eps=1e-3),LayerNorm,Nothing",
    "del:model.norm.eps,seed",
]
FIXED = [
    "fiddler:unroll",
    "set:seed=7",
    "tag:LearningRate=5e-4",
    "set:num_steps*=2",
]


class Alone(points.Maker):
    """Makes each point by itself."""

    def graph(self, chosen: Sequence[Choice]) -> fdl.Config:
        return compose(self._directives(chosen), self._catalogue).config

    def _checked(self, chosen: Sequence[Choice], graph: fdl.Config) -> Any:
        return self._dry_runs.of(graph)


def outcomes(maker: points.Maker) -> list[Any]:
    """Return for each choice the outline of its graph and its point, or its error."""
    found: list[Any] = []
    for chosen in itertools.product(*(one.choices for one in maker.axes)):
        shown = ""
        try:
            graph = maker.graph(chosen)
            with contextlib.suppress(ConfigError):
                shown = outline(graph)
            found.append((shown, maker.point(chosen, graph)))
        except (ConfigError, InitError) as error:
            found.append((shown, str(error)))
    return found


def drawn(base: list[str], rng: random.Random) -> list[Item]:
    """Return a config and axes of several kinds, some with a directive among them."""
    texts = [*rng.sample(NUMBERS, 2), rng.choice(PARTS)]
    texts.append(rng.choice(rng.choice([RELATIVE, COMPUTED, PARTS, NUMBERS])))
    rng.shuffle(texts)
    axes = [axis(text) for text in texts]
    items: list[Item] = [
        replace(one, choices=tuple(rng.sample(one.choices, 2))) for one in axes[: rng.randint(2, 4)]
    ]
    if rng.random() < 0.3:
        items.append(pairs("set:seed=3,4;tag:LearningRate=2e-3,4e-3"))
    if rng.random() < 0.3:
        items.insert(rng.randrange(len(items)), rng.choice(FIXED))
    if rng.random() < 0.3:
        items.append(repeat("seed:2"))
    return [*base, *items]


@pytest.mark.slow(10)
@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("seed", range(int(os.environ.get("FIDGPT_SEEDS", "3"))))
def test_points_that_share_are_those_made_alone(name: str, seed: int) -> None:
    items = drawn(BASES[name], random.Random(f"{name} {seed}"))
    catalogue = own_catalogue()
    together = outcomes(points.Maker(items, catalogue))
    alone = outcomes(Alone(items, catalogue))
    assert together == alone, [getattr(one, "text", one) for one in items]
