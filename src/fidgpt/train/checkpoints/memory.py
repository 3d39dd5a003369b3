"""Checkpoints in main memory: each machine holds its own part and its neighbor's part."""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from fidgpt.files import read_json, sha256_of, sync, write_whole
from fidgpt.processes import ParallelError, Processes
from fidgpt.processes.heartbeat import BackgroundProcesses
from fidgpt.ranges import require_size
from fidgpt.train.checkpoints import manifest, tensors
from fidgpt.train.checkpoints.writing import BackgroundWriter
from fidgpt.train.run_directory import RunError, print_stderr

__all__ = ["MemoryCheckpoints"]

_CLAIM = "fidgpt-memory.json"  # in the folder of a run on a machine
_ATTEMPT = ".memory.json"  # in the run directory: which copies are of the last attempt
_CHUNK = 1 << 26  # bytes that are sent at once
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # of each machine, and of each start, another one


@dataclass(frozen=True)
class _Machines:
    """The machines of a run, as this process sees them.

    Attributes:
      root: folder of the run in the memory of this machine.
      ranks: processes on each machine, in the order of their first one.
      own: index of this machine.
      peers: the processes of the run.
    """

    root: Path
    ranks: Sequence[Sequence[int]]
    own: int
    peers: Processes

    @property
    def is_first(self) -> bool:
        """Whether this process is the first one on its machine."""
        return self.ranks[self.own][0] == self.peers.rank

    def keeper(self, rank: int) -> int | None:
        """Return the process on the next machine that keeps a copy of the part of a process."""
        if len(self.ranks) == 1:
            return None
        here = next(i for i, ranks in enumerate(self.ranks) if rank in ranks)
        following = self.ranks[(here + 1) % len(self.ranks)]
        return following[self.ranks[here].index(rank) % len(following)]

    def part(self, rank: int) -> Path:
        """Return the folder for the part of a process, which is like a run directory."""
        return self.root / f"process_{rank:05d}"

    def parts(self) -> list[Path]:
        """Return the folders of all parts on this machine."""
        return sorted(self.root.glob("process_*"))


