"""What is refused before a run begins: wrong numbers, and components that do not fit together."""

import math
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
import pytest
from small_models import apply_to_any

from fidgpt import configs, fiddlers
from fidgpt.configs import base, constraints
from fidgpt.graph import ConfigError, clone, find_parameter, parts
from fidgpt.graph.fiddle import all_arguments
from fidgpt.graph.hints import hint_of, members_of
from fidgpt.graph.walk import join, step_to
from fidgpt.runs.building import build_trainer

# Parameters that say something with such a number, or whose value another one overrides.
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


@pytest.mark.slow
@pytest.mark.parametrize("fiddler", [None, *ELSEWHERE])
def test_nan_infinite_and_negative_numbers_are_refused(fiddler: str | None) -> None:
    """By all components of `debug`, and by those that fiddlers add."""
    plain, cfg = configs.debug(), configs.debug()
    known = set()
    if fiddler is not None:
        apply_to_any(cfg, fiddler)
        known = {
            (path, fdl.get_callable(find_parameter(plain, path).container))
            for path, _, _ in numbers(plain)
        }
    found = [
        one
        for one in numbers(cfg)
        if (one[0], fdl.get_callable(find_parameter(cfg, one[0]).container)) not in known
    ]
    assert len(found) > 50 or fiddler is not None
    wrong = [
        f"{path}={number}"
        for number, kept in ((math.nan, ()), (math.inf, MAY_BE_INFINITE), (-1, MAY_BE_NEGATIVE))
        for path, name, is_float in found
        if name not in kept
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
        ("model.unembedding.softcap", 0.0),
        ("model.blocks[0].attention.num_heads", 0),
        ("samples.num_tokens", 0),
        ("samples.top_k", 0),
        ("data.corpus.validation_fraction", 1.1),
        ("data.corpus.shard_tokens", 0),
        ("optimizer.betas", (0.9, 1.0)),
    ],
)
def test_the_ends_of_ranges(path: str, number: Any) -> None:
    assert not passes(configs.debug(), path, number)


def test_every_broken_constraint_of_a_run_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    cfg = configs.gpt2_124m()
    cfg.model.hidden_dim = 1000
    cfg.model.embedding.positions.seq_len = 16
    cfg.schedule.warmup_steps = 10**9
    cfg.batch_size = 2
    with pytest.raises(ConfigError) as caught:
        build_trainer(cfg)
    message = str(caught.value)
    assert "model.blocks[0].attention (Attention): hidden_dim=1000 must be a multiple of" in message
    assert "schedule (WarmupCosine): warmup_steps=1000000000 does not fit into" in message
    assert "batch_size=2 sequences are too few for world_size=3 processes" in message
    assert "is longer than the 16 positions of model.embedding.positions" in message


@pytest.mark.parametrize(("vocab_size", "special", "tokens"), [(10, [], 257), (257, ["<a>"], 258)])
def test_each_byte_and_token_has_a_row(vocab_size: int, special: list[str], tokens: int) -> None:
    cfg = base()
    fiddlers.use_bytes(cfg)
    cfg.data.corpus.tokenizer.special_tokens = special
    cfg.vocab_size = tokens
    build_trainer(cfg)
    cfg.vocab_size = vocab_size
    with pytest.raises(ConfigError, match=f"{vocab_size=} is less than the {tokens} tokens"):
        build_trainer(cfg)


def test_each_constraint_is_listed() -> None:
    named = {name: one for name, one in vars(constraints).items() if not name.startswith("_")}
    own = [name for name, thing in named.items() if callable(thing)]
    defined = [name for name in own if vars(constraints)[name].__module__ == constraints.__name__]
    assert sorted(defined) == sorted(constraints.__all__)
