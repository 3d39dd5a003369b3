"""Gradients on meshes of processes are those of one process."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from forked import Python, run_ranks
from meshes import FAMILIES, MESHES, NUM_LAYERS, SEQ_LENS

from fidgpt import configs, fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigErrors
from fidgpt.parallel import MeshParallel, UlyssesContext
from fidgpt.parallel.context import Split
from fidgpt.train.device import machine_named
from fidgpt.train.facts import facts_of
from fidgpt.train.trackers.trackers import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("meshes")]
Left = dict[str, dict[str, Any]]
BOUND = 1e-5
TINY = 1e-5  # of the norm of all gradients: below are those that are zero but for rounding
OFTEN = {2: set(FAMILIES) - {"compiled"}, 4: {"gemma3", "mixture"}}
CASES = [
    pytest.param(number, mesh, family, marks=() if family in OFTEN[number] else pytest.mark.long)
    for number, meshes in MESHES.items()
    for mesh in meshes
    for family in FAMILIES
]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What processes leave, which run once for the cases of every day and once for the others."""

    @functools.cache
    def run(number: int, is_often: bool) -> Left:
        folder = tmp_path_factory.mktemp("ranks")
        families = [name for name in FAMILIES if (name in OFTEN[number]) == is_often]
        script = Path(__file__).parent.with_name("meshes.py")
        run_ranks(number, script, folder, *families, folder=folder, seconds=900)
        ranks = [torch.load(folder / f"rank{rank}.pt") for rank in range(number)]
        return {case: result for rank in reversed(ranks) for case, result in rank.items()}

    return lambda number, is_often=True: run(number, is_often)


@pytest.mark.parametrize(("number", "mesh", "family"), CASES)
def test_every_gradient_is_that_of_one_process(left, number: int, mesh: str, family: str) -> None:
    results = left(number, family in OFTEN[number])
    one, other = results[family], results[f"{family} on {mesh}"]
    for name, value in one["row"].items():
        expected = pytest.approx(value, rel=BOUND) if isinstance(value, float) else value
        assert other["row"][name] == expected, name
    norms = {name: gradient.norm() for name, gradient in one["gradients"].items()}
    tiny = TINY * torch.stack([*norms.values()]).norm()
    assert norms.keys() == other["gradients"].keys()
    errors = {
        name: ((other["gradients"][name] - gradient).norm() / (norms[name] + tiny)).item()
        for name, gradient in one["gradients"].items()
    }
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] < BOUND, worst


@pytest.mark.parametrize("mesh", MESHES[2])
def test_sequences_that_processes_share_are_evaluated_as_by_one(left, mesh: str) -> None:
    one, other = left(2)["evaluated"], left(2)[f"evaluated on {mesh}"]
    assert other == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("mesh", MESHES[2])
def test_copies_of_the_weights_in_bfloat16_share_sequences_too(left, mesh: str) -> None:
    one, other = left(2)["narrow"], left(2)[f"narrow on {mesh}"]
    assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)
    assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-2)


@pytest.mark.parametrize("seq_len", SEQ_LENS)
def test_activations_are_shared_by_the_processes(left, seq_len: int) -> None:
    """Besides them, gathering keeps the keys and values of the others and, on a CPU, masks."""
    one = left(2)[f"{seq_len}"]
    assert left(2)[f"{seq_len} on ulysses"] == pytest.approx(one / 2, rel=0.06)
    keys, mask = 2 * 2 * 8 * seq_len * 4, seq_len // 2 * seq_len * 4
    gathered = NUM_LAYERS * (keys / 2 + mask)
    assert left(2)[f"{seq_len} on context"] == pytest.approx(one / 2 + gathered, rel=0.03)


def test_two_processes_compute_sequences_that_one_could_not_hold(left) -> None:
    short, long = SEQ_LENS
    assert long == 2 * short
    assert left(2)[f"{long} on ulysses"] < 1.06 * left(2)[f"{short}"] < 0.6 * left(2)[f"{long}"]


