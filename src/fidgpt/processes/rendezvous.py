"""How the processes of a run find each other: all of them, of one version, within a time.

Process 0 collects an introduction of every other one in a store, and answers all with one verdict:
a process that is missing or different is named on every node, at once or after the times of
`Timeouts`, where torch's own rendezvous waits half an hour for a count. An error of the run is
printed on each machine once, by one of its processes.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

_PAUSE, _LONG_PAUSE = 0.02, 0.05  # seconds between looks at the store, and at a file
_PRINTED = "printed"


def has_agent() -> bool:
    """Whether torchrun keeps the store of the run, and not process 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def node_of(host: str) -> str:
    """Return what only the processes of this machine have in common: of one torchrun, if used."""
    return os.environ.get("GROUP_RANK") or host


class ErrorPrinter:
    """What the processes of a machine print once of a run that has failed.

    The first that claims it prints it, by a file, since the store may be gone with the failure.
    torchrun ends all processes once one has ended, so the others wait until it is printed, and
    print it themselves if that does not come about: rather twice than never.

    Args:
      start: name of the start of the run.
      host: name of its machine.
      seconds: how long to wait for another process.

    Attributes:
      is_first: whether this process prints it; None before it has claimed it.
    """

    def __init__(self, start: str, *, host: str, seconds: float) -> None:
        self.is_first: bool | None = None
        self._file = Path(tempfile.gettempdir(), f"fidgpt-{start}-{node_of(host)}-reported")
        self._seconds = seconds

    def claim(self) -> bool:
        """Return whether this process is the first of its machine to call this."""
        if self.is_first is None:
            try:
                self._file.touch(exist_ok=False)
                self.is_first = True
            except OSError as error:  # of other kinds, as on a full disk, all print it
                self.is_first = not isinstance(error, FileExistsError)
        return self.is_first

    def print(self, show: Callable[[], object]) -> None:
        """Show the error, unless another process of this machine does so in time."""
        if self.claim() or not self._is_printed():
            show()
            with contextlib.suppress(OSError):  # then the others print it, too
                self._file.write_text(_PRINTED, encoding="utf-8")

    def _is_printed(self) -> bool:
        """Wait until another process has printed it; return whether one has."""
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            try:
                if self._file.read_text(encoding="utf-8") == _PRINTED:
                    return True
            except OSError:
                return False
            time.sleep(_LONG_PAUSE)
        return False


Facts = Mapping[str, str]


class RendezvousFailure(RuntimeError):
    """The processes of a run cannot begin together; all of them raise it, with the same message.

    Args:
      message: the reason.
      report: of the error; None where no store decides which process prints it.

    Attributes:
      report: of the error.
    """

    def __init__(self, message: str, report: ErrorPrinter | None = None) -> None:
        super().__init__(message)
        self.report = report


class Timeouts:
    """How long processes wait for each other: one number, from which the others follow.

    Args:
      timeout: seconds of a collective, from the first process in it to the last.

    Attributes:
      collective: the longest wait in a collective of the run.
      joining: the longest wait for the others once this process is ready.
      connecting: the longest wait while processes that are all there connect.
      answer: seconds that processes have to answer whether they are there.
      reporting: seconds from a failure until a process that cannot report it ends.
      silence: seconds without a sign of life after which a process is taken to be gone. Together
        with `reporting` and `answer`, a tenth of the timeout.
    """

    def __init__(self, timeout: float = 600.0) -> None:
        self.timeout = timeout
        self.collective = timedelta(seconds=timeout)
        self.joining = max(self.collective / 10, timedelta(seconds=20))
        self.connecting = self.collective / 10
        self.answer = min(max(timeout / 100, 1.0), 5.0)
        self.reporting = 3 * self.answer + 5.0
        self.silence = max(timeout / 10 - self.reporting - self.answer, 5.0)


class Rendezvous(NamedTuple):
    """What the processes of a run know of each other once all are there.

    Attributes:
      store: of this start of the run alone; earlier starts used others.
      rank: of this process.
      hosts: name of each process's machine, by rank.
      start: name of this start, which no other run has.
    """

    store: Store
    rank: int
    hosts: list[str]
    start: str

    def name(self, ranks: Iterable[int]) -> str:
        """Name some processes and their machines: `processes 4-7 of 8 (node-b)`."""
        ranks = [*ranks]
        return f"{list_ranks(ranks, len(self.hosts))} ({_some(self.hosts[r] for r in ranks)})"


def list_ranks(ranks: Iterable[int], size: int) -> str:
    """Return `process 3 of 8`, or `processes 0, 4-7 of 8`."""
    ranks = sorted(ranks)
    begins = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    spans = [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(begins, ends, strict=True)]
    return f"process{'es' if len(ranks) > 1 else ''} {', '.join(spans)} of {size}"


def _some(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:3]) + (", ..." if len(distinct) > 3 else "")


def meet(timeouts: Timeouts, *, device: torch.device) -> Rendezvous:
    """Wait until all processes of the run are there, by the variables of `torchrun`.

    Since torch 2.5, `torchrun --max-restarts` keeps one store across restarts, in which new
    processes find the addresses of dead ones and fail to connect. Each start therefore uses its own
    prefix in the store, which cannot be the restart count, because each machine counts separately.

    Raises:
      RendezvousFailure: one does not come in time, or has other software.
      ValueError: the environment variables are incomplete.
    """
    rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    try:
        store = _store(rank, timeouts.joining)
    except (dist.DistError, TimeoutError) as error:
        raise RendezvousFailure(
            f"process 0 of {world_size} did not start within "
            f"{timeouts.joining.total_seconds():.0f} s: nothing answers at {_address()} "
            f"({str(error).splitlines()[0]:.200})."
        ) from error
    return introduce(store, _own_facts(world_size, device), rank=rank, timeouts=timeouts)


