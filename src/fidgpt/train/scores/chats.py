"""HellaSwag, ARC, MMLU, GSM8K and HumanEval, asked in the chat template of the tokenizer.

Questions and judgements follow nanochat (https://github.com/karpathy/nanochat, chat_eval), without
its calculator. A tokenizer without a template is asked in plain text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidgpt.data import DataError, Tokenizer
from fidgpt.data.chat_templates import ChatTemplate
from fidgpt.data.rows import hub_rows, read_rows
from fidgpt.train.evaluation import document_begin
from fidgpt.train.scores.answering import Exam, Letters, Question, Writing
from fidgpt.train.scores.programs import runs_without_error

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