def test_the_summary_knows_that_sequences_are_shared(cfg: fdl.Config) -> None:
    def activations(context: int) -> int:
        fiddlers.use_mesh(cfg, shard=-1, context=context)
        machine = machine_named("h100x8", torch.bfloat16)
        measured = facts_of(build_trainer(cfg), machine).memory.activations
        assert measured is not None
        return measured.kept

    cfg.batch_size, cfg.seq_len = 8, 1024  # of which each device has one sequence, or half of two
    cfg.micro_batch_size = 1
    assert activations(2) == pytest.approx(activations(1) / 2, rel=0.05)


@pytest.mark.long
def test_losses_are_alike_on_many_meshes() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "meshes.py"
    command = [sys.executable, script, "--steps=4", "--processes", "2", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 23, done.stdout


def test_a_run_starts_on_one_mesh_and_ends_on_another(tmp_path: Path) -> None:
    command = ["-m", "fidgpt.cli.train"]
    debug = ["--config=config:debug", "--config=fiddler:use_float32"]
    two, one = tmp_path / "two", tmp_path / "one"
    mesh = ["--config=fiddler:use_mesh(context=2)", "--config=fiddler:use_ulysses"]
    until = ["--until_step=6", f"--run_dir={two}"]
    run_ranks(2, *command, *debug, *mesh, *until, folder=tmp_path)
    alone = ["--config=fiddler:use_mesh(context=1)", f"--resume={two}"]
    for arguments in ([*debug, f"--run_dir={one}"], alone):
        process = Python(*command, *arguments, output=tmp_path / "output")
        assert process.end(seconds=300) == 0, process.output
    losses, expected = (
        [row["loss"] for row in read_rows(path / "metrics.jsonl")] for path in (two, one)
    )
    assert len(losses) == 10 and losses == pytest.approx(expected, rel=BOUND)


def test_sequences_and_heads_that_cannot_be_split_are_refused(cfg: fdl.Config) -> None:
    fiddlers.use_mesh(cfg, context=3)
    cfg.seq_len = 32
    with pytest.raises(ConfigErrors, match="seq_len=32 must be a multiple of 6, two chunks for"):
        build_trainer(cfg)
    fiddlers.use_ulysses(cfg)
    with pytest.raises(ConfigErrors, match="seq_len=32 must be a multiple of the context=3"):
        build_trainer(cfg)
    cfg.seq_len = 33
    with pytest.raises(ConfigErrors, match=r"num_heads=2 of blocks\.0\.attention must be a"):
        build_trainer(cfg)
    fiddlers.use_mesh(cfg, context=2)  # Ulysses stays
    cfg.seq_len = 32
    parallel = build_trainer(cfg).parallel
    assert isinstance(parallel, MeshParallel)
    assert isinstance(parallel.parts["context"], UlyssesContext)


@pytest.mark.parametrize("seq", [8, 9, 21, 100])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("make", [Split.in_zigzag, Split.in_order])
def test_each_token_is_computed_by_one_process(make: Any, size: int, seq: int) -> None:
    split = make(seq, size)
    for end in (seq, seq - 1, seq - 2):
        part = split.between(0, end)
        columns = [c for ranges in part.ranges for one in ranges for c in range(*one)]
        assert sorted(columns) == [*range(end)]
        assert all([*ranges] == sorted(ranges) for ranges in part.ranges)


def test_a_zigzag_gives_all_processes_the_same_pairs_of_query_and_key() -> None:
    def pairs(split: Split) -> list[int]:
        return [sum(c + 1 for one in ranges for c in range(*one)) for ranges in split.ranges]

    assert len({*pairs(Split.in_zigzag(64, 4))}) == 1
    assert max(pairs(Split.in_order(64, 4))) > 6 * min(pairs(Split.in_order(64, 4)))


@pytest.fixture
def cfg() -> fdl.Config:
    return configs.debug()
