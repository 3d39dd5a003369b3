"""Trees of settings from Python become directives: no more of them than there are differences."""

import dataclasses
from typing import Any

import pytest

from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, bind
from fidgpt.interop import directives_of


@dataclasses.dataclass
class Optimizer:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)


@dataclasses.dataclass
class Settings:
    model: dict[str, int] = dataclasses.field(default_factory=lambda: {"hidden_dim": 256})
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    seed: int = 0
    max_grad_norm: float | None = 1.0


class ConfigDict:
    """Has items, and is no dict."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def items(self) -> Any:
        return self._fields.items()


def graph_of(directives: list[str]) -> Any:
    return bind(compose(directives).config)


def test_values_that_hold_already_need_no_directive() -> None:
    assert directives_of(Settings()) == ["config:base"]
    inherited = {"model": {"blocks": [{"attention": {"hidden_dim": 256, "bias": False}}]}}
    assert directives_of(inherited) == ["config:base"]


def test_differences_of_a_dataclass_are_set() -> None:
    tree = Settings({"hidden_dim": 512}, Optimizer(3e-4, (0.8, 0.9)), max_grad_norm=None)
    assert directives_of(tree) == [
        "config:base",
        "set:model.hidden_dim=512",
        "set:optimizer.lr=0.0003",
        "set:optimizer.betas=(0.8, 0.9)",
        "set:max_grad_norm=None",
    ]


def test_differences_of_a_config_dict_from_another_base_are_set() -> None:
    tree = ConfigDict(
        seed=7,
        evaluators={"validation": ConfigDict(every=5)},
        samples=ConfigDict(prompts=["a, b", "{c}"]),
        data={"corpus": {"source": {}}},
        schedule={"warmup_steps": 3},
    )
    directives = directives_of(tree, base="config:debug")
    assert directives[0] == "config:debug"
    cfg = graph_of(directives)
    assert (cfg.seed, cfg.evaluators["validation"].every, cfg.schedule.warmup_steps) == (7, 5, 3)
    assert cfg.samples.prompts == ["a, b", "{c}"]


@pytest.mark.slow
def test_inherited_values_need_a_directive_if_they_differ() -> None:
    tree = {"model": {"hidden_dim": 512, "blocks": [{"mlp": {"hidden_dim": 256}}]}}
    directives = directives_of(tree)
    assert directives[1:] == ["set:model.hidden_dim=512", "set:model.blocks[0].mlp.hidden_dim=256"]
    assert graph_of(directives).model.blocks[0].mlp.hidden_dim == 256
    tree = {"data": {"seq_len": 64}, "micro_batch_size": 2, "seq_len": 64}
    assert directives_of(tree)[1:] == ["set:seq_len=64", "set:micro_batch_size=2"]


def test_every_error_is_listed() -> None:
    tree = {
        "modle": {"a": 1, "b": 2},
        "model": {"hiden_dim": 1, "mlp": 3, "blocks": [{}, {"mlp": {}}]},
        "seed": "x",
        "optimizer": "adam",
        "vocab_size": True,
        "data": {"seed": False},
        "num_steps": {"a": 1},
    }
    with pytest.raises(ConfigError) as error:
        directives_of(tree)
    messages = str(error.value).split("\n\n")
    wanted = [
        "Trainer has no parameter 'modle'. Did you mean model?",
        "has no parameter 'hiden_dim'. Did you mean hidden_dim?",
        "has no parameter 'mlp'. It exists at model.blocks[0].mlp.",
        "there is no item 1",
        "num_steps is 450 (int), so there is nothing at num_steps.a",
        "seed takes int, not 'x' (str)",
        "optimizer takes Callable",
        "data.seed takes int, not False (bool)",
        "vocab_size takes int, not True (bool)",
    ]
    assert [one for one in wanted if not any(one in message for message in messages)] == []
    assert len(messages) == len(wanted)
