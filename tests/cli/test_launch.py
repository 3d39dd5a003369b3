"""How `fidgpt.launch` ends: as torchrun does, but without its traceback and table of failures."""

import inspect
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import DistStoreError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

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
        ({0: -15, 3: 2}, app.MISTAKE, ""),
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
        (["--nproc-per-node=x"], "Unsupported nproc_per_node value: x"),
        (["--nproc-per-node=0"], "--nproc-per-node and --monitor-interval must be above 0"),
        (["--nnodes=0"], "min_nodes must be > 0"),
        (["--nnodes=a"], "invalid literal for int"),
        (["--rdzv-backend=none"], "backend 'none' is not registered"),
        (["--rdzv-conf=join_timeout=soon", "--rdzv-backend=c10d"], "must be whole seconds"),
        (["--nnodes=2", "--node-rank=2"], "--node-rank=2 must be from 0 to 1"),
        (["--rdzv-endpoint=no.such.host.invalid:1"], "the host 'no.such.host.invalid' of"),
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
def test_a_forked_script_that_raises_prints_where(tmp_path: Path) -> None:
    script = tmp_path / "raises.py"
    script.write_text("def deep():\n    raise RuntimeError('what went wrong')\n\n\ndeep()\n")
    command = [sys.executable, "-m", "fidgpt.launch", "--nproc-per-node=1", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "in deep" in ended.stderr and "RuntimeError: what went wrong" in ended.stderr
    assert f"error: process 0 of {script} ended with exit status 1." in ended.stderr


def test_a_signal_ends_it_as_a_shell_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped() -> None:
        raise SignalException("stopped", signal.SIGTERM)

    monkeypatch.setattr(launch.torchrun, "main", stopped)
    assert launch.main() == 128 + signal.SIGTERM
    monkeypatch.setattr(launch.torchrun, "main", lambda: None)
    assert launch.main() == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RendezvousClosedError(), "error: the other nodes have ended the run."),
        (RendezvousTimeoutError(), "error: a node is missing: fewer than those of --nnodes came"),
        (RendezvousConnectionError("refused"), "cannot meet at --rdzv-endpoint: refused. Name a"),
        (DistStoreError("wait timeout\nat"), "cannot meet at --rdzv-endpoint: wait timeout. Name"),
        (DistStoreError("Timed out waiting: 1/2 clients joined."), "error: a node is missing: few"),
    ],
)
def test_nodes_that_do_not_meet_are_answered_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    message: str,
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(launch.torchrun, "main", fails)
    assert launch.main() == 1
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


def test_nodes_may_join_and_processes_get_the_notice_of_slurm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PET_SIGNALS_TO_HANDLE", "SIGTERM")
    monkeypatch.setattr(launch.torchrun, "main", lambda: None)
    assert launch.main() == 0
    assert [os.environ[name] for name in VARIABLES[:2]] == ["1", "SIGTERM"]
    monkeypatch.delenv("PET_SIGNALS_TO_HANDLE")
    launch.main()
    assert (
        launch.torchrun.get_args_parser()
        .parse_args(["train.py"])
        .signals_to_handle.endswith("SIGUSR1")
    )


@pytest.mark.parametrize(
    ("flags", "has_accelerator", "forks"),
    [
        ([], False, True),
        ([], True, False),  # which no fork inherits
        (["--preload"], True, True),
        (["--no-preload"], False, False),
    ],
)
def test_processes_are_forked_where_there_is_no_accelerator(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], *, has_accelerator: bool, forks: bool
) -> None:
    started: list[tuple[str | None, object]] = []

    def run() -> None:
        arguments = launch.torchrun.parse_args(["--standalone", "train.py", "--config=x"])
        config, entry, words = launch.torchrun.config_from_args(arguments)
        started.append((config.start_method if callable(entry) else None, words[-1]))

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_accelerator)
    monkeypatch.setattr(launch.torchrun, "main", run)
    monkeypatch.setattr(forking, "PRELOADED", ("json",))
    monkeypatch.setattr(sys, "argv", ["launch", *flags, "train.py"])
    assert launch.main() == 0
    assert started == [("fork", ["--config=x"])] if forks else [(None, "--config=x")]
    assert sys.argv == ["launch", "train.py"]


ELASTIC = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]


@pytest.mark.parametrize(
    ("flags", "setting", "seconds"),
    [
        (["--nnodes=2", *ELASTIC], "join_timeout", 60),
        (["--nnodes=2", "--max-restarts=3", *ELASTIC], "join_timeout", 600),  # may be replaced
        (["--nnodes=1:2", *ELASTIC], "join_timeout", 600),
        (["--nnodes=2", "--rdzv-conf=join_timeout=7", *ELASTIC], "join_timeout", 7),
        (["--nnodes=2", "--master-addr=localhost"], "timeout", 60),
        (["--nnodes=2", "--master-addr=localhost", "--rdzv-conf=timeout=7"], "timeout", 7),
    ],
)
def test_nodes_are_waited_for_in_seconds_unless_they_may_be_replaced(
    flags: list[str], setting: str, seconds: int
) -> None:
    wait = launch._Wait()
    read = wait.bounded(inspect.unwrap(launch.torchrun.config_from_args))
    config, *_ = read(launch.torchrun.parse_args([*flags, "train.py"]))
    assert (wait.setting, wait.seconds) == (setting, seconds)
    assert int(config.rdzv_configs.get(setting, 600)) == seconds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["c10d", "static"])
def test_a_node_that_does_not_come_is_named_and_refused(
    kind: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "FIRST_WARNING", 0.5)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{found.getsockname()[1]}"
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={place}", "--rdzv-conf=join_timeout=2"]
    if kind == "static":
        host, _, port = place.partition(":")
        where = [f"--master-addr={host}", f"--master-port={port}", "--rdzv-conf=timeout=2"]
    monkeypatch.setattr("sys.argv", ["fidgpt.launch", "--nnodes=2", *where, "train.py"])
    assert launch.main() == 1
    *_, notice, error = capfd.readouterr().err.splitlines()
    assert notice == f"waiting for other nodes at {place}: --nnodes=2, 2 s ..."
    assert error.startswith(
        f"error: a node is missing: fewer than those of --nnodes came to {place}"
    )
    assert f"{place} in 2 s. Start the same command on all nodes" in error


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--config=set:model.hidden_dim=x", "'x' is not an int"),
        (
            "--config=fiddler:use_mesh(shard=8)",
            "the mesh of shard=8 takes 8 processes",
        ),
    ],
)
def test_a_mistake_of_two_processes_is_printed_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wrong: str, message: str
) -> None:
    words = ["--nproc-per-node=2", "--module", "fidgpt.cli.train", "--config=config:debug", wrong]
    monkeypatch.setattr("sys.argv", ["fidgpt.launch", "--no-preload", *words])
    assert launch.main() == app.MISTAKE
    error = capfd.readouterr().err
    assert error.count(message) == 1 and "Traceback" not in error
    assert error.count("error:") == 1 and "FAILED" not in error
