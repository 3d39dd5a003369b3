"""Numbers that no run could work with are refused before it begins, wherever they stand."""

import math
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest
from fiddling import apply_to_any

from fidgpt import configs
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigError, clone, find_parameter, parts
from fidgpt.graph.fiddle import all_arguments
from fidgpt.graph.hints import hint_of, members_of
from fidgpt.graph.walk import join, step_to

# Parameters that say something with such a number, or whose value another one overrules.
MAY_BE_INFINITE = {"max_grad_norm"}
MAY_BE_NEGATIVE = {"seed", "scale", "branch_scale", "of", "beta2_decay", "dampening"}
ELSEWHERE = ["use_adafactor", "use_lion", "use_muon", "use_sgd", "use_layer_norm", "use_z_loss"]
ELSEWHERE += ["use_moe", "use_lora", "use_softcap", "use_sinusoidal_positions", "use_layer_decay"]


def numbers(cfg: Any) -> Iterator[tuple[str, str, bool]]:
    """The path and name of each parameter that takes a number, and whether it takes a float."""
    for node in parts(cfg):
        for key in all_arguments(node.value):
            kinds = members_of(hint_of(node.value, key))
            if isinstance(key, str) and {int, float} & set(kinds):
                yield join(node.path, step_to(key)), key, float in kinds


def passes(cfg: Any, path: str, number: float) -> bool:
    changed = clone(cfg)
    find_parameter(changed, path).write(number)
    try:
        build_trainer(changed)
    except ConfigError as error:
        assert len(str(error)) < 1000, path
        return False
    return True


def test_no_number_is_taken_that_is_none_and_few_that_are_infinite_or_negative() -> None:
    cfg = configs.debug()
    found = list(numbers(cfg))
    assert len(found) > 50
    wrong = [path for path, _, is_float in found if is_float and passes(cfg, path, math.nan)]
    wrong += [
        f"{path}={number}"
        for number, kept in ((math.inf, MAY_BE_INFINITE), (-1, MAY_BE_NEGATIVE))
        for path, name, is_float in found
        if name not in kept
        and (is_float or number == -1)
        and passes(cfg, path, float(number) if is_float else int(number))
    ]
    assert not wrong


@pytest.mark.parametrize("fiddler", ELSEWHERE)
def test_nor_by_the_parts_that_fiddlers_put_there(fiddler: str) -> None:
    plain, cfg = configs.debug(), configs.debug()
    apply_to_any(cfg, fiddler)
    known = {
        (path, fdl.get_callable(find_parameter(plain, path).container))
        for path, _, _ in numbers(plain)
    }
    wrong = [
        f"{path}={number}"
        for path, name, is_float in numbers(cfg)
        if (path, fdl.get_callable(find_parameter(cfg, path).container)) not in known
        for number in (-1, math.inf)
        if name not in MAY_BE_NEGATIVE
        and (is_float or number == -1)
        and passes(cfg, path, float(number) if is_float else int(number))
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("model.dropout", 1.0),
        ("model.blocks[0].attention.rope.theta", 0.0),
        ("model.blocks[0].mlp.ffn_dim", 0),
        ("model.num_layers", 10**30),
        ("model.unembedding.softcap", 0.0),
        ("model.blocks[0].attention.num_heads", 0),
        ("samples.num_tokens", 0),
        ("samples.top_k", 0),
        ("data.corpus.validation_fraction", 1.1),
        ("data.corpus.shard_tokens", 0),
        ("optimizer.betas", (0.9, 1.0)),
        ("batch_size", 10**20),
        ("loss.chunk_size", 10**20),
    ],
)
def test_the_ends_of_ranges(path: str, number: Any) -> None:
    assert not passes(configs.debug(), path, number)


@pytest.mark.parametrize("path", ["model.hidden_dim", "vocab_size", "model.blocks[0].mlp.ffn_dim"])
def test_an_overflowing_size_is_an_error_of_one_line(path: str) -> None:
    cfg = configs.base()
    find_parameter(cfg, path).write(2**80)
    with pytest.raises(ConfigError) as error:
        build_trainer(cfg)
    assert "must be at most" in str(error.value)
    assert len(str(error.value)) < 2000
