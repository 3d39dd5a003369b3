"""What must hold between parts of a run that do not know each other."""

import math

import pytest

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import base, constraints, gpt2_124m
from fidgpt.fiddlers import grow_batch, use_bytes, use_layer_norm, use_prefetch
from fidgpt.graph import ConfigError


def test_every_broken_constraint_of_a_run_is_named_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    cfg = gpt2_124m()
    cfg.model.hidden_dim = 1000
    cfg.model.embedding.positions.seq_len = 16
    cfg.schedule.warmup_steps = 10**7
    cfg.batch_size = 8
    with pytest.raises(ConfigError) as caught:
        build_trainer(cfg)
    message = str(caught.value)
    assert "model.blocks[0].attention (Attention): hidden_dim=1000 is not a whole number" in message
    assert "schedule (WarmupCosine): warmup_steps=10000000 does not fit into" in message
    assert "batch_size=8 cannot be split evenly over world_size=3" in message
    assert "is longer than the 16 positions of model.embedding.positions" in message


def test_a_batch_of_whole_shares_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert base().batch_size == 8
    build_trainer(base())


def test_all_sizes_of_a_growing_batch_divide_evenly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    cfg = base()
    grow_batch(cfg, multiple_of=2)
    use_prefetch(cfg)
    with pytest.raises(ConfigError, match=r"multiple_of=2: .* over world_size=4 processes"):
        build_trainer(cfg)
    cfg = base()
    grow_batch(cfg, multiple_of=4)
    build_trainer(cfg)


@pytest.mark.parametrize("eps", [-1.0, math.inf])
def test_a_norm_of_torch_takes_a_root_of_what_has_one(eps: float) -> None:
    cfg = base()
    use_layer_norm(cfg)
    build_trainer(cfg)
    cfg.model.norm.eps = eps
    with pytest.raises(
        ConfigError, match=r"model.norm \(LayerNorm\): eps=.* 0 or more, and finite"
    ):
        build_trainer(cfg)


@pytest.mark.parametrize(("vocab_size", "special", "tokens"), [(10, [], 257), (257, ["<a>"], 258)])
def test_every_byte_and_special_token_has_a_row(
    vocab_size: int, special: list[str], tokens: int
) -> None:
    cfg = base()
    use_bytes(cfg)
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


@pytest.mark.parametrize("value", ["abc", "0", "-2", ""])
def test_a_world_size_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ValueError, match=f"WORLD_SIZE={value} in the environment must be"):
        constraints.batch_divides_evenly(base())
