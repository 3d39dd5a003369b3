"""Signs of life between the processes of a run, so that errors name the one that is missing.

Collectives only report that a connection is closed, or that a time is over, and over NCCL neither
interrupts Python. So each process has a thread that leaves signs of life in the store of the run.
Whoever fails raises one alarm there; the threads answer where their process stands, and from the
answers each process knows which one is gone, which hangs, and where.

Processes save in a group of their own beside the steps of the run: `BackgroundProcesses`.
"""

import contextlib
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store, _set_pg_timeout

from fidgpt.processes.processes import Processes
from fidgpt.processes.rendezvous import (
    ErrorPrinter,
    Rendezvous,
    RendezvousFailure,
    Timeouts,
    has_agent,
    meet,
)

_POLL = 0.25  # seconds from one sign of life to the next
_LONGEST_TURN = 1.0  # seconds that a longer turn counts as
_PAUSE = 0.005
_SAVING = "fidgpt/train/checkpoints/"
_OWN = "fidgpt/processes/heartbeat.py"
_LIBRARIES = re.compile(rf"/lib/python[\d.]+/(?!.*/fidgpt/)|^<frozen|{_OWN}$")
_WAITING = ("torch/distributed/", "torch/autograd/graph.py", "threading.py", _OWN)


class Heartbeat:
    """This process among the processes of its run, from when they have met until they part.

    Args:
      run: of the processes.
      timeouts: how long they wait for each other.

    Attributes:
      run: of the processes.
      timeouts: how long they wait for each other.
      report: of a failure.
      progress: how often this process has got on with what the others wait for.
    """

    def __init__(self, run: Rendezvous, timeouts: Timeouts) -> None:
        self.run = run
        self.timeouts = timeouts
        self._rank, self._size = run.rank, len(run.hosts)
        store: Any = run.store
        self._store: Store = store.clone()  # a store serves one thread at a time
        self._own: Store = store.clone()
        self._leaving = threading.Event()
        self._has_raised = False
        self._num_gates = 0
        self.progress = 0
        host = run.hosts[self._rank]
        self.report = ErrorPrinter(run.start, host=host, seconds=timeouts.reporting)
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)
        self._thread.start()

    @property
    def has_left(self) -> bool:
        """Whether the run has ended for this process."""
        return self._leaving.is_set()

    def leave(self) -> None:
        """Give no more signs of life: the run has ended, or failed."""
        self._leaving.set()
        self._thread.join()

    def gate(self) -> Callable[[], None]:
        """Return what waits until all processes are there; all make their gates in one order.

        It waits as long as any process gets on within `Timeouts.collective`; see `advance`.

        Raises:
          DistError: when called, if they do not, or one has raised the alarm.
        """
        self._num_gates += 1
        store: Any = self.run.store
        return partial(self._pass, store.clone(), f"gate/{self._num_gates}")

    def _pass(self, store: Store, name: str) -> None:
        number = store.add(name, 1) - 1
        key = f"{name}/{number // self._size}"
        if number % self._size == self._size - 1:
            store.set(key, "")
        begin = last = time.monotonic()
        seen = store.add("progress", 0)
        while not store.check([key]):
            now = time.monotonic()
            if (progress := store.add("progress", 0)) != seen:
                last, seen = now, progress
            elif now - last > self.timeouts.timeout or store.check(["alarm"]):
                raise dist.DistError("not all processes came to save together")
            time.sleep(min(_POLL, _PAUSE + (now - begin) / 20))  # a store may serve thousands

    def fail(self, error: BaseException) -> None:
        """Let the others know that this process fails, and why."""
        self._has_raised = True
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it the others
            self._raise_alarm([self._rank], str(error).strip() or type(error).__name__)
        self.report.claim()

    def explain(self, error: BaseException) -> str:
        """Return why a collective failed: which process is gone, hangs, or has failed."""
        self._has_raised = True
        try:
            self._raise_alarm([], "")
            cause = self._await_answers(str(error).splitlines()[0])
        except RuntimeError:  # only process 0, or its torchrun, keeps the store
            cause = self._gone([0])
        self.report.claim()
        return cause

    def _raise_alarm(self, ranks: list[int], text: str) -> None:
        """Raise the alarm, unless another process has."""
        self._own.compare_set("alarm", "", json.dumps([ranks, text]))

    def _await_answers(self, reason: str) -> str:
        """Return the cause of the alarm, once all that live have answered."""
        ranks, text = json.loads(self._own.get("alarm"))
        if text:
            return f"{self.run.name(ranks)} failed: {text}"
        begin, answers = time.monotonic(), {}
        while (waited := time.monotonic() - begin) < self.timeouts.answer:
            answers = self._answers()
            all_but_one = len(answers) == self._size - 1 and waited > 4 * _POLL
            if len(answers) == self._size or all_but_one:
                break
            time.sleep(_POLL / 5)
        missing = [rank for rank in range(self._size) if rank not in answers]
        if missing:
            return self._gone(missing)
        busy = {rank: at for rank, (waits, at) in answers.items() if not waits}
        if not busy:
            return f"processes wait in different collectives, or cannot connect ({reason:.200})"
        where = "; ".join(f"process {rank} is at {at}" for rank, at in [*busy.items()][:4])
        return (
            f"{self.run.name(busy)} did not come to a collective within "
            f"parallel.timeout={self.timeouts.timeout:g} s: {where}."
        )

    def _answers(self) -> dict[int, tuple[bool, str]]:
        keys = [f"answer/{rank}" for rank in range(self._size)]
        there = [key for key in keys if self._own.check([key])]
        return {int(key.rpartition("/")[2]): tuple(json.loads(self._own.get(key))) for key in there}

    def _gone(self, ranks: list[int]) -> str:
        return (
            f"{self.run.name(ranks)} {'is' if len(ranks) == 1 else 'are'} gone: killed or "
            "stopped, or a machine or the network is down."
        )

    def _watch(self) -> None:
        """Give signs of life, and answer alarms, until the run ends."""
        neighbor = f"alive/{(self._rank + 1) % self._size}"
        count, last, silent, shown = 0, b"", 0.0, 0
        before = time.monotonic()
        while not self._leaving.wait(_POLL):
            # This process may have been stopped as well, which is no silence of another.
            turn, before = min(time.monotonic() - before, _LONGEST_TURN), time.monotonic()
            try:
                if self._store.check(["alarm"]):
                    waits, at = (True, "") if self._has_raised else _position()
                    self._store.set(f"answer/{self._rank}", json.dumps((waits, at)))
                    return self._end_if_stuck()
                count += 1
                self._store.set(f"alive/{self._rank}", str(count))
                if self.progress != shown:
                    shown = self.progress
                    self._store.add("progress", 1)
                sign = self._store.get(neighbor) if self._store.check([neighbor]) else b""
                silent = silent + turn if sign == last else 0.0
                last = sign
                if silent > self.timeouts.silence:
                    self._store.compare_set("alarm", "", json.dumps([[], ""]))
            except RuntimeError:  # the store is gone
                return self._end_if_stuck()
        return None

    def _end_if_stuck(self) -> None:
        """Let the main thread report the alarm; if it cannot, do so and end the process."""
        if self._leaving.wait(self.timeouts.reporting):
            return
        # The other one may be held by the main thread.
        self._own = self._store
        reason = self.explain(TimeoutError("they do not return from a collective"))
        self.report.print(lambda: print(f"error: {reason}", file=sys.stderr, flush=True))
        sys.stdout.flush()
        _keep_store(self.run.rank, self.timeouts)
        os._exit(2)


