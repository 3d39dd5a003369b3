"""What a Levanter file says of steps left out, averages and checkpoints, and what does it."""

import inspect
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.graph import ConfigErrors, bind, check_and_bind
from fidgpt.interop import Mapped, read_levanter
from fidgpt.train import Ema, EmaDecaySqrt, EveryMinutes, SkipOutliers, ZLoss


def read(text: str) -> Mapped:
    return read_levanter(inspect.cleandoc(text))


def graph_of(mapped: Mapped) -> Any:
    """The bound graph, in which everything holds that is asked of a graph."""
    return check_and_bind(compose(mapped.directives, own_catalogue()))


def said(part: Any) -> tuple[Any, dict[str, Any]]:
    return fdl.get_callable(part), dict(bind(part).__arguments__)


@pytest.mark.parametrize(
    ("text", "part", "arguments"),
    [
        ("{type: ema}", Ema, {"beta": 0.999}),
        ("{type: ema, beta: 0.9}", Ema, {"beta": 0.9}),
        (
            "{type: ema_decay_sqrt, beta: 0.99, switch_step: 70, decay_steps: 30}",
            EmaDecaySqrt,
            {"beta": 0.99, "switch_step": 70, "decay_steps": 30},
        ),
        (
            "{type: ema_decay_sqrt}",
            EmaDecaySqrt,
            {"beta": 0.999, "switch_step": 100_000, "decay_steps": 100_000},
        ),
    ],
)
def test_averages(text: str, part: Any, arguments: dict[str, Any]) -> None:
    mapped = read(f"trainer: {{num_train_steps: 100, model_averaging: {text}}}")
    assert said(graph_of(mapped).average) == (part, arguments)
    assert not [one for one in mapped.unmapped if "averag" in one]


@pytest.mark.parametrize(
    ("text", "window", "deviations"),
    [
        ("true", 128, 6.0),
        ("64", 64, 6.0),
        ("{rolling_interval_length: 32, sigma_factor: 4}", 32, 4.0),
        ("{}", 128, 6.0),
    ],
)
def test_steps_that_are_left_out(text: str, window: int, deviations: float) -> None:
    mapped = read(f"optimizer: {{skip_bad_steps: {text}}}")
    arguments = {"window": window, "num_deviations": deviations}
    assert said(graph_of(mapped).guard) == (SkipOutliers, arguments)
    assert not [one for one in mapped.unmapped if "skip" in one]


@pytest.mark.parametrize("text", ["false", "null", "0"])
def test_no_step_is_left_out_unless_said(text: str) -> None:
    mapped = read(f"optimizer: {{skip_bad_steps: {text}}}\ntrainer: {{model_averaging: null}}")
    cfg = graph_of(mapped)
    assert cfg.guard is None and cfg.average is None
    assert not [one for one in mapped.unmapped if "skip" in one or "averag" in one]


def test_what_is_kept_by_steps_and_what_passes_by_the_clock() -> None:
    cfg = graph_of(
        read("""
            trainer:
              checkpointer:
                save_interval: 1h30m
                keep: [{every: 100, until: 1000}, {every: 500, until: null}]
        """)
    ).checkpoints
    assert [(part.every, part.until) for part in cfg.keep] == [(100, 1000), (500, None)]
    assert cfg.every is None
    assert said(cfg.temporary) == (EveryMinutes, {"minutes": 90.0})
    assert graph_of(read("{}")).checkpoints.temporary.minutes == 15.0
    never = read("trainer: {checkpointer: {save_interval: null}}")
    assert bind(graph_of(never).checkpoints).temporary is None


def test_z_loss() -> None:
    loss = graph_of(read("z_loss_weight: 1e-4")).loss
    found = [term for term in loss.terms.values() if fdl.get_callable(term) is ZLoss]
    assert [term.weight for term in found] == [1e-4]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("trainer: {model_averaging: {type: swa}}", "trainer.model_averaging.type"),
        ("trainer: {model_averaging: {type: ema, epsilon: 1}}", "trainer.model_averaging.epsilon"),
        ("optimizer: {skip_bad_steps: often}", "optimizer.skip_bad_steps"),
        ("optimizer: {skip_bad_steps: {x: 1}}", "optimizer.skip_bad_steps.x"),
        ("trainer: {checkpointer: {keep: [{each: 3}]}}", "trainer.checkpointer.keep"),
        ("trainer: {checkpointer: {save_interval: soon}}", "trainer.checkpointer.save_interval"),
    ],
)
def test_what_there_is_nothing_for_is_listed(text: str, path: str) -> None:
    mapped = read(text)
    graph_of(mapped)
    assert path in [one.partition(":")[0] for one in mapped.unmapped]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(
        ConfigErrors, match=r"trainer\.model_averaging\.beta is much, but must be a number"
    ):
        read("trainer: {model_averaging: {type: ema, beta: much}}")
