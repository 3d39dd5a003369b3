"""How a checkpoint comes to be: written beside by all processes, sealed, and named at last."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from fidgpt.train.checkpoints import files, manifest
from fidgpt.train.checkpoints.contents import Contents
from fidgpt.train.checkpoints.files import CheckpointError
from fidgpt.train.checkpoints.peers import Peers
from fidgpt.train.run import resume_flag

if TYPE_CHECKING:
    from fidgpt.train.checkpoints.pieces import Files


class Draft(NamedTuple):
    """What this process writes of a checkpoint.

    Attributes:
        pieces: of tensors, by file and name.
        texts: JSON by the name of its file.
        size: bytes of all pieces.
    """

    pieces: "Files"
    texts: dict[str, Any]
    size: int

    def write(self, folder: Path) -> manifest.Seals:
        """Writes the files, and seals them once they are on the disk."""
        from fidgpt.train.checkpoints.pieces import write_pieces  # late: slow to import

        for name, pieces in self.pieces.items():
            write_pieces(folder / name, pieces)
        for name, value in self.texts.items():
            files.write_json(folder / name, value)
        return manifest.seal(folder, [*self.pieces, *self.texts])


def draft_of(contents: Contents, peers: Peers, *, keep: Callable[[str, Tensor], Tensor]) -> Draft:
    """This process's part of a checkpoint.

    Args:
        contents: the whole, alike on every process.
        peers: those that write it.
        keep: gives what will be written of a tensor, by a name that is the same every time.
    """
    from fidgpt.train.checkpoints.pieces import share_out  # late: slow to import

    pieces = {
        file: {
            name: piece._replace(tensor=keep(f"{file}/{name}", piece.tensor))
            for name, piece in content.items()
        }
        for file, content in share_out(contents.tensors, peers).items()
    }
    size = sum(piece.tensor.nbytes for content in pieces.values() for piece in content.values())
    return Draft(pieces, contents.texts if peers.is_main else {}, size)


def save_draft(
    draft: Draft, final: Path, *, step: int, notes: Mapping[str, Any], peers: Peers
) -> None:
    """Writes a checkpoint from the drafts of all processes; under its name it is whole or absent.

    Raises:
        CheckpointError: it cannot be written; nothing half-written is left.
        ParallelError: another process could not write its part.
    """

    def clearly(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(cannot_write(final, error, draft.size)) from error

    def seal_all(seals: list[manifest.Seals]) -> None:
        whole = {name: seal for one in seals for name, seal in one.items()}
        manifest.write_manifest(temporary, step=step, files=whole, notes=notes)
        files.publish(temporary, final)

    temporary = Path()
    try:
        temporary = peers.on_main(lambda: clearly(lambda: files.begin(final)))
        seals = peers.together(lambda: clearly(lambda: draft.write(temporary)))
        peers.on_main(lambda: clearly(lambda: seal_all(seals)))
    except BaseException:
        if peers.is_main and temporary.name.startswith(files.TEMPORARY):
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def cannot_write(final: Path, error: Exception, size: int) -> str:
    """The words for an error of the file system, with what one can do."""
    # safetensors reports the operating system's error as text only.
    found = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    reason = str(error) if number is None else os.strerror(number)
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "give the run a directory that can be written"
    if full:
        free = shutil.disk_usage(next(path for path in final.parents if path.exists())).free
        room = f"it takes {size / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free"
        remedy = f"{room}: make room or raise the quota"
    return (
        f"{final} cannot be written ({reason}); {remedy}, then go on with "
        f"{resume_flag(final.parent.parent)}\n"
        "Nothing half-written is left, and the earlier checkpoints are as they were."
    )