class MemoryCheckpoints:
    """Saves every `every` steps into memory, from which a run resumes after a failure.

    A folder in memory, such as /dev/shm of Linux, outlives the processes of a run. Each process
    writes its part of the checkpoint there in the background, with the format, checksums and
    atomic renaming of checkpoints on the disk, and sends a copy to a process of the next machine.
    So a run resumes though all processes of all machines die, or one machine is lost: processes
    look for the newest step whose parts are all whole on some machine, and write it into the run
    directory, if that has no newer one. A checkpoint makes room for the next one, and the last is
    deleted as the run ends. A folder belongs to one run, whose directory its `fidgpt-memory.json`
    names.

    Args:
      every: steps.
      folder: in memory that processes of a machine share; variables of the environment, as in
        "$SHM", are replaced on each machine.
      keep_last: checkpoints that are kept there.

    Raises:
      ValueError: a count is below 1.
    """

    def __init__(self, *, every: int = 10, folder: str = "/dev/shm", keep_last: int = 1) -> None:
        require_size(every=every, keep_last=keep_last)
        self.every = every
        self.folder = os.path.expanduser(folder)
        self.keep_last = keep_last
        self._writer = BackgroundWriter()
        self._background = BackgroundProcesses()
        self._machines: _Machines | None = None
        self._directory: Path | None = None
        self._attempt = ""

    def due(self, step: int) -> bool:
        """Return whether to save after a step."""
        return step % self.every == 0

    def needed(self, part: int, *, num_parts: int, num_local: int) -> int:
        """Return the bytes that a machine needs at most.

        Args:
          part: bytes of a process's part of a checkpoint.
          num_parts: processes that have one; the first ones.
          num_local: processes of each machine.
        """
        copies = 1 if num_parts <= num_local else 2
        return part * min(num_parts, num_local) * copies * (self.keep_last + 1)

    def require_room(self, needed: int) -> None:
        """Raise RunError if this machine lacks so many bytes, as by `needed`."""
        folder = Path(os.path.expandvars(self.folder))
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(there).free
        if needed > free:
            raise RunError(
                f"checkpoints in memory need {needed / 1e6:,.1f} MB in {folder} of a machine, and "
                f"{free / 1e6:,.1f} MB are free: make room there, name another folder in memory "
                "with --config='fiddler:use_memory_checkpoints(folder=...)', or leave them out."
            )

    def start(self, directory: Path) -> None:
        """Begin an attempt to continue a run from a checkpoint on the disk, or from its start.

        All processes of the run call this. Copies of earlier attempts are deleted; on machines that
        are not there now they are never used again.

        Args:
          directory: of the run.

        Raises:
          RunError: the folder of a machine cannot be used.
        """
        self.wait()
        machines = self._join(directory)
        machines.peers.together(partial(self._retire, machines, None))

        @manifest.explained(directory / _ATTEMPT)
        def begin() -> str:
            attempt = uuid.uuid4().hex
            write_whole(directory / _ATTEMPT, json.dumps({"attempt": attempt}) + "\n")
            return attempt

        self._attempt = machines.peers.on_main(begin)

    def save(
        self,
        directory: Path,
        sections: Mapping[str, Mapping[str, Tensor]],
        texts: Mapping[str, Any],
        *,
        step: int,
        notes: Mapping[str, Any],
    ) -> None:
        """Copy a checkpoint, and write it in the background.

        All processes of the run call this. What cannot be written is a warning.

        Args:
          directory: of the run.
          sections: tensors of the run by section and name.
          texts: JSON by the name of its file.
          step: of the checkpoint.
          notes: plain values for the manifest.
        """
        self._writer.wait()
        machines = self._join(directory)
        pieces = tensors.kept(tensors.share_out(sections, machines.peers), self._writer)
        own = texts if machines.peers.is_main else {}
        notes = {**notes, "attempt": self._attempt}
        self._writer.write(partial(self._write, machines, pieces, own, step, notes))

    def wait(self) -> None:
        """Wait until nothing is being written."""
        self._writer.wait()

    def finish(self) -> None:
        """Delete all copies, since the run has ended and its last step is on the disk."""
        self.wait()
        if (machines := self._machines) is None:
            return
        if machines.is_first:
            with contextlib.suppress(OSError):  # as where a file of another owner lies there
                self._retire(machines, None)
                for part in machines.parts():
                    manifest.folder_of(part).rmdir()
                    part.rmdir()
                (machines.root / _CLAIM).unlink()
                machines.root.rmdir()
        self._machines = None

    def recover(self, directory: Path, *, step: int | None) -> None:
        """Write the newest whole checkpoint into the run directory, if that has no newer one.

        All processes of the run call this.

        Args:
          directory: of the run.
          step: which one; None for the newest.

        Raises:
          CheckpointError: the run directory cannot be written.
          ParallelError: on the other processes then.
        """
        machines = self._join(directory)
        peers = machines.peers
        saved, attempt = peers.on_main(
            lambda: (
                sorted(manifest.find(directory)),
                read_json(directory / _ATTEMPT).get("attempt"),
            )
        )
        if step in saved:
            return
        own = _held(machines, attempt) if machines.is_first else {}
        keys: set[_Key] = {key for held in peers.gather([*own]) for key in held}
        newest = max(saved, default=0)
        for key in sorted(keys, reverse=True):
            is_wanted = key[0] > newest if step is None else key[0] == step
            if is_wanted and _is_written(directory, key, own.get(key, {}), peers):
                return

    def _join(self, directory: Path) -> _Machines:
        """Find the machines of the run; claim a folder on each."""
        peers, known = self._background.current(), self._machines
        if known is not None and self._directory == directory and known.peers is peers:
            return known
        identity, path = peers.on_main(
            lambda: (manifest.run_in(directory), str(directory.resolve()))
        )
        digest = hashlib.sha256(f"{identity} {path}".encode()).hexdigest()[:16]
        root = Path(os.path.expandvars(self.folder)) / f"fidgpt-{digest}"
        machine = peers.together(partial(_claim, root, {"run": identity, "directory": path}))
        ranks = [
            [rank for rank, other in enumerate(machine) if other == name]
            for name in dict.fromkeys(machine)
        ]
        own = next(index for index, members in enumerate(ranks) if peers.rank in members)
        self._machines, self._directory = _Machines(root, ranks, own, peers), directory
        return self._machines

    def _write(
        self,
        machines: _Machines,
        pieces: tensors.Files,
        texts: Mapping[str, Any],
        step: int,
        notes: Mapping[str, Any],
    ) -> None:
        """Write this process's part, and those that it keeps for others."""
        peers, rank = machines.peers, machines.peers.rank
        drafts: dict[int, Path] = {}

        def begin(source: int) -> Path:
            part = machines.part(source)
            part.mkdir(exist_ok=True)
            final = manifest.folder_of(part) / manifest.name_of(step)
            drafts[source] = publications.enter_context(manifest.publishing(final))
            return drafts[source]

        def write() -> manifest.Seals:
            return tensors.write_files(begin(rank), pieces, texts) if pieces or texts else {}

        def make_room() -> None:
            for source in kept:
                draft = begin(source)
                for name, seal in seals[source].items():
                    with (draft / name).open("wb") as file:
                        os.posix_fallocate(file.fileno(), 0, seal["bytes"])

        def publish() -> None:
            whole = {name: seal for table in seals for name, seal in table.items()}
            for source in kept:
                for name, seal in seals[source].items():
                    if sha256_of(drafts[source] / name) != seal["sha256"]:
                        raise OSError(f"{name} of process {source} was damaged on its way")
            for draft in drafts.values():
                manifest.write_manifest(draft, step=step, files=whole, notes=notes)
            publications.close()

        try:
            with contextlib.ExitStack() as publications:
                seals: list[manifest.Seals] = peers.together(write)
                written = [source for source, files in enumerate(seals) if files]
                kept = [source for source in written if machines.keeper(source) == rank]
                peers.together(make_room)
                _exchange(machines, drafts, seals, kept)
                peers.together(publish)
            peers.together(partial(self._retire, machines, step))
        except (OSError, SafetensorError, ParallelError) as error:
            if not isinstance(error, ParallelError):
                print_stderr(
                    f"warning: step {step} was not saved in memory ({error}): the run continues, "
                    "and would resume from an earlier step."
                )

    def _retire(self, machines: _Machines, step: int | None) -> None:
        """Delete copies on this machine, except for the newest ones until `step`, or all."""
        if not machines.is_first:
            return
        copies = [
            (one, path) for part in machines.parts() for one, path in manifest.find(part).items()
        ]
        older = {saved_step for saved_step, _ in copies if step is not None and saved_step <= step}
        kept = sorted(older)[-self.keep_last :]
        for saved_step, path in copies:
            if saved_step not in kept:
                manifest.discard(path)


