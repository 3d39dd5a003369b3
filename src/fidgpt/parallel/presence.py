"""Signs of life between the processes of a run, so that errors name the one that is missing.

Collectives only report that a connection is closed, or that a time is over, and over NCCL neither
interrupts Python. So each process has a thread that leaves signs of life in the store of the run.
Whoever fails raises one alarm there; the threads answer where their process stands, and from the
answers each process knows which one is gone, which hangs, and where.
"""

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from fidgpt.parallel.meeting import Meeting, MeetingError, Patience, meet, node_of

__all__ = ["Presence", "begin", "has_met", "is_silent", "keep_store", "live"]

_POLL = 0.25  # seconds from one sign of life to the next
_SAVING = "fidgpt/train/checkpoints/"
_LIBRARIES = re.compile(r"/lib/python[\d.]+/(?!.*/fidgpt/)|^<frozen")
_WAITING = ("torch/distributed/", "torch/autograd/graph.py", "threading.py")


class Presence:
    """This process among those of its run, from when they have met until they part.

    Args:
      meeting: of the processes.
      patience: how long they wait for each other.

    Attributes:
      meeting: of the processes.
      patience: how long they wait for each other.
      is_first: after a failure, whether this process is the first of its machine to report one.
    """

    def __init__(self, meeting: Meeting, patience: Patience) -> None:
        self.meeting = meeting
        self.patience = patience
        store: Any = meeting.store
        self._store: Store = store.clone()  # a store serves one thread at a time
        self._own: Store = store.clone()
        self._leaving = threading.Event()
        self._has_raised = False
        self.is_first: bool | None = None
        self._thread = threading.Thread(target=self._watch, name="presence", daemon=True)
        self._thread.start()

    @property
    def has_left(self) -> bool:
        """Whether the run has ended for this process."""
        return self._leaving.is_set()

    @property
    def _rank(self) -> int:
        return self.meeting.rank

    @property
    def _size(self) -> int:
        return len(self.meeting.hosts)

    def leave(self) -> None:
        """Give no more signs of life: the run has ended, or failed."""
        self._leaving.set()
        self._thread.join()
        with contextlib.suppress(RuntimeError):
            if self._has_raised:
                self._own.set(f"left/{self._rank}", "")

    def fail(self, error: BaseException) -> None:
        """Let the others know that this process fails, and why."""
        self._has_raised = True
        try:
            self._raise_alarm([self._rank], str(error).strip() or type(error).__name__)
            self._claim()
        except RuntimeError:  # the store is gone, and with it the others
            self.is_first = self._claim_here()

    def explain(self, error: BaseException) -> str:
        """Return why a collective failed: which process is gone, hangs, or has failed."""
        self._has_raised = True
        try:
            self._raise_alarm([], "")
            found = self._await_answers(str(error).splitlines()[0])
            self._claim()
        except RuntimeError:  # only process 0, or its torchrun, keeps the store
            self.is_first = self._claim_here()
            found = self._gone([0])
        return found

    def _claim(self) -> None:
        """Find out whether this process is the first of its machine to report an error."""
        node = node_of(self.meeting.hosts[self._rank])
        self.is_first = self._own.add(f"printed/{node}", 1) == 1

    def _claim_here(self) -> bool:
        """Return whether this process is the first of its machine to report that 0 is gone.

        There is no store to ask, so the first one leaves an empty file for the others to find.
        """
        claim = Path(tempfile.gettempdir(), f"fidgpt-{self.meeting.start}-reported")
        try:
            claim.touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            pass  # as on a full disk: rather twice than never
        return True

    def keep_store(self) -> None:
        """Keep the store, if it ends with this process, until the others have left as well."""
        if self._rank != 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            return
        begin, others = time.monotonic(), set(range(1, self._size))
        while others and (waited := time.monotonic() - begin) < self._deadline + _POLL:
            others -= {rank for rank in others if self._own.check([f"left/{rank}"])}
            if waited > self.patience.answer and not others & self._answers().keys():
                return
            time.sleep(_POLL / 5)

    @property
    def _deadline(self) -> float:
        """Seconds from an alarm until a process that cannot report it ends."""
        return 3 * self.patience.answer + 5.0

    def _raise_alarm(self, ranks: list[int], text: str) -> None:
        """Raise the alarm, unless another process has."""
        self._own.compare_set("alarm", "", json.dumps([ranks, text]))

    def _await_answers(self, reason: str) -> str:
        """Return the cause of the alarm, once all that live have answered."""
        ranks, text = json.loads(self._own.get("alarm"))
        if text:
            return f"{self.meeting.name(ranks)} failed: {text}"
        begin, answers = time.monotonic(), {}
        while (waited := time.monotonic() - begin) < self.patience.answer:
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
            f"{self.meeting.name(busy)} did not come to a collective within "
            f"parallel.timeout={self.patience.timeout:g} s: {where}."
        )

    def _answers(self) -> dict[int, tuple[bool, str]]:
        keys = [f"answer/{rank}" for rank in range(self._size)]
        there = [key for key in keys if self._own.check([key])]
        return {int(key.rpartition("/")[2]): tuple(json.loads(self._own.get(key))) for key in there}

    def _gone(self, ranks: list[int]) -> str:
        one = len(ranks) == 1
        return (
            f"{self.meeting.name(ranks)} {'is' if one else 'are'} gone: killed or stopped, or a "
            "machine or the network is down."
        )

    def _watch(self) -> None:
        """Give signs of life, and answer alarms, until the run ends."""
        neighbor = f"alive/{(self._rank + 1) % self._size}"
        count, last, silent = 0, b"", 0
        while not self._leaving.wait(_POLL):
            try:
                if self._store.check(["alarm"]):
                    waits, at = (True, "") if self._has_raised else _position()
                    self._store.set(f"answer/{self._rank}", json.dumps((waits, at)))
                    return self._end_if_stuck()
                count += 1
                self._store.set(f"alive/{self._rank}", str(count))
                sign = self._store.get(neighbor) if self._store.check([neighbor]) else b""
                # In own turns, not by a clock: this process may have been stopped as well.
                silent = silent + 1 if sign == last else 0
                last = sign
                if silent * _POLL > self.patience.silence:
                    self._store.compare_set("alarm", "", json.dumps([[], ""]))
            except RuntimeError:  # the store is gone
                return self._end_if_stuck()
        return None

    def _end_if_stuck(self) -> None:
        """Let the main thread report the alarm; if it cannot, do so and end the process."""
        if self._leaving.wait(self._deadline):
            return
        self._own = self._store  # the other one may be held by the main thread
        reason = self.explain(TimeoutError("they do not return from a collective"))
        if self.is_first:
            print(f"error: {reason}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        with contextlib.suppress(RuntimeError):
            self._own.set(f"left/{self._rank}", "")
            self.keep_store()
        os._exit(2)


class _Current:
    """The presence of this process in its run, also after that has failed; or why it has none."""

    presence: Presence | MeetingError | None = None


def live() -> Presence | None:
    """Return this process's presence in the run that it takes part in now."""
    presence = _Current.presence
    return presence if isinstance(presence, Presence) and not presence.has_left else None


def begin(patience: Patience, *, device: torch.device) -> Meeting:
    """Meet the other processes of the run, and begin to give them signs of life.

    Raises:
      MeetingError: one does not come in time, fails before, or has other software.
      ValueError: the environment variables of torchrun are incomplete.
    """
    try:
        meeting = meet(patience, device=device)
    except MeetingError as error:
        _Current.presence = error
        raise
    _Current.presence = Presence(meeting, patience)
    return meeting


def has_met() -> bool:
    """Whether this process has tried to meet those of its run, which may have ended since."""
    return _Current.presence is not None


def is_silent() -> bool:
    """Whether another process of this machine has reported the failure of the run."""
    presence = _Current.presence
    return presence is not None and presence.is_first is False


def keep_store() -> None:
    """After a failure is reported: let others report it as well, before this process ends."""
    presence = _Current.presence
    if isinstance(presence, Presence) and presence.is_first is not None:
        presence.keep_store()


def _position() -> tuple[bool, str]:
    """Whether this process waits for others, and the innermost line that runs, outside of torch.

    A thread that writes a checkpoint counts before the main thread, if it does not wait.
    """
    positions = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001
        frames = list(_outwards(frame))
        files = [one.f_code.co_filename.replace(os.sep, "/") for one in frames]
        if ident == threading.main_thread().ident or any(_SAVING in file for file in files):
            own = next((n for n, file in enumerate(files) if not _LIBRARIES.search(file)), 0)
            waits = any(part in file for file in files[:own] for part in _WAITING)
            code = frames[own].f_code
            at = f"{files[own]}:{frames[own].f_lineno} in {code.co_name}"
            positions.append((waits, at))
    return min(positions, default=(True, ""))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
