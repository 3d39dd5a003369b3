"""Models on meshes compute what one process does: gradients, first weights and checkpoints."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tensor_meshes as meshes
import torch
from forked import run_ranks
from torch import Tensor

pytestmark = [pytest.mark.xdist_group("tensor_meshes"), pytest.mark.slow]
SCRIPT = Path(meshes.__file__)
BOUND = 1e-5  # of a gradient's largest element, in float32

# Every family in the form that divides most, and each other mesh on what is hardest for it.
APART = {*meshes.OPTIMIZERS, "dropout"}
USUAL = {
    2: [
        *(f"{family}/sequence" for family in meshes.FAMILIES if family not in APART),
        *("mtp/tensor", "everything/tensor", "deepseek_v3/tensor"),
        *("mixtral/shard", "mixtral/replicate", "packing/replicate"),
    ],
    4: [
        *("everything/shard_tensor", "gpt_oss/shard_sequence", "lora/replicate_sequence"),
        *("everything/tensor", "muon/shard_tensor", "adafactor/tensor"),
    ],
}
ALL = {
    number: [
        f"{family}/{mesh}"
        for family in meshes.FAMILIES
        if family != "dropout"
        for mesh in meshes.MESHES[number]
    ]
    for number in meshes.MESHES
}


@functools.cache
def alone(family: str) -> dict[str, Any]:
    """What one process computes."""
    return meshes.gradients(family)


def check(number: int, cases: Sequence[str], folder: Path) -> None:
    """Compare all cases on so many processes with one process."""
    run_ranks(number, SCRIPT, folder, *cases, folder=folder, seconds=600)
    ranks = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(number)]
    wrong = [line for case in cases for line in differences(case, [rank[case] for rank in ranks])]
    assert not wrong, "\n".join(wrong)


def differences(case: str, ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for everything of a case that is not as on one process."""
    one, wrong = alone(case.split("/")[0]), []
    for rank in ranks:
        if rank["rows"] != ranks[0]["rows"]:
            wrong.append(f"{case}: ranks measure different metrics")
        for own, row in zip(one["rows"], rank["rows"], strict=True):
            for name in ("loss", "grad_norm"):
                # Muon works in bfloat16, where the last bit of a gradient shows.
                if row[name] != pytest.approx(own[name], rel=1e-4 if "muon" in case else BOUND):
                    wrong.append(f"{case}: {name} is {row[name]} instead of {own[name]}")
        if differ := [n for n, value in one["start"].items() if not _same(rank["start"], n, value)]:
            wrong.append(f"{case}: starts with other weights: {differ}")
        noise = 1e-8 * one["rows"][0]["grad_norm"]  # of gradients that are zero but for rounding
        for name, gradient in one["gradients"].items():
            found = rank["gradients"].get(name)
            error = torch.inf if found is None else (found - gradient).abs().max().item()
            if error > BOUND * gradient.abs().max().item() + noise:
                ratio = torch.nan if found is None else found.norm() / gradient.norm()
                wrong.append(f"{case}: the gradient of {name} is off by {error}, ratio {ratio}")
    return wrong


def _same(found: Mapping[str, Tensor], name: str, value: Tensor) -> bool:
    return name in found and torch.equal(found[name], value)


@pytest.mark.parametrize("number", USUAL)
def test_every_gradient_is_that_of_one_process(number: int, tmp_path: Path) -> None:
    check(number, USUAL[number], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", ALL)
def test_every_gradient_of_every_family_on_every_mesh(number: int, tmp_path: Path) -> None:
    check(number, ALL[number], tmp_path)


def test_processes_drop_different_elements_and_stay_alike(tmp_path: Path) -> None:
    cases = ["dropout/tensor", "dropout/sequence"]
    run_ranks(2, SCRIPT, tmp_path, *cases, folder=tmp_path)
    first, second = (torch.load(tmp_path / f"rank{r}.pt", weights_only=False) for r in range(2))
    for case in cases:
        assert first[case]["rows"] == second[case]["rows"] != alone("dropout")["rows"]
        for name, weight in first[case]["end"].items():
            assert torch.equal(second[case]["end"][name], weight), name


def test_a_missing_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {**alone("qwen3")}
    name = "blocks.0.attention.query_norm.weight"
    half = {**one, "gradients": {**one["gradients"], name: one["gradients"][name] / 2}}
    (line,) = differences("qwen3/tensor", [half])
    assert f"the gradient of {name}" in line and "ratio 0.5" in line
    assert not differences("qwen3/tensor", [one])


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("adamw", "next"),
        *(pytest.param(kind, "each", marks=pytest.mark.long) for kind in meshes.OPTIMIZERS),
    ],
)
def test_a_checkpoint_of_any_mesh_is_restored_on_any_other(
    kind: str, how: str, tmp_path: Path
) -> None:
    optimizer = meshes.OPTIMIZERS[kind]
    torch.save(meshes.Run(optimizer).save(tmp_path / "alone"), tmp_path / "alone.pt")
    run_ranks(4, SCRIPT, tmp_path, kind, how, folder=tmp_path, seconds=600)
    ranks = [torch.load(tmp_path / f"rank{r}.pt", weights_only=False) for r in range(4)]
    num_saved = len(meshes.SAVED) + 1
    for left in ranks:
        assert len(left["differ"]) == num_saved * (1 if how == "next" else len(meshes.SAVED))
        assert not any(left["differ"].values()), left["differ"]
    for name, state in ranks[0]["states"].items():
        restored = meshes.Run(optimizer).restore(tmp_path / name)
        assert restored.keys() == state.keys()
        assert all(torch.equal(restored[one], state[one]) for one in state), name
