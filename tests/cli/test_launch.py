"""How `fidgpt.launch` ends: as torchrun does, but without its traceback and table of failures."""

import os
import signal
import socket
from pathlib import Path

import pytest
from torch.distributed import DistStoreError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from fidgpt import launch
from fidgpt.cli import app

VARIABLES = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "PET_SIGNALS_TO_HANDLE")


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment be as before afterwards."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def launched(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, *flags: str) -> int:
    """The status of the launcher, where torchrun ends with an error."""

    def run(arguments: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(launch.torchrun, "run", run)
    monkeypatch.setattr("sys.argv", ["fidgpt.launch", *flags, "train.py"])
    return launch.main()


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
    failures = {
        rank: ProcessFailure(rank, 5 + rank, status, str(tmp_path / "none"))
        for rank, status in exit_statuses.items()
    }
    assert launched(monkeypatch, ChildFailedError("train.py", failures)) == expected
    assert capsys.readouterr().err == message


def test_a_signal_ends_it_as_a_shell_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = SignalException("stopped", signal.SIGTERM)
    assert launched(monkeypatch, stopped) == 128 + signal.SIGTERM
    assert launched(monkeypatch, None) == 0


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
    assert launched(monkeypatch, error) == 1
    printed = capsys.readouterr().err
    assert message in printed and printed.count("\n") == 1


def test_nodes_may_join_and_processes_get_the_notice_of_slurm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched(monkeypatch, None)
    assert os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert torchrun.parse_args(["train.py"]).signals_to_handle.endswith("SIGUSR1")


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
    arguments = torchrun.parse_args([*flags, "train.py"])
    wait = launch.bound_wait(arguments)
    assert (wait.setting, wait.seconds) == (setting, seconds)
    config, *_ = torchrun.config_from_args(arguments)
    assert int(config.rdzv_configs.get(setting, 600)) == seconds


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["c10d", "static"])
def test_a_node_that_does_not_come_is_named(
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
    *_, error = capfd.readouterr().err.splitlines()
    assert error.startswith(
        f"error: a node is missing: fewer than those of --nnodes came to {place} in 2 s. Start the"
    )


@pytest.mark.slow(30)
def test_a_mistake_of_two_processes_is_printed_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--config=config:debug", "--config=fiddler:use_mesh(shard=8)"]
    words = ["--nproc-per-node=2", "--module", "fidgpt.cli.train", *flags]
    monkeypatch.setattr("sys.argv", ["fidgpt.launch", *words])
    assert launch.main() == app.MISTAKE
    error = capfd.readouterr().err
    assert error.count("the mesh of shard=8 takes 8 processes") == 1 and "Traceback" not in error
    assert error.count("error:") == 1 and "FAILED" not in error
