"""Machines have names, and a config may change with the machine that it runs on."""

import os
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch

from fidgpt import configs, fiddlers, train
from fidgpt.fiddlers.hardware import apply_rules
from fidgpt.plan import find_device
from fidgpt.train import device
from fidgpt.train.device import machine_named, short_name

RULES = [
    ("h100x8", [fiddlers.use_float32]),
    ("h100x*", []),
    ("toast*", [fdl.Partial(fiddlers.set_micro_batch_size, size=2)]),
]


@pytest.mark.parametrize(
    ("line", "files", "most"),
    [
        ("0::/", {"memory.max": "4096"}, 4096),
        ("0::/jobs/step", {"jobs/memory.max": "8192", "jobs/step/memory.max": "max"}, 8192),
        ("0::/of/another/place", {"memory.max": "4096"}, 4096),
        ("4:memory:/job", {"job/memory.max": "4096"}, None),
    ],
)
def test_the_memory_is_what_a_scheduler_or_container_allows(
    line: str,
    files: dict[str, str],
    most: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{line}\n" if line else "")
    monkeypatch.setattr(device, "CGROUPS", tmp_path)
    monkeypatch.setattr(device, "OWN_CGROUPS", tmp_path / "own")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert device.main_memory() == (most or whole)


@pytest.mark.parametrize(
    ("full_name", "name", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", 989),
        ("NVIDIA H100 PCIe", "h100", 756),
        ("NVIDIA H200", "h200", 989),
        ("NVIDIA H20", "h20", 148),
        ("NVIDIA GB200", "gb200", 2500),
        ("NVIDIA GH200 480GB", "gh200", 989),
        ("NVIDIA A100-SXM4-80GB", "a100", 312),
        ("NVIDIA A10", "a10", 125),
        ("NVIDIA A10G", "a10g", None),
        ("NVIDIA L4", "l4", 121),
        ("NVIDIA L40S", "l40s", 362),
        ("NVIDIA GeForce RTX 4090", "rtx4090", 165),
        ("Tesla V100-SXM2-16GB", "v100", None),
        ("AMD Instinct MI300X", "mi300x", 1307),
        ("", "unknown", None),
    ],
)
def test_a_device_has_its_name_and_peak(full_name: str, name: str, teraflops: float | None) -> None:
    assert short_name(full_name) == name
    peak = None if teraflops is None else teraflops * 1e12
    device = find_device(full_name)
    assert (device and device.peak("bfloat16")) == peak
    if full_name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        assert machine_named(name, torch.bfloat16).device.peak("bfloat16") == peak


def test_a_machine_is_named_by_its_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = train.machine_name()
    assert alone.endswith("x1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert train.machine_name() == alone.removesuffix("1") + "4"
    monkeypatch.setenv("FIDGPT_MACHINE", "h100x8")
    assert train.machine_name() == "h100x8"


@pytest.mark.parametrize(
    ("machine", "line"),
    [
        ("h100x8", "h100x8 matches h100x8: use_float32\n"),
        ("h100x2", "h100x2 matches h100x*: nothing to change\n"),
        ("toaster", "toaster matches toast*: set_micro_batch_size(size=2)\n"),
        ("abacusx2", "no rule matches abacusx2, so nothing is changed"),
    ],
)
def test_the_first_rule_that_matches_is_applied_and_named(
    machine: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = configs.base()
    apply_rules(cfg, RULES, machine=machine)
    assert capsys.readouterr().err.startswith(f"for_hardware: {line}")
    assert (fdl.get_callable(cfg.precision) is train.Float32) == (machine == "h100x8")
    assert (cfg.micro_batch_size == 2) == (machine == "toaster")


def test_our_own_rules_know_a_laptop_and_a_large_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    laptop, large = configs.base(), configs.base()
    fiddlers.for_hardware(laptop, "cpux1")
    fiddlers.for_hardware(large, "h100x8")
    assert (laptop.micro_batch_size, large.micro_batch_size) == (8, 32)
    assert "set_micro_batch_size(size=32)" in capsys.readouterr().err


def test_meshes_of_large_models_come_before_the_rules_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dense, other = configs.llama3_1_405b(), configs.llama3_1_70b()
    for cfg in (dense, other):
        fiddlers.for_hardware(cfg, "h100x1024")
    recipe, rule = capsys.readouterr().err.splitlines()
    assert recipe == "for_hardware: h100x1024 matches [bh][12]00x1024: share_llama3_1_405b"
    assert rule.endswith("set_micro_batch_size(size=32)")
    parallel: Any = dense.parallel
    assert (parallel.mesh.pipeline, dense.micro_batch_size) == (16, 1)
