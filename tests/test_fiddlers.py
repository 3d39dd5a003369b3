"""Every fiddler on every config: it applies, changes something, and in any order the same."""

import inspect
import itertools
from pathlib import Path

import fiddle as fdl
import pytest

from fidgpt import configs, fiddlers
from fidgpt.cli.runs import build_trainer
from fidgpt.graph import ConfigError, fingerprint

GPT2 = ["gpt2_124m", "gpt2_355m", "gpt2_774m", "gpt2_1558m"]
MODERN = ["base", "debug"]

# Pairs that change nothing, because the config is so already.
ALREADY_SO = {
    *itertools.product(["tie_embeddings"], configs.__all__),
    *itertools.product(["use_rope", "use_swiglu", "use_rms_norm"], MODERN),
    *itertools.product(["use_learned_positions", "use_gelu", "use_layer_norm"], GPT2),
    ("make_small", "gpt2_124m"),
    ("make_medium", "gpt2_355m"),
    ("make_large", "gpt2_774m"),
    ("make_xl", "gpt2_1558m"),
    ("use_bytes", "debug"),
}

# Pairs that do not go together, and what says so.
REFUSED = {("use_gqa", "gpt2_1558m"): "num_heads=25 .* num_kv_heads=2"}

# Fiddlers that speak of one thing; of two that speak of different things, the order is free.
CONCERNS = [
    ["make_small", "make_large"],
    ["use_gqa"],
    ["use_swiglu", "use_gelu"],
    ["use_rms_norm", "use_layer_norm"],
    ["use_rope", "use_learned_positions"],
    ["tie_embeddings", "untie_embeddings"],
    ["smoke_test"],
    ["scale_learning_rate"],
    ["use_wsd"],
    ["use_float32"],
    ["use_bytes"],
    ["use_text"],
    ["unroll"],
    ["for_hardware", "set_micro_batch_size"],
]
# It repeats the pattern over the depth of the moment, so a size comes before it.
ORDERED = {frozenset({"make_small", "unroll"}), frozenset({"make_large", "unroll"})}


def apply(cfg: fdl.Config, name: str) -> None:
    """With the default arguments; a path is that of this file."""
    fiddler = getattr(fiddlers, name)
    needs_path = "path" in inspect.signature(fiddler).parameters
    result = fiddler(cfg, path=str(Path(__file__))) if needs_path else fiddler(cfg)
    assert result is None


def fiddled(config: str, *names: str) -> fdl.Config:
    cfg = getattr(configs, config)()
    for name in names:
        apply(cfg, name)
    return cfg


@pytest.mark.parametrize("config", configs.__all__)
@pytest.mark.parametrize("name", fiddlers.__all__)
def test_a_fiddler_applies_and_changes_something(name: str, config: str) -> None:
    cfg = fiddled(config, name)
    if (name, config) in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name, config]):
            build_trainer(cfg)
        return
    model = build_trainer(cfg).model
    assert all(parameter.is_meta for parameter in model.parameters())
    changed = fingerprint(cfg) != fingerprint(getattr(configs, config)())
    assert changed == ((name, config) not in ALREADY_SO)


@pytest.mark.parametrize("name", fiddlers.__all__)
def test_twice_is_once(name: str) -> None:
    once, twice = fiddled("base", name), fiddled("base", name, name)
    assert (fingerprint(once) == fingerprint(twice)) == (name != "scale_learning_rate")


def free_pairs() -> list[tuple[str, str]]:
    """Every two fiddlers of different concerns."""
    return [
        pair
        for one, other in itertools.combinations(CONCERNS, 2)
        for pair in itertools.product(one, other)
        if frozenset(pair) not in ORDERED
    ]


@pytest.mark.parametrize("config", ["base", "gpt2_124m"])
@pytest.mark.parametrize("first", sorted({first for first, _ in free_pairs()}))
def test_the_order_of_fiddlers_does_not_matter(config: str, first: str) -> None:
    for one, second in free_pairs():
        if one == first:
            there, back = fiddled(config, first, second), fiddled(config, second, first)
            assert fingerprint(there) == fingerprint(back), f"{first} and {second}"


def test_every_fiddler_has_a_concern() -> None:
    named = {name for concern in CONCERNS for name in concern}
    assert set(fiddlers.__all__) - named == {"make_medium", "make_xl"}  # as make_small
    assert all(getattr(fiddlers, name).__doc__ for name in fiddlers.__all__)


def test_arguments_are_literals_with_defaults() -> None:
    """So that all of a fiddler can be said on a command line."""
    required = {
        (name, parameter.name)
        for name in fiddlers.__all__
        for parameter in list(inspect.signature(getattr(fiddlers, name)).parameters.values())[1:]
        if parameter.default is inspect.Parameter.empty
    }
    assert required == {("use_text", "path")}
