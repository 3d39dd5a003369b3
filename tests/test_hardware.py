"""Machines have names, and a config may change with the machine that it runs on."""

import fiddle as fdl
import pytest
import torch

from fidgpt.configs import base
from fidgpt.fiddlers import for_hardware, set_micro_batch_size, use_float32
from fidgpt.fiddlers.hardware import apply_rules
from fidgpt.train import Float32, machine_name
from fidgpt.train.device import bfloat16_flops, machine_named, short_name

RULES = [
    ("h100x8", [use_float32]),
    ("h100x*", []),
]


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("", "unknown"),
    ],
)
def test_a_device_is_called_by_its_model(device: str, name: str) -> None:
    assert short_name(device) == name


@pytest.mark.parametrize(
    ("device", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", None),
    ],
)
def test_peak_throughput_is_that_of_the_data_sheet(device: str, teraflops: float | None) -> None:
    assert bfloat16_flops(device) == (None if teraflops is None else teraflops * 1e12)


def test_a_short_name_stands_for_the_model_and_not_for_a_kind_of_it() -> None:
    assert machine_named("h100", torch.bfloat16).peak_flops == bfloat16_flops(
        "NVIDIA H100 80GB HBM3"
    )
    assert machine_named("h200", torch.bfloat16).peak_flops == bfloat16_flops("NVIDIA H200")


def test_a_machine_is_named_by_its_processes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = machine_name()
    assert alone.endswith("x1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert machine_name() == alone.removesuffix("1") + "4"
    monkeypatch.setenv("FIDGPT_MACHINE", "h100x8")
    assert machine_name() == "h100x8"


def test_the_first_rule_that_matches_is_applied_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cfg = base()
    apply_rules(cfg, RULES, machine="h100x8")
    assert fdl.get_callable(cfg.precision) is Float32
    assert capsys.readouterr().err == "for_hardware: h100x8 matches h100x8: use_float32\n"


def test_a_fiddler_may_be_a_part_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    cfg = base()
    rules = [("toast*", [fdl.Partial(set_micro_batch_size, size=2)])]
    apply_rules(cfg, rules, machine="toaster")
    assert cfg.micro_batch_size == 2
    assert "toaster matches toast*: set_micro_batch_size(size=2)" in capsys.readouterr().err


def test_a_rule_without_fiddlers_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    apply_rules(base(), RULES, machine="h100x2")
    assert capsys.readouterr().err == "for_hardware: h100x2 matches h100x*: nothing to change\n"


def test_an_unmatched_machine_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    apply_rules(base(), RULES, machine="abacusx2")
    assert "no rule matches abacusx2, so nothing is changed" in capsys.readouterr().err


def test_our_own_rules_know_a_laptop_and_a_large_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    laptop, large = base(), base()
    for_hardware(laptop, "cpux1")
    for_hardware(large, "h100x8")
    assert (laptop.micro_batch_size, large.micro_batch_size) == (8, 32)
    assert "set_micro_batch_size(size=32)" in capsys.readouterr().err
