"""`contestants.py NAME FOLDER CORES`: one contestant, a process that does its work and times it."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import tokenizers

from fidgpt.data import Corpus, TextFiles, TokenizerFile

BATCH = 256  # documents


def loop(folder: Path, encode: Callable[..., list[tokenizers.Encoding]]) -> None:
    """Reads JSON lines and counts their tokens."""
    num_tokens = 0
    for texts in batches(folder / "text.jsonl"):
        num_tokens += sum(len(encoding.ids) for encoding in encode(texts))


def batches(path: Path) -> Iterator[list[str]]:
    """The documents of JSON lines, some at a time."""
    texts: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            if len(texts) == BATCH:
                yield texts
                texts = []
    yield texts


def fidgpt(folder: Path, *, cores: int) -> None:
    """Prepares a corpus; opening it, which checks all of its bytes, is measured too."""
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    corpus = Corpus(TextFiles(folder / "text.jsonl"), tokenizer=tokenizer, num_workers=cores)
    corpus.prepare_in(folder / f"corpus-{os.getpid()}", show_progress=False)


def main() -> None:
    """Does the work of one turn, and says what it took as JSON."""
    name, folder, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    before, began = cpu_seconds(), time.perf_counter()
    if name == "fidgpt":
        fidgpt(folder, cores=cores)
    else:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        loop(folder, backend.encode_batch if name == "loop" else backend.encode_batch_fast)
    result = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": cpu_seconds() - before,
        "megabytes": sum(len(t.encode()) for b in batches(folder / "text.jsonl") for t in b) / 1e6,
    }
    print(json.dumps(result))


def cpu_seconds() -> float:
    """That this process took, and those that it started and that have ended."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, whose))


if __name__ == "__main__":
    main()
