"""How fast a corpus is prepared, beside a plain loop that does nothing but tokenize the same text.

    python benchmarks/data/prepare.py

Each contestant is a process that may use so many cores, and they take turns, round after round.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
from text import write_text, write_tokenizer

CONTESTANTS = Path(__file__).with_name("contestants.py")
NAMES = {
    "loop": "`encode_batch` in a loop",
    "fast_loop": "`encode_batch_fast` in a loop",
    "fidgpt": "`prepare`, from text to shards",
}


def measured(name: str, folder: Path, *, cores: int) -> dict[str, Any]:
    """One turn of a contestant, which says what it did."""
    run = subprocess.run(
        [sys.executable, str(CONTESTANTS), name, str(folder), str(cores)],
        env=os.environ | {"TOKENIZERS_PARALLELISM": str(cores > 1).lower()},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(run.stdout)


def table(turns: dict[tuple[str, int], list[dict[str, Any]]]) -> str:
    """The fastest turn of each, the share of the faster loop, in Markdown."""
    lines = [
        "| cores | | MB/s | of the faster loop | the same by CPU time |",
        "|--:|---|--:|--:|--:|",
    ]
    for (name, cores), results in turns.items():
        loops = [turn for each in ("loop", "fast_loop") for turn in turns[each, cores]]
        wall, cpu = (min(t[k] for t in results) for k in ("seconds", "cpu_seconds"))
        best_wall, best_cpu = (min(t[k] for t in loops) for k in ("seconds", "cpu_seconds"))
        lines.append(
            f"| {cores} | {NAMES[name]} | {results[0]['megabytes'] / wall:.2f} "
            f"| {best_wall / wall:.2f} | {best_cpu / cpu:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Lets the contestants take turns, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--vocab_size", type=int, default=32_768)
    parser.add_argument("--cores", type=int, action="append", help="1 and 2 unless said")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    turns: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_text(folder / "text.jsonl", megabytes=options.megabytes)
        write_tokenizer(folder / "tokenizer.json", vocab_size=options.vocab_size)
        for _ in range(options.rounds):
            for cores in options.cores or [1, 2]:
                for name in NAMES:
                    turn = measured(name, folder, cores=cores)
                    turns.setdefault((name, cores), []).append(turn)
                    print(f"{NAMES[name]}, {cores} cores: {turn}", file=sys.stderr)
    print(f"{platform.machine()}, tokenizers {tokenizers.__version__}, {options.megabytes} MB\n")
    print(table(turns))


if __name__ == "__main__":
    main()
