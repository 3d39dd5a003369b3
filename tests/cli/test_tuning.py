"""What a run computes with is measured, recorded in its config, and kept."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fidgpt import graph
from fidgpt import model as lm
from fidgpt.cli import train
from fidgpt.compose.composition import Composition, compose
from fidgpt.runs import tuning as chooser
from fidgpt.runs.building import build_trainer
from fidgpt.runs.directories import load_run
from fidgpt.train import BFloat16, Float32
from fidgpt.train.estimates import tuning

from .conftest import Command

LONG = ("--config=config:debug", "--config=set:num_steps=1000000", "--until_step=1")
SHORT = ("--config=config:debug", "--config=set:num_steps=1")
Slow = Callable[..., list[Any]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Slow:
    """`measured(3, 2, 1)` makes these the seconds of the formats; returns what was measured.

    All kernels of attention take a second, but for those whose `kernels` are given, in their order.
    """
    monkeypatch.setenv("FIDGPT_CACHE", str(tmp_path / "cache"))

    def pretend(
        *seconds: float,
        products: float = 0.9,
        is_steady: bool = True,
        kernels: Sequence[float] = (1.0, 1.0, 1.0, 1.0),
    ) -> list[Any]:
        calls: list[Any] = []

        def measure(run: Any, pieces: Any, asked: Any, effort: tuning.Effort) -> tuning.Speeds:
            are_formats = effort is tuning.FORMATS
            calls.extend([run] if are_formats else [])
            found = dict(zip(asked, seconds if are_formats else kernels, strict=False))
            return tuning.Speeds(
                seconds=found,
                products={name: products * one for name, one in found.items()},
                is_steady=is_steady,
            )

        monkeypatch.setattr(tuning, "measure", measure)
        return calls

    return pretend


def made_of(*directives: str) -> Composition:
    return compose(["config:debug", "set:num_steps=1000000", *directives])


def choose(*directives: str, renew: bool = False) -> tuning.Choice | None:
    made = made_of(*directives)
    return chooser.choose(made, build_trainer(made.resolved), renew=renew)


def choice_of(*directives: str, renew: bool = False) -> tuning.Choice:
    choice = choose(*directives, renew=renew)
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ((3.0, 2.0, 1.0), "bfloat16"),
        ((1.0, 2.0, 3.0), "float32"),
        ((1.02, 1.01, 1.0), "float32"),  # too little to give up digits for
    ],
)
def test_the_fastest_format_is_chosen(
    measured: Slow, seconds: tuple[float, ...], chosen: str
) -> None:
    measured(*seconds)
    assert tuning.name_of(choice_of().precision) == chosen


def test_what_was_measured_is_remembered_for_its_shapes(measured: Slow) -> None:
    calls = measured(3.0, 2.0, 1.0)
    reason = choice_of().reason
    assert reason.startswith("bfloat16, 3.00 times as fast as float32 and 2.00 times as fast as")
    assert choice_of("tag:LearningRate=1").reason == reason
    assert len(calls) == 1
    choice_of("set:model.hidden_dim=64")
    choice_of("set:batch_size=5")
    assert len(calls) == 3
    choice_of(renew=True)
    assert len(calls) == 4


def test_a_disturbed_measurement_decides_nothing(
    measured: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured(9.0, 9.0, 1.0, is_steady=False, kernels=(9.0, 1.0, 9.0, 9.0))
    monkeypatch.setattr(tuning, "native_precision", Float32)
    for _ in range(2):
        choice = choice_of()
        assert type(choice.precision) is Float32
        assert choice.kernel is None
        assert choice.reason.endswith("other programs disturbed the measurement")
    assert len(calls) == 2  # not remembered


def test_blocks_are_compiled_where_that_saves_time(
    measured: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "sh")  # which exists
    measured(3.0, 2.0, 1.0, products=0.1)
    assert choice_of().compiles
    measured(3e-6, 2e-6, 1e-6, products=0.1)
    assert not choice_of(renew=True).compiles  # a quarter of a second at most
    measured(3.0, 2.0, 1.0, products=0.95)
    assert not choice_of(renew=True).compiles  # 1% of a step
    monkeypatch.setenv("CXX", "no-such-compiler")
    measured(3.0, 2.0, 1.0, products=0.1)
    assert not choice_of(renew=True).compiles


def test_the_fastest_attention_is_chosen_where_the_config_sets_none(measured: Slow) -> None:
    measured(3.0, 2.0, 1.0, kernels=(1.0, 2.0, 0.5, 3.0))
    choice = choice_of()
    assert choice.kernel == "by blocks of 128 queries"
    assert "attention by blocks of 128 queries, 2.00 times as fast as it comes" in choice.reason
    cfg: Any = chooser.tuned(made_of(), choice).config
    kernel = cfg.model.blocks[0].attention.kernel
    assert (kernel.__fn_or_cls__, kernel.block_size) == (lm.blockwise, 128)
    assert graph.equal(chooser.tuned_alike(made_of().config, cfg), cfg)
    measured(3.0, 2.0, 1.0, kernels=(1.0, 0.98, 0.97, 3.0))
    assert choice_of(renew=True).kernel is None  # too little
    assert "attention" not in choice_of("set:**.attention.kernel=sdpa").measured


@pytest.mark.slow
def test_a_run_records_the_choice_and_keeps_it(
    command: Command, measured: Slow, tmp_path: Path
) -> None:
    calls = measured(3.0, 2.0, 1.0)
    run = f"--run_dir={tmp_path}/run"
    done = command(train.main, *LONG, run)
    assert done.status == 0, done.err
    assert "tuning: bfloat16, 3.00 times as fast as float32" in done.err
    cfg: Any = load_run(tmp_path / "run")
    assert cfg.precision.__fn_or_cls__ is BFloat16
    measured(1.0, 2.0, 3.0)  # as on another machine
    resumed = command(train.main, f"--resume={tmp_path}/run", "--until_step=2")
    again = command(train.main, *LONG[:2], "--until_step=3", "--auto_resume", run)
    assert (resumed.status, again.status) == (0, 0), resumed.err + again.err
    file = f"--config=config_file:{tmp_path}/run/config.json"
    assert command(train.main, file, "--until_step=1", f"--run_dir={tmp_path}/other").status == 0
    assert graph.equal(load_run(tmp_path / "other"), cfg)
    why = command(train.main, file, "--why=precision").out
    assert "measured on this machine: bfloat16, 3.00 times as fast as float32" in why
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("directive", "precision"),
    [("use:precision=BFloat16", BFloat16), ("fiddler:use_float32", Float32)],
)
def test_a_directive_overrules_the_measurement(
    command: Command, measured: Slow, tmp_path: Path, directive: str, precision: type
) -> None:
    measured(3.0, 1.0, 2.0)
    flags = (*LONG, f"--config={directive}", f"--run_dir={tmp_path}/run")
    assert command(train.main, *flags).status == 0
    cfg: Any = load_run(tmp_path / "run")
    assert cfg.precision.__fn_or_cls__ is precision


def test_the_table_of_what_was_measured(command: Command, measured: Slow) -> None:
    measured(3.0, 2.0, 1.0)
    shown = command(train.main, *LONG[:2], "--print=speed")
    assert shown.status == 0, shown.err
    rows = {line.split("  ")[0]: line.split()[-4:] for line in shown.out.splitlines()}
    assert rows["float32"] == ["3,000.0", "2,700.0", "2,925.0", "1.00"]
    assert rows["bfloat16"] == ["1,000.0", "900.0", "975.0", "3.00"]
    assert rows["by torch"] == ["1,000.0", "900.0", "975.0", "1.00"]
    assert "tuning:" not in command(train.main, *LONG[:2], "--dry_run").err
    assert "Nothing is measured" in command(train.main, *SHORT, "--print=speed").out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["use_moe", "use_mla", "share_blocks", "untie_embeddings"])
def test_models_of_every_kind_can_be_measured(name: str) -> None:
    """The times are positive, and the model is as it was: without memory."""
    made = made_of(f"fiddler:{name}")
    trainer = build_trainer(made.resolved)
    before = {key: (one.shape, one.is_meta) for key, one in trainer.model.named_parameters()}
    choice = chooser.choose(made, trainer, renew=True)
    assert choice is not None
    assert [*choice.measured] == ["number format", "attention"]
    assert len(choice.measured["attention"].seconds) == 4
    for speeds in choice.measured.values():
        assert all(one > 0 for one in speeds.seconds.values())
    assert all(
        one.kernel is lm.fastest for one in trainer.model.modules() if hasattr(one, "kernel")
    )
    assert {k: (p.shape, p.is_meta) for k, p in trainer.model.named_parameters()} == before
    assert torch.get_float32_matmul_precision() == "highest"


def test_formats_without_digits_are_not_called_float32() -> None:
    """As where "medium" multiplies in bfloat16."""

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.bfloat16().double() @ b.bfloat16().double()).float()

    trainer = build_trainer(made_of().resolved)
    pieces = tuning.pieces_of(trainer)
    formats = {
        tuning.name_of(one): tuning.Candidate(one)
        for one in (Float32(), Float32(products="medium"))
    }
    speeds = tuning.measure(trainer, pieces, formats, tuning.Effort(seconds=0.0, steady=1.3))
    assert [*speeds.seconds] == ["float32", "float32 (medium products)"][: len(speeds.seconds)]
    assert not tuning.is_exact(Float32(products="medium"), multiply=rounded)
    assert tuning.is_exact(Float32(products="highest"))
