"""Graphs with different fingerprints never print the same difference."""

import inspect
import random
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import fiddlers, graph
from fidgpt.compose.composition import compose

DIRECTIVES = [
    "set:model.hidden_dim=64",
    "set:**.mlp.ffn_dim=64",
    "tag:InitStd=0.03",
    "untie:model.unembedding.weight",
    "untie:model.blocks[0].mlp.init",
    "use:model.norm=RMSNorm(eps=1e-3)",
    "use:**.mlp.router=SigmoidRouter",
    "set:trackers+=[TensorBoard]",
    *(
        f"fiddler:{name}"
        for name in fiddlers.__all__
        if all(
            one.default is not one.empty
            for one in [*inspect.signature(getattr(fiddlers, name)).parameters.values()][1:]
        )
    ),
]


def changed(value: Any) -> Any:
    """Another value of the same type; None for one that has no other."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value * 1.5 + 0.001
        case str():
            return f"{value}x"
    return None


def mutants(cfg: fdl.Config, draw: random.Random, count: int) -> Iterator[fdl.Config]:
    """Copies of a graph, each with another value somewhere."""
    places = [
        (i, key)
        for i, node in enumerate(graph.parts(cfg))
        for key, value in fdl.ordered_arguments(node.value).items()
        if isinstance(key, str) and changed(value) is not None
    ]
    for i, key in draw.sample(places, min(count, len(places))):
        other = graph.clone(cfg)
        part = graph.parts(other)[i].value
        setattr(part, key, changed(getattr(part, key)))
        yield other


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_difference_shows_everything(seed: int) -> None:
    draw = random.Random(seed)
    base = compose(["config:debug"]).config
    known: dict[str, dict[str, str]] = {"text": {}, "patch": {}}
    for _ in range(6):
        try:
            cfg = compose(["config:debug", *draw.sample(DIRECTIVES, draw.randint(1, 4))]).config
        except graph.ConfigError:  # of directives that need another one
            continue
        for one in [cfg, *mutants(cfg, draw, 8)]:
            try:
                identity = graph.fingerprint(one)
            except graph.ConfigError:  # the value contradicts another one
                continue
            texts = {
                "text": graph.diff_text(graph.diff(base, one)),
                "patch": graph.dump_patch((base, one)),
            }
            for form, text in texts.items():
                assert known[form].setdefault(text, identity) == identity, text
    assert len(known["text"]) > 20
