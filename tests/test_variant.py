"""A config defined by its differences from another one."""

import inspect
import re
from typing import Any

import fiddle as fdl
import pytest

from fidgpt import configs
from fidgpt.configs import gemma3
from fidgpt.configs.decoder import decoder
from fidgpt.configs.variant import variant_of
from fidgpt.graph.hints import hints_of
from fidgpt.train import Trainer

SIZES: dict[str, Any] = {
    "hidden_dim": 64,
    "num_layers": 2,
    "num_heads": 4,
    "ffn_dim": 96,
    "vocab_size": 300,
    "seq_len": 32,
}


@variant_of(decoder, eps=1e-3, theta=5.0)
def capped(cfg: fdl.Config[Trainer], *, eps: float, cap: float | None = 2.0) -> None:
    """A decoder with a cap."""
    cfg.optimizer.eps, cfg.model.unembedding.softcap = eps, cap


@variant_of(capped, cap=None, theta=7.0)
def uncapped(cfg: fdl.Config[Trainer]) -> None:
    """The same without."""


def values(cfg: fdl.Config) -> list[Any]:
    model = cfg.model
    theta = model.blocks[0].attention.rope.theta
    return [model.norm.eps, cfg.optimizer.eps, theta, model.unembedding.softcap]


def test_what_both_inherit_is_one_argument_and_all_can_be_set() -> None:
    assert values(capped(**SIZES)) == [1e-3, 1e-3, 5.0, 2.0]
    assert values(capped(**SIZES, eps=0.1, theta=9.0, cap=4.0)) == [0.1, 0.1, 9.0, 4.0]


def test_a_variant_has_variants() -> None:
    assert values(uncapped(**SIZES)) == [1e-3, 1e-3, 7.0, None]
    assert values(uncapped(**SIZES, cap=1.0)) == [1e-3, 1e-3, 7.0, 1.0]


def test_its_arguments_are_those_of_both() -> None:
    parameters = inspect.signature(uncapped).parameters
    assert list(parameters) == [*inspect.signature(decoder).parameters, "cap"]
    assert [parameters[name].default for name in ("eps", "theta", "cap")] == [1e-3, 7.0, None]
    assert parameters["num_heads"].default is inspect.Parameter.empty
    assert hints_of(uncapped)["cap"] == float | None
    assert hints_of(uncapped)["return"] == fdl.Config[Trainer]
    assert uncapped.__name__ == "uncapped" and uncapped.__doc__ == "The same without."


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SIZES | {"num_head": 4}, "uncapped: got an unexpected keyword argument 'num_head'"),
        ({"num_heads": 4}, "uncapped: missing a required argument: 'hidden_dim'"),
    ],
)
def test_an_argument_that_is_missing_or_unknown_is_named(wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        uncapped(**wrong)


def test_a_default_that_the_parent_has_no_argument_for_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="decoder has no argument espilon"):
        variant_of(decoder, espilon=1e-3)


def test_sizes_of_a_family_share_no_node() -> None:
    for make in (configs.gemma3_4b, configs.deepseek_v2_lite, configs.gpt_oss_20b):
        make().model.blocks[-1].attention.rope.scaling.factor = 99.0
        assert make().model.blocks[-1].attention.rope.scaling.factor != 99.0
    assert gemma3.gemma3().model.num_layers == 26