def _claim(root: Path, mine: Mapping[str, str]) -> str:
    """Make the folder of a run on this machine; return an identity of the machine.

    Raises:
      RunError: it cannot be made, or belongs to another run or user.
    """
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        if not (claim := read_json(root / _CLAIM)):
            write_whole(root / _CLAIM, json.dumps(mine) + "\n")
        stat, boot = root.stat(), _BOOT.read_text(encoding="utf-8").strip()
        if stat.st_uid != os.getuid() or (claim and claim != mine):
            raise RunError(
                f"{root} belongs to another run or user: remove it, or name another folder in "
                "memory with --config='fiddler:use_memory_checkpoints(folder=...)'."
            )
    except OSError as error:
        raise RunError(
            f"{root} cannot be used for checkpoints in memory ({error.strerror}): name another "
            "folder with --config='fiddler:use_memory_checkpoints(folder=...)'."
        ) from error
    return f"{boot} {stat.st_dev} {stat.st_ino}"


def _exchange(
    machines: _Machines,
    drafts: Mapping[int, Path],
    seals: Sequence[manifest.Seals],
    kept: Sequence[int],
) -> None:
    """Send this process's files to the keeper of their copy, and receive the files to keep."""
    peers = machines.peers
    keeper = machines.keeper(peers.rank)

    def chunks(source: int, *, shared: bool) -> Iterator[Tensor]:
        for name, seal in sorted(seals[source].items()):
            path = str(drafts[source] / name)
            mapped = torch.from_file(path, shared=shared, size=seal["bytes"], dtype=torch.uint8)
            yield from mapped.split(_CHUNK)

    sent = [] if keeper is None else [(keeper, chunk) for chunk in chunks(peers.rank, shared=False)]
    received = [(source, chunk) for source in kept for chunk in chunks(source, shared=True)]
    peers.send(sent, received)