def introduce(store: Store, facts: Facts, *, rank: int, timeouts: Timeouts) -> Rendezvous:
    """Introduce this process to process 0, and wait for its verdict; see `meet`.

    Args:
      store: that all processes share; it may hold what earlier starts of the run have left.
      facts: by name, as `_own_facts` returns them; `world_size` and `host` are among them.
      rank: of this process.
      timeouts: how long to wait.
    """
    name, verdict = (
        _collect(store, facts, timeouts) if rank == 0 else _arrive(store, facts, rank, timeouts)
    )
    if isinstance(verdict, str):
        report = ErrorPrinter(name, host=facts["host"], seconds=timeouts.reporting)
        report.claim()
        raise RendezvousFailure(verdict, report)
    return Rendezvous(PrefixStore(name, store), rank, verdict, name)


def _store(rank: int, timeout: timedelta) -> Store:
    """Connect to the store that `torchrun` keeps, or else process 0."""
    host, port = os.environ.get("MASTER_ADDR", "localhost"), _number("MASTER_PORT")
    is_master = rank == 0 and not has_agent()
    if not is_master:
        _wait_for_answer(host, port, timeout)
    return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        host,
        port,
        is_master=is_master,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _wait_for_answer(host: str, port: int, timeout: timedelta) -> None:
    """Wait until something listens at an address; torch's store prints a stack if nothing does.

    Raises:
      TimeoutError: nothing does in time.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(left, _PAUSE)).close()
            return
        except OSError as error:
            if left < 0:
                raise TimeoutError(str(error)) from error
        time.sleep(10 * _PAUSE)


def _number(variable: str) -> int:
    text = os.environ.get(variable)
    if text is None or not text.isdecimal():
        raise ValueError(f"{variable}={text} in the environment must be a number.")
    return int(text)


def _own_facts(world_size: int, device: torch.device) -> dict[str, str]:
    """What must be the same in all processes, and the name of the machine."""
    return {
        "host": socket.gethostname(),
        "world_size": str(world_size),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "fidgpt": digest_of_sources(),
        "device": device.type,
    }


@functools.cache
def digest_of_sources() -> str:
    """Return a digest of this package's code, by which states of one version differ."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _collect(store: Store, own: Facts, timeouts: Timeouts) -> tuple[str, list[str] | str]:
    """Answer all that come, dead ones of earlier starts included, until all live ones have.

    Returns the name of this start, and the machines of all processes or an error.
    """
    name, size = uuid.uuid4().hex, int(own["world_size"])
    facts, missing = {0: own}, set(range(1, size))
    deadline = time.monotonic() + timeouts.joining.total_seconds()
    while missing and time.monotonic() < deadline:
        for rank in sorted(missing):
            if store.check([f"arrived/{name}/{rank}"]):
                facts[rank] = json.loads(store.get(f"arrived/{name}/{rank}"))
                missing.discard(rank)
            elif store.check([f"guest/{rank}"]):
                store.set(f"invitation/{store.get(f'guest/{rank}').decode()}", name)
        time.sleep(_PAUSE if missing else 0)
    verdict = _absent(list_ranks(missing, size), timeouts) if missing else _difference(facts)
    verdict = verdict or [facts[rank]["host"] for rank in range(size)]
    store.set(f"verdict/{name}", json.dumps(verdict))
    return name, verdict


def _arrive(
    store: Store, facts: Facts, rank: int, timeouts: Timeouts
) -> tuple[str, list[str] | str]:
    """Come when process 0 invites; return the name of this start, and its verdict."""
    guest, size = uuid.uuid4().hex, int(facts["world_size"])
    store.set(f"guest/{rank}", guest)
    try:
        store.wait([f"invitation/{guest}"], timeouts.joining)
        name = store.get(f"invitation/{guest}").decode()
        store.set(f"arrived/{name}/{rank}", json.dumps(facts))
        store.wait([f"verdict/{name}"], 2 * timeouts.joining)
        return name, json.loads(store.get(f"verdict/{name}"))
    except dist.DistNetworkError:  # pyright: ignore[reportPrivateImportUsage]
        return guest, (
            f"{list_ranks([0], size)} is gone, or its launcher: the store at {_address()} was "
            "closed before all processes had started."
        )
    except dist.DistError:
        key = f"without-0/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        return store.compare_set(key, "", guest).decode(), _absent(list_ranks([0], size), timeouts)


def _absent(who: str, timeouts: Timeouts) -> str:
    seconds = timeouts.joining.total_seconds()
    return (
        f"{who} did not start within {seconds:.3g} s (parallel.timeout={timeouts.timeout:g}).\n"
        "Start all of them with the same command; their machines must reach "
        f"{_address()}. Where they start at different times, set a larger parallel.timeout."
    )


def _difference(facts: Mapping[int, Facts]) -> str | None:
    """Return in which fact processes differ from process 0; None if they are alike."""
    size, first = len(facts), facts[0]
    for fact, value in first.items():
        others = [rank for rank in facts if facts[rank].get(fact) != value and fact != "host"]
        if others:
            hosts = _some(facts[rank]["host"] for rank in others)
            theirs = facts[others[0]].get(fact, "absent")
            what = {"fidgpt": "the sources of fidgpt with digest", "world_size": "WORLD_SIZE"}
            return (
                f"{list_ranks(others, size)} ({hosts}) ha{'ve' if len(others) > 1 else 's'} "
                f"{what.get(fact, fact)} {theirs}, and process 0 ({first['host']}) {value}.\n"
                "All processes of a run need the same software, devices and command."
            )
    return None


def _address() -> str:
    return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
