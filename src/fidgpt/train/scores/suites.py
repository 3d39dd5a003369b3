"""Tasks whose questions fidgpt asks itself: CORE's, and those asked in conversations.

CORE is the mean of 22 tasks without what guessing gives (DCLM, Li et al., 2024, arXiv:2406.11794).
Prompts, few-shot examples, judgements and scores follow nanochat
(https://github.com/karpathy/nanochat), so that numbers compare with its leaderboard, and with
GPT-2's 0.256525. HellaSwag, ARC, MMLU, GSM8K and HumanEval are asked in the chat template of the
tokenizer, without nanochat's calculator, or in plain text where there is none. The programs that a
model writes for HumanEval run in processes of their own.
"""

import csv
import math
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidgpt.data import DataError, Tokenizer
from fidgpt.data.chat_templates import ChatTemplate
from fidgpt.data.rows import hub_rows, read_rows
from fidgpt.files import atomic_path, cache_directory
from fidgpt.train.evaluation import document_begin, evaluating
from fidgpt.train.scores.answering import Exam, Examinee, Letters, Question, Writing, graded

_SECONDS = 5  # of a program that a model wrote, and the bytes of memory that it may take
_BYTES = 512 * 2**20
# What the process does before the program: it takes a namespace without a network if the system
# lends one, bounds, and a hook that cannot be removed. The sign at the end is printed by a
# program that ran to its end, and not by one that exits before.
_GUARD = """
import ctypes, os, resource, sys
libc = ctypes.CDLL(None)
getattr(libc, "unshare", lambda flags: None)(0x50000000)
for name, most in {bounds!r}.items():
    resource.setrlimit(getattr(resource, name), (most, most))
here = os.path.realpath(os.getcwd()) + os.sep
refused = ("socket.", "subprocess.", "ctypes.", "pty.", "os.exec", "os.fork", "os.kill",
           "os.posix_spawn", "os.spawn", "os.system", "os.putenv", "signal.", "urllib.")
changes = ("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
           "os.symlink", "os.truncate", "shutil.")
def hook(event, values):
    if event.startswith(refused):
        raise PermissionError(event)
    is_written = event == "open" and (
        set(str(values[1] or "")) & set("wax+") or (values[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if is_written or event.startswith(changes):
        paths = [one for one in values if isinstance(one, (str, bytes))]
        if not paths or not (os.path.realpath(os.fsdecode(paths[0])) + os.sep).startswith(here):
            raise PermissionError(event)
sys.addaudithook(hook)
del ctypes, libc, resource, hook
exec(compile({program!r}, "program", "exec"), {{"__name__": "__main__"}})
print({sign!r})
"""
_LIMITS = {
    "RLIMIT_AS": _BYTES,
    "RLIMIT_CPU": _SECONDS,
    "RLIMIT_FSIZE": 2**20,
    "RLIMIT_NPROC": 0,
    "RLIMIT_CORE": 0,
}