_Key = tuple[int, str]  # step, and checksum of the manifest


def _held(machines: _Machines, attempt: str) -> dict[_Key, dict[str, Path]]:
    """Return the files of an attempt on this machine, by checkpoint and name."""
    held: dict[_Key, dict[str, Path]] = {}
    for part in machines.parts():
        for step, path in manifest.find(part).items():
            written = manifest.read_manifest(path)
            if (written.get("step"), written.get("attempt")) != (step, attempt):
                continue
            files = held.setdefault((step, str(written.get("sha256"))), {})
            for file in path.iterdir():
                files.setdefault(file.name, file)
    return held


def _good(files: Mapping[str, Path]) -> tuple[dict[str, Path], list[str]]:
    """Return the files of a checkpoint that are whole, and the names of all of its files.

    If the manifest is damaged, nothing is known of the others.
    """
    folder = files[manifest.MANIFEST].parent if files else None
    if folder is None or manifest.damage(folder, needed=()) is not None:
        return {}, []
    seals = manifest.read_manifest(folder)["files"]
    sums = {name: seal["sha256"] for name, seal in seals.items()}
    whole = {n: path for n, path in files.items() if n in sums and sha256_of(path) == sums[n]}
    return {**whole, manifest.MANIFEST: folder / manifest.MANIFEST}, sorted(sums)


def _is_written(directory: Path, key: _Key, own: Mapping[str, Path], peers: Processes) -> bool:
    """Write a checkpoint into the run directory; return False if some part of it is lost.

    Args:
      directory: of the run.
      key: of the checkpoint.
      own: files of it on this machine, if this process is its first.
      peers: the processes of the run.
    """
    step, _ = key
    good, names = _good(own)
    held = peers.gather((sorted(good), names))
    holders = {name: rank for rank, (part, _) in reversed([*enumerate(held)]) for name in part}
    wanted = {manifest.MANIFEST, *(name for _, listed in held for name in listed)}
    if lost := sorted(wanted - holders.keys()):
        if peers.is_main:
            print_stderr(
                f"warning: step {step} in memory is not whole ({', '.join(lost[:3])} lost or "
                "damaged): an older one is used."
            )
        return False
    final = manifest.folder_of(directory) / manifest.name_of(step)

    @manifest.explained(final)
    def copy() -> None:
        for name, path in good.items():
            if holders[name] == peers.rank:
                shutil.copyfile(path, temporary / name)
                sync(temporary / name)

    with contextlib.ExitStack() as publication:
        begin = partial(publication.enter_context, manifest.publishing(final))
        temporary: Path = peers.on_main(manifest.explained(final)(begin))
        peers.together(copy)
        peers.on_main(manifest.explained(final)(publication.close))
    if peers.is_main:
        print_stderr(f"step {step} was found in memory, and saved as {final}.")
    return True