class _Current:
    """The heartbeat of this process in its run, also after that has failed; or why it has none."""

    heartbeat: Heartbeat | RendezvousFailure | None = None


def live() -> Heartbeat | None:
    """Return this process's heartbeat in the run that it takes part in now."""
    heartbeat = _Current.heartbeat
    return heartbeat if isinstance(heartbeat, Heartbeat) and not heartbeat.has_left else None


def begin(timeouts: Timeouts, *, device: torch.device) -> Rendezvous:
    """Meet the other processes of the run, and begin to give them signs of life.

    Raises:
      RendezvousFailure: one does not come in time, fails before, or has other software.
      ValueError: the environment variables of torchrun are incomplete.
    """
    try:
        run = meet(timeouts, device=device)
    except RendezvousFailure as error:
        _Current.heartbeat = error
        raise
    _Current.heartbeat = Heartbeat(run, timeouts)
    return run


def has_met() -> bool:
    """Whether this process has tried to meet the others of its run, which may have ended since."""
    return _Current.heartbeat is not None


def report(show: Callable[[], object]) -> None:
    """Show the failure of a run on one process of this machine; return once that is done.

    Args:
      show: prints it.
    """
    current = _Current.heartbeat
    if current is None or current.report is None:
        show()
        return
    current.report.print(show)
    timeouts = current.timeouts if isinstance(current, Heartbeat) else Timeouts()
    _keep_store(int(os.environ.get("RANK", "0")), timeouts)


def _keep_store(rank: int, timeouts: Timeouts) -> None:
    """Let the others learn why a run has failed, if this process keeps its store."""
    if rank == 0 and not has_agent():
        time.sleep(2 * timeouts.answer)


def advance() -> None:
    """Note that this process gets on with what the others may wait for, such as a checkpoint."""
    if (here := live()) is not None:
        here.progress += 1


def _position() -> tuple[bool, str]:
    """Whether this process waits for others, and the innermost line that runs, outside of torch.

    A thread that writes a checkpoint counts before the main thread, if it does not wait.
    """
    positions = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001
        frames = [outer for outer, _ in traceback.walk_stack(frame)]
        files = [outer.f_code.co_filename.replace(os.sep, "/") for outer in frames]
        if ident == threading.main_thread().ident or any(_SAVING in file for file in files):
            first = next((n for n, file in enumerate(files) if not _LIBRARIES.search(file)), 0)
            waits = any(part in file for file in files[:first] for part in _WAITING)
            code = frames[first].f_code
            at = f"{files[first]}:{frames[first].f_lineno} in {code.co_name}"
            positions.append((waits, ident == threading.main_thread().ident, at))
    waits, _, at = min(positions, default=(True, True, ""))
    return waits, at


class BackgroundProcesses:
    """The processes of a run, with a gloo group that no step uses.

    So a save in the background can finish while later steps use the group of the run.
    """

    def __init__(self) -> None:
        self._world: dist.ProcessGroup | None = None
        self._processes = Processes()

    def current(self) -> Processes:
        """Return the processes of the run that this one takes part in now.

        If that has changed, all processes of the run call this at the same time.
        """
        world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        if world is not self._world:
            self._world, self._processes = world, _connected()
        return self._processes


def _connected() -> Processes:
    """Return all processes in a new group.

    A process that dies while they connect is only noticed by a timeout, which is short; they wait
    for each other before in the run's own group, which notices at once.

    Raises:
      RuntimeError: one of them died here; `DataParallel` reports it.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Processes()
    here = live()
    timeouts = here.timeouts if here is not None else Timeouts()
    dist.barrier()
    group = dist.new_group(backend="gloo", timeout=timeouts.connecting)
    assert isinstance(group, dist.ProcessGroup)  # every process is in it
    _set_pg_timeout(timeouts.collective, group)
    gate = None if here is None else here.gate()
    return Processes(dist.get_world_size(), dist.get_rank(), group, gate=gate)
