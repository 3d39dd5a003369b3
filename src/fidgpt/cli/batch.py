"""What `--print=batch` shows: the first rows of a run's first batch, token by token."""

import io
from collections.abc import Iterator
from itertools import groupby, takewhile
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from fidgpt.data import Batch, Tokenizer
from fidgpt.train import Trainer

_ROWS = 4
_BETWEEN = "|"  # tokens


def batch_text(trainer: Trainer, *, color: bool) -> str:
    """Return the rows as runs of tokens that all count in the loss, or do not.

    Args:
      trainer: whose text is prepared if it is not.
      color: whether to use terminal styles.
    """
    trainer.stream.prepare()
    rows = trainer.stream.batch(0)
    if rows.tokens.shape[1] == 2 * (trainer.seq_len + 1):  # pairs
        rows = rows.map(lambda x: x.reshape(-1, trainer.seq_len + 1))
    rows = rows.map(lambda x: x[:_ROWS])
    console = Console(
        file=io.StringIO(), width=120, force_terminal=color, no_color=not color, highlight=False
    )
    with console.capture() as capture:
        for line in _lines(trainer, rows):
            console.print(line, soft_wrap=True)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _lines(trainer: Trainer, rows: Batch) -> Iterator[Text]:
    tokenizer, ctx = trainer.stream.tokenizer, trainer.model.layout(rows.tokens)
    names = {number: name for name, number in tokenizer.special_ids().items()}
    positions = ctx.positions.expand_as(rows.tokens).tolist()
    documents = torch.zeros_like(rows.tokens) if ctx.documents is None else ctx.documents
    columns: Any = (rows.tokens.tolist(), rows.mask.tolist(), positions, documents.tolist())
    for number, row in enumerate(zip(*columns, strict=True)):
        tokens, mask, *_ = row
        mask[0] = False  # nothing predicts it
        yield Text(
            f"row {number}: {len(tokens):,} tokens, of which {sum(mask):,} count in the loss"
        )
        padding = len([*takewhile(tokenizer.end_of_text.__eq__, reversed(tokens))]) - 1
        items = [*zip(*row, strict=True)][: len(tokens) - max(0, padding)]
        for (document, counted), group in groupby(items, key=lambda item: (item[3], item[1])):
            run = [*group]
            places = f"{run[0][2]}" if len(run) == 1 else f"{run[0][2]}-{run[-1][2]}"
            line = Text(f"  document {document:<3} position {places:<11} ")
            line.append("counted " if counted else "read    ", "bold green" if counted else "dim")
            shown = [_shown(token, tokenizer, names) for token, *_ in run]
            line.append(_BETWEEN.join(shown), "green" if counted else "dim")
            yield line
        if padding > 0:
            yield Text(f"  padding: {padding} times {names[tokenizer.end_of_text]}", "dim")


def _shown(token: int, tokenizer: Tokenizer, names: dict[int, str]) -> str:
    return names.get(token) or repr(tokenizer.token_values()[token].decode(errors="replace"))[1:-1]
