"""`--print=plan`: what it says of a run, and of what cannot be planned."""

import json

import pytest

from fidgpt.cli import train

from .conftest import Command

SMALL = ("--config=config:debug", "--config=set:batch_size=16")


@pytest.mark.slow
def test_the_command_prints_plans(command: Command) -> None:
    done = command(train.main, *SMALL, "--hardware=h100x8", "--print=plan", "--price=2")
    assert done.status == 0 and "tokens/s/device" in done.out and "price" in done.out
    assert "train.py --config=config:debug --config=set:batch_size=16" in done.out
    mesh = "--config=fiddler:use_mesh(shard=4, tensor=2)"
    done = command(train.main, *SMALL, mesh, "--hardware=h100x8", "--print=plan")
    assert "bound by" in done.out and "tensor reduce, waited for" in done.out
    page = command(train.main, *SMALL, "--hardware=h100x8", "--print=plan-html").out
    data = page.partition('type="application/json">')[2].partition("</script>")[0]
    assert json.loads(data)["plans"][0]["command"].startswith("torchrun")


@pytest.mark.slow
def test_what_cannot_be_planned_is_one_line(command: Command) -> None:
    for number, nearest in ((7, 6), (1_000_000_007, 1536)):
        done = command(train.main, *SMALL, f"--hardware=h100x{number}", "--print=plan")
        assert done.status == 2 and f"--hardware=h100x{nearest} does" in done.err
    eight_bits = "--config=fiddler:use_float8"
    done = command(train.main, *SMALL, eight_bits, "--hardware=a100x8", "--print=plan")
    assert done.err == "error: A100 has no products in float8: omit use_float8.\n"
    large = ("--config=config:llama3_70b", "--config=set:batch_size=8")
    done = command(train.main, *large, "--hardware=l4x8", "--print=plan")
    assert "Nothing fits: the least is" in done.out and "--hardware=l4x" in done.out


@pytest.mark.slow
def test_devices_that_a_mesh_leaves_hold_copies(command: Command) -> None:
    mesh = "--config=fiddler:use_mesh(shard=2)"
    done = command(train.main, *SMALL, mesh, "--hardware=h100x8", "--print=plan")
    assert "8 devices hold 4 copies of the mesh of shard=2: add replicate=4" in done.err
    whole = "--config=fiddler:use_mesh(replicate=4, shard=2)"
    other = command(train.main, *SMALL, whole, "--hardware=h100x8", "--print=plan")
    assert done.out.splitlines()[1:-1] == other.out.splitlines()[1:-1] and not other.err
