"""Steps that are computed twice find bits that flip, and change no number of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import replayed
import torch
from forked import Python
from replayed import flip, flipped_in_gradient, flipped_in_weight
from run_facts import reproducible

from fidgpt import fiddlers
from fidgpt.train import RunError, Trainer
from fidgpt.train.replay import checksum

Change = Callable[[fdl.Config[Trainer]], object]


def plain(cfg: fdl.Config[Trainer]) -> None:
    cfg.num_steps, cfg.evaluators = 4, {}


def all_of_it(cfg: fdl.Config[Trainer]) -> None:
    cfg.batch_size, cfg.micro_batch_size, cfg.model.dropout = 4, 1, 0.1
    fiddlers.use_moe(cfg, num_experts=4, ffn_dim=32)
    fiddlers.use_loss_free_balancing(cfg)
    fiddlers.use_muon(cfg)
    fiddlers.use_ema(cfg, beta=0.5)
    fiddlers.use_step_meters(cfg, every=3)
    fiddlers.use_prefetch(cfg)


def skipping(cfg: fdl.Config[Trainer]) -> None:
    fiddlers.use_schedule_free(cfg)
    fiddlers.use_skip_step(cfg, window=4, num_deviations=0.5)
    fiddlers.use_divergence_skip(cfg)


def scaled(cfg: fdl.Config[Trainer]) -> None:
    fiddlers.use_float16(cfg)
    cfg.precision.init_scale, cfg.precision.growth_interval = 2.0**20, 2


@pytest.mark.parametrize("change", [all_of_it, skipping, scaled])
def test_losses_are_those_without_replay(cfg, train, change: Change) -> None:
    change(cfg)
    cfg.num_steps, cfg.evaluators = 6, {}
    rows = train(cfg, "without")
    fiddlers.use_step_replay(cfg, every=2)
    replayed = train(cfg, "with")
    assert [*map(reproducible, replayed)] == [*map(reproducible, rows)]
    assert [row["step"] for row in replayed if "seconds/replay" in row] == [2, 4, 6]
    if change in (skipping, scaled):
        assert any(row["skipped"] for row in rows) and not all(row["skipped"] for row in rows)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (flipped_in_weight, "weights changed while it was computed on process 0 .*: norm.weight."),
        (flipped_in_gradient, "gradients differ on process 0 .*: norm.weight."),
    ],
)
def test_a_flipped_bit_ends_the_run(cfg, train, fault, words: str) -> None:
    plain(cfg)
    fiddlers.use_step_replay(cfg, every=2)
    repeated = "A third computation equals the second"
    with fault(4), pytest.raises(RunError, match=f"step 4 was computed twice .*{words} {repeated}"):
        train(cfg)


def test_what_never_repeats_is_distinguished_from_a_rare_error(cfg, train) -> None:
    plain(cfg)
    fiddlers.use_step_replay(cfg, every=2)
    with flipped_in_gradient(4, times=3), pytest.raises(RunError, match="use_determinism"):
        train(cfg)


def test_a_warning_goes_on_with_what_two_of_three_computed(cfg, train, capsys) -> None:
    plain(cfg)
    rows = train(cfg, "without")
    fiddlers.use_step_replay(cfg, every=2, stops=False)
    with flipped_in_gradient(4):
        replayed = train(cfg, "with")
    assert [*map(reproducible, replayed)] == [*map(reproducible, rows)]
    assert "warning: step 4 was computed twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8]
)
def test_any_bit_shows_in_the_checksum(dtype: torch.dtype) -> None:
    tensor = torch.arange(300).view(20, 15).t().to(dtype)
    known = checksum(tensor)
    assert torch.equal(checksum(tensor.clone()), known)
    for place in range(0, 300, 7):
        other = tensor.clone().contiguous()
        flip(other, place, bit=0 if dtype == torch.bool else place % (8 * other.element_size()))
        assert not torch.equal(checksum(other), known)
    assert checksum(torch.zeros(0)).item() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [["plain"], pytest.param([*replayed.CASES], marks=pytest.mark.long)],
    ids=["plain", "all"],
)
def test_processes_find_what_differs(tmp_path: Path, cases: list[str]) -> None:
    process = Python(replayed.__file__, tmp_path, *cases, output=tmp_path / "output")
    assert process.end(seconds=300) == 0, process.output[-4000:]
    found: dict[str, Any] = torch.load(tmp_path / "found.pt", weights_only=False)
    for case in cases:
        for left in found[case]:
            assert left["rows"] == left["replayed"]
            for fault, words in replayed.FAULTS[case].items():
                text = left[fault]
                assert all(part in text for part in words), text