def runs_without_error(program: str) -> bool:
    """Return whether a Python program comes to its end within bounds of time and memory.

    It runs in a fresh interpreter without environment and input, in a folder that is deleted
    afterwards, without other processes, network and other files to write. This keeps accidents of
    a model in, and is no wall against a program that wants to harm.
    """
    sign = secrets.token_hex()
    text = _GUARD.format(bounds=_LIMITS, program=program, sign=sign)
    # To a file, as the size of a file can be limited.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        try:
            subprocess.run(
                [sys.executable, "-I", "-c", text],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                timeout=2 * _SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        output.seek(0)
        return output.read().endswith(f"{sign}\n".encode())


Row = Mapping[str, Any]
_ORDER = 42  # the seed of nanochat's order of questions; a limit takes the first
_NUMBER = re.compile(r"#### (-?[0-9.,]+)")
_BLOCK = re.compile(r"```(?:python)?\s*\n(.*?)\n```", re.DOTALL)
_AFTER_FUNCTION = re.compile(r"\n(?=def |class |if |print|#|@|```)")


class _Chat(NamedTuple):
    """A task, and the dataset of the hub that has its rows.

    Attributes:
      path: of the dataset.
      name: of its configuration.
      split: that has the questions.
      question: makes one of a row.
      baseline: of a model that guesses.
    """

    path: str
    name: str
    split: str
    question: Callable[[Row, Tokenizer], Question]
    baseline: float = 0.0


def chat_exam(
    name: str,
    tokenizer: Tokenizer,
    *,
    folder: Path | None,
    limit: int | None,
    runs_programs: bool = False,
) -> Exam:
    """Return one of the tasks `CHATS`.

    Args:
      name: of the task.
      tokenizer: of the model.
      folder: holds `NAME.jsonl` or `NAME.parquet`; None for the dataset of the hub.
      limit: the most questions; None for all.
      runs_programs: whether programs that the model writes may run.

    Raises:
      DataError: there are no rows, or programs would have to run.
    """
    if name == "humaneval" and not runs_programs:
        raise DataError(
            "humaneval runs programs that the model writes, in a process with bounds and without "
            "a network, which is no wall against a program that wants to harm.\nAllow it with "
            "--run_programs, or runs_programs=True."
        )
    chat = CHATS[name]
    files = [] if folder is None else [folder / f"{name}{end}" for end in (".jsonl", ".parquet")]
    file = next((path for path in files if path.is_file()), None)
    if files and file is None:
        raise DataError(f"{folder} holds no rows of {name}: put them into {files[0].name}.")
    rows = (
        hub_rows(chat.path, name=chat.name, split=chat.split) if file is None else read_rows(file)
    )
    order = np.random.default_rng(_ORDER).permutation(len(rows))[:limit].tolist()

    def question(index: int) -> Question:
        row = rows[order[index]]
        try:
            return chat.question(row, tokenizer)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(
                f"{name} cannot ask row {order[index]} {row!r:.80}: {error!r}"
            ) from error

    writes = chat.question in (_calculation, _program)
    return Exam(count=len(order), question=question, baseline=chat.baseline, writes=writes)


def _arc(row: Row, tokenizer: Tokenizer) -> Question:
    choices, labels = row["choices"]["text"], row["choices"]["label"]
    return _letters(row["question"], choices, labels, labels.index(row["answerKey"]), tokenizer)


def _mmlu(row: Row, tokenizer: Tokenizer) -> Question:
    return _letters(row["question"], row["choices"], "ABCD", row["answer"], tokenizer)


def _hellaswag(row: Row, tokenizer: Tokenizer) -> Question:
    return _letters(row["ctx"], row["endings"], "ABCD", int(row["label"]), tokenizer)


def _letters(
    question: str, choices: Sequence[str], letters: Sequence[str], right: int, tokenizer: Tokenizer
) -> Question:
    lines = [f"- {choice}={letter}\n" for letter, choice in zip(letters, choices, strict=True)]
    text = f"Multiple Choice question: {question}\n{''.join(lines)}"
    prompt = prompt_tokens(
        f"{text}\nRespond only with the letter of the correct answer.", tokenizer
    )
    return Letters(prompt, [tokenizer.encode(letter)[0] for letter in letters], right)


def _calculation(row: Row, tokenizer: Tokenizer) -> Question:
    right = _number(row["answer"])
    return Writing(prompt_tokens(row["question"], tokenizer), lambda text: _number(text) == right)


def _number(text: str) -> str | None:
    """Return the number of an answer to a question of GSM8K, as its authors compare them."""
    match = _NUMBER.search(text)
    return match and match[1].replace(",", "")


def _program(row: Row, tokenizer: Tokenizer) -> Question:
    begin, test = row["prompt"], f"{row['test']}\ncheck({row['entry_point']})\n"
    lines = [line.strip() for line in begin.splitlines() if line.strip()]
    code = (i for i, line in enumerate(lines) if not line.startswith(("import ", "from ", "#")))
    imports = "\n".join(line for line in lines[: next(code, None)] if line[0] != "#")

    def judge(text: str) -> bool:
        block = _BLOCK.search(text)
        program = f"{imports}\n\n{(block[1] if block else text).strip()}"
        if tokenizer.chat is None:  # it continues the function
            program = begin + _AFTER_FUNCTION.split(text)[0]
        return runs_without_error(f"{program}\n\n{test}")

    prompt = prompt_tokens(begin, tokenizer) if tokenizer.chat else document_begin(tokenizer, begin)
    return Writing(prompt, judge)


def prompt_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a question with the beginning of an answer."""
    if tokenizer.chat is None:
        return document_begin(tokenizer, f"{text}\nAnswer:\n")
    return ChatTemplate(tokenizer).prompt([{"role": "user", "content": text}], tokenizer)


CHATS: Mapping[str, _Chat] = {
    "arc_easy": _Chat("allenai/ai2_arc", "ARC-Easy", "test", _arc, 0.25),
    "arc_challenge": _Chat("allenai/ai2_arc", "ARC-Challenge", "test", _arc, 0.25),
    "hellaswag": _Chat("Rowan/hellaswag", "default", "validation", _hellaswag, 0.25),
    "mmlu": _Chat("cais/mmlu", "all", "test", _mmlu, 0.25),
    "gsm8k": _Chat("openai/gsm8k", "main", "test", _calculation),
    "humaneval": _Chat("openai/openai_humaneval", "openai_humaneval", "test", _program),
}


def core_exams(
    name: str, tokenizer: Tokenizer, *, folder: Path | None, limit: int | None
) -> dict[str, Exam]:
    """Return the tasks of CORE, or one of them, by `core/LABEL`.

    Args:
      name: `core`, or `core/LABEL`.
      tokenizer: of the model.
      folder: holds `core.yaml`, the table `eval_meta_data.csv` of baselines, and `eval_data`, maybe
        in a folder of its own as in the published file; None for those, downloaded once.
      limit: the most questions of a task, which are drawn; None for all.

    Raises:
      DataError: a file is missing or damaged, or there is no such task.
    """
    import yaml

    folder = folder or _published()
    folder = inner if (inner := folder / "eval_bundle").is_dir() else folder
    encode = partial(document_begin, tokenizer)

    def exam(task: Row, baseline: float) -> Exam:
        rows = read_rows(folder / "eval_data" / task["dataset_uri"])
        random.Random(1337).shuffle(rows)
        rows = rows[:limit]
        make = _QUESTIONS[task["icl_task_type"]]
        shots, delimiter = task["num_fewshot"][0], task.get("continuation_delimiter", " ")

        def question(index: int) -> Question:
            others = [i for i in range(len(rows)) if i != index] if shots else []
            chosen = random.Random(1234 + index).sample(others, min(shots, len(others)))
            return make(rows[index], [rows[i] for i in chosen], delimiter, encode)

        return Exam(count=len(rows), question=question, baseline=0.01 * baseline)

    try:
        tasks = yaml.safe_load((folder / "core.yaml").read_text(encoding="utf-8"))["icl_tasks"]
        with (folder / "eval_meta_data.csv").open(encoding="utf-8", newline="") as file:
            table = {
                row["Eval Task"]: float(row["Random baseline"]) for row in csv.DictReader(file)
            }
        core = {task["label"]: exam(task, table[task["label"]]) for task in tasks}
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise DataError(
            f"{folder} is no bundle of CORE's tasks that can be read: {error!r}.\nIt holds "
            "core.yaml, eval_meta_data.csv and eval_data."
        ) from error
    labels = core if name == CORE else [name.partition("/")[2]]
    if unknown := [label for label in labels if label not in core]:
        raise DataError(f"{folder} has no task {unknown[0]!r}: it has {', '.join(core)}.")
    return {f"{CORE}/{label}": core[label] for label in labels}


def _choice(row: Row, examples: Sequence[Row], delimiter: str, encode: Any) -> Question:
    """Return a question whose context is followed by one of several endings."""
    shown = "".join(
        f"{row['query']}{delimiter}{row['choices'][row['gold']]}\n\n" for row in examples
    )
    rows = [encode(f"{shown}{row['query']}{delimiter}{choice}") for choice in row["choices"]]
    starts = [_common(rows)] * len(rows)
    return lambda examinee: examinee.least_loss(rows, starts) == row["gold"]


def _schema(row: Row, examples: Sequence[Row], delimiter: str, encode: Any) -> Question:
    """Return a question whose ending is preceded by one of several contexts."""
    shown = "".join(
        f"{example['context_options'][example['gold']]}{delimiter}{example['continuation']}\n\n"
        for example in examples
    )
    ending = f"{delimiter}{row['continuation']}"
    rows = [encode(f"{shown}{context}{ending}") for context in row["context_options"]]
    alike = _common([tokens[::-1] for tokens in rows])
    starts = [len(tokens) - alike for tokens in rows]
    return lambda examinee: examinee.least_loss(rows, starts) == row["gold"]


def _completion(row: Row, examples: Sequence[Row], delimiter: str, encode: Any) -> Question:
    """Return a question whose context has one right ending."""
    shown = "".join(
        f"{row['context'].strip()}{delimiter}{row['continuation']}\n\n" for row in examples
    )
    begin = f"{shown}{row['context'].strip()}{delimiter}"
    whole = encode(f"{begin}{row['continuation']}")
    # A tokenizer may join the end of the context to what follows.
    start = min(_common([encode(begin.strip()), whole]), len(whole) - 1)
    return lambda examinee: examinee.completes(whole, start)


def _common(rows: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens are the same in all rows."""
    columns = enumerate(zip(*rows, strict=False))
    return next((i for i, column in columns if len({*column}) > 1), min(map(len, rows)))


_QUESTIONS = {
    "multiple_choice": _choice,
    "schema": _schema,
    "language_modeling": _completion,
}

CORE = "core"
_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"

Scores = dict[str, dict[str, float]]


def is_own(name: str) -> bool:
    """Return whether a task is `core`, one of its tasks such as `core/hellaswag`, or a chat's."""
    return name.partition("/")[0] == CORE or name in CHATS


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


def _published() -> Path:
    """Return the bundle of DCLM's tasks that nanochat publishes, downloaded on first use."""
    path = cache_directory() / "tasks" / "eval_bundle.zip"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with atomic_path(path) as draft, urllib.request.urlopen(_URL, timeout=60) as response:
                draft.write_bytes(response.read())
        except OSError as error:
            raise DataError(
                f"{_URL} cannot be downloaded: {error}.\nName a folder with the bundle by --data."
            ) from error
    return unpacked(path)


def unpacked(path: Path) -> Path:
    """Return a folder; a zip file is unpacked into one, once, in the cache."""
    if path.is_dir():
        return path
    try:
        status = path.stat()
        place = f"{path.stem}-{status.st_size}-{status.st_mtime_ns}"
        folder = cache_directory() / "tasks" / place
        if not folder.exists():
            with zipfile.ZipFile(path) as file:
                file.extractall(draft := folder.with_name(f"{place}.{os.getpid()}"))
            try:
                draft.rename(folder)
            except FileExistsError:  # another process was faster
                shutil.rmtree(draft)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"data={path} is neither a folder nor a zip file: {error}.") from error
    return folder
