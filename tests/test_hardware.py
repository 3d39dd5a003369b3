"""Machines have names, and a config may change with the machine that it runs on."""

import fiddle as fdl
import pytest

from fidgpt.configs import base
from fidgpt.fiddlers import for_hardware, use_float32
from fidgpt.fiddlers.hardware import apply_rules
from fidgpt.train import Float32, machine_name
from fidgpt.train.machine import short_name

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


def test_a_rule_without_fiddlers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    apply_rules(base(), RULES, machine="h100x2")
    assert capsys.readouterr().err == "for_hardware: h100x2 matches h100x*: nothing to change\n"


def test_an_unmatched_machine_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    apply_rules(base(), RULES, machine="abacusx2")
    assert "no rule matches abacusx2, so nothing is changed" in capsys.readouterr().err


def test_our_own_rules_know_a_laptop_and_a_large_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    laptop, large = base(), base()
    for_hardware(laptop, "cpux1")
    for_hardware(large, "h100x8")
    assert (laptop.micro_batch_size, large.micro_batch_size) == (8, 32)
    assert "set_micro_batch_size(size=32)" in capsys.readouterr().err
