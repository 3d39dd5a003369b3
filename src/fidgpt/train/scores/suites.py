"""Tasks by name, whose questions fidgpt asks itself: CORE's, and those asked in conversations."""

import math
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.hub import download_url_to_file

from fidgpt.data import DataError, Tokenizer
from fidgpt.files import cache_directory
from fidgpt.train.evaluation import evaluating
from fidgpt.train.scores.answering import Exam, Examinee, graded
from fidgpt.train.scores.chats import CHATS, chat_exam
from fidgpt.train.scores.core import core_exams

__all__ = ["Scores", "is_own", "own_exams", "scores_of"]

CORE = "core"
_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"

Scores = dict[str, dict[str, float]]


def is_own(name: str) -> bool:
    """Return whether a task is `core`, one of its tasks such as `core/hellaswag`, or a chat's."""
    return name.partition("/")[0] == CORE or name in CHATS


def own_exams(
    names: Sequence[str],
    tokenizer: Tokenizer,
    *,
    data: str | Path | None = None,
    limit: int | None = None,
    runs_programs: bool = False,
) -> dict[str, Exam]:
    """Return the tasks of these names; the tasks of `core` are named `core/LABEL`.

    Args:
      names: of tasks.
      tokenizer: of the model.
      data: a folder or zip file with their rows; None for the published ones, which are downloaded
        once.
      limit: the most questions of a task.
      runs_programs: whether programs that the model writes may run.

    Raises:
      DataError: there are no rows of a task, or it would run programs that may not.
    """
    folder = None if data is None or not names else _unpacked(Path(data).expanduser())
    exams: dict[str, Exam] = {}
    for name in names:
        if name in CHATS:
            exams[name] = chat_exam(
                name, tokenizer, folder=folder, limit=limit, runs_programs=runs_programs
            )
            continue
        bundle = _published() if folder is None else _inner(folder)
        core = core_exams(bundle, tokenizer, limit=limit)
        labels = core if name == CORE else [name.partition("/")[2]]
        if unknown := [label for label in labels if label not in core]:
            raise DataError(f"{bundle} has no task {unknown[0]!r}: it has {', '.join(core)}.")
        exams |= {f"{CORE}/{label}": core[label] for label in labels}
    return exams


def scores_of(exams: Mapping[str, Exam], examinee: Examinee) -> Scores:
    """Return `acc` of each exam, and `centered`, which is 0 for guesses and 1 for knowledge.

    Standard errors assume independent answers.
    """
    scores: Scores = {}
    with evaluating(examinee.model):
        for name, exam in exams.items():
            answers = graded(exam, examinee)
            share = sum(answers) / len(answers)
            error = math.sqrt(share * (1 - share) / max(1, len(answers) - 1))
            left = 1 - exam.baseline
            scores[name] = {
                "acc": share,
                "acc_stderr": error,
                "centered": (share - exam.baseline) / left,
                "centered_stderr": error / left,
            }
    return scores


def with_core(scores: Scores) -> Scores:
    """Add the mean of the centred accuracies of CORE's tasks, first of all."""
    rows = [row for name, row in scores.items() if name.startswith(f"{CORE}/")]
    mean = sum(row["centered"] for row in rows) / len(rows)
    error = math.hypot(*(row["centered_stderr"] for row in rows)) / len(rows)
    return {CORE: {"centered": mean, "centered_stderr": error}, **scores}


def _inner(folder: Path) -> Path:
    """Return the folder of a bundle, which may lie in one of its own as in the published file."""
    inner = folder / "eval_bundle"
    return inner if inner.is_dir() else folder


def _published() -> Path:
    """Return the bundle of DCLM's tasks that nanochat publishes, downloaded on first use."""
    path = cache_directory() / "tasks" / "eval_bundle.zip"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(_URL, str(path), progress=False)
        except OSError as error:
            raise DataError(
                f"{_URL} cannot be downloaded: {error}.\nName a folder with the bundle by --data."
            ) from error
    return _inner(_unpacked(path))


def _unpacked(path: Path) -> Path:
    """Return a folder; a zip file is unpacked into one, once, in the cache."""
    if path.is_dir():
        return path
    try:
        status = path.stat()
        place = f"{path.stem}-{status.st_size}-{status.st_mtime_ns}"
        folder = cache_directory() / "tasks" / place
        if not folder.exists():
            with zipfile.ZipFile(path) as file:
                file.extractall(partial := folder.with_name(f"{place}.{os.getpid()}"))
            try:
                partial.rename(folder)
            except FileExistsError:  # another process was faster
                shutil.rmtree(partial)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"data={path} is neither a folder nor a zip file: {error}.") from error
    return folder
