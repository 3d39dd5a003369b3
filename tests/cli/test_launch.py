"""How `fidgpt.launch` ends: as torchrun does, but without its traceback and table of failures."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from fidgpt import forking, launch
from fidgpt.cli import app

VARIABLES = (
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "PET_SIGNALS_TO_HANDLE",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
)


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment be as before afterwards."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("exit_statuses", "expected", "message"),
    [
        ({0: 2, 1: -15}, app.MISTAKE, ""),  # which process 0 has printed
        ({0: -15, 1: 1}, 1, "error: process 1 of train.py ended with exit status 1.\n"),
        ({2: -9}, 1, "error: process 2 of train.py ended with SIGKILL.\n"),
    ],
)
def test_a_failure_is_a_line_and_a_mistake_is_printed_by_its_process(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    exit_statuses: dict[int, int],
    expected: int,
    message: str,
) -> None:
    def fails() -> None:
        nothing = str(tmp_path / "none")
        found = {
            rank: ProcessFailure(rank, 5 + rank, status, nothing)
            for rank, status in exit_statuses.items()
        }
        raise ChildFailedError("train.py", found)

    monkeypatch.setattr(launch.torchrun, "main", fails)
    assert launch.main() == expected
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--nproc-per-node=0"], "--nproc-per-node and --monitor-interval must be above 0"),
        (["--nnodes=a"], "invalid literal for int"),
        (["--rdzv-backend=none"], "backend 'none' is not registered"),
        (["--nnodes=2", "--node-rank=2"], "--node-rank=2 must be from 0 to 1"),
        (["--rdzv-endpoint=no.such.host.invalid:1"], "the host 'no.such.host.invalid' of"),
        (["--standalone", "--nnodes=2"], "--standalone is one node, and --nnodes=2."),
        (["nothing.py"], "there is no script 'nothing.py'."),
        (["--module", "no_such.module"], "there is no module 'no_such.module'."),
        (["--no-python", "no_such_program"], "there is no program 'no_such_program'."),
    ],
)
def test_wrong_arguments_are_answered_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(launch, "_UNKNOWN", 0.0)
    monkeypatch.setattr(forking, "PRELOADED", ())
    monkeypatch.setattr(sys, "argv", ["launch", *flags, "train.py"])
    assert launch.main() == app.MISTAKE
    err = capfd.readouterr().err
    assert "error: torchrun refuses its arguments: " in err and message in err
    assert "Traceback" not in err


@pytest.mark.slow(10)
def test_a_program_that_is_not_python_is_not_forked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fidgpt.launch", "--no-python", "sh", "-c", "echo of $RANK"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "of 0\n"), ended.stderr


@pytest.mark.slow(10)
def test_a_forked_script_that_raises_prints_where(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text("def deep():\n    raise RuntimeError('what went wrong')\n\n\ndeep()\n")
    command = [sys.executable, "-m", "fidgpt.launch", "--nproc-per-node=1", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "in deep" in ended.stderr and "RuntimeError: what went wrong" in ended.stderr
    assert f"error: process 0 of {script} ended with exit status 1." in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["c10d", "static"])
def test_a_node_that_does_not_come_is_named_and_refused(
    kind: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{found.getsockname()[1]}"
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={place}", "--rdzv-conf=join_timeout=2"]
    if kind == "static":
        host, _, port = place.partition(":")
        where = [f"--master-addr={host}", f"--master-port={port}", "--rdzv-conf=timeout=2"]
    monkeypatch.setattr("sys.argv", ["fidgpt.launch", "--nnodes=2", *where, "train.py"])
    assert launch.main() == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(
        f"error: a node is missing: fewer than those of --nnodes came to {place}"
    )
    assert f"{place} in 2 s. Start the same command on all nodes" in error
