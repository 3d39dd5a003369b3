"""The order of tokens: the same for any number of ranks, threads, resumes and processes."""

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fidgpt.data import (
    ByteTokenizer,
    Corpus,
    FillInTheMiddle,
    HubDataset,
    Mixture,
    Packing,
    Prefetch,
    Source,
    Stage,
    TextFiles,
    TokenStream,
    TrainingStream,
    best_fit,
    concatenate,
    shuffle_and_concatenate,
)

NAMES = ["<a>", "<b>", "<c>"]
BATCH_SIZE = 8
NUM_STEPS = 24
# Where a run was stopped, and with how many ranks it then went on.
PARTS = [(0, 1), (3, 4), (4, 2), (11, 8), (17, 1), (20, 2)]


class Case:
    """Texts on the disk, and streams over them that share no object."""

    def __init__(self, folder: Path, texts: Sequence[str]) -> None:
        self.folder = folder
        for number, text in enumerate(texts):
            part = folder / f"text{number % 3}"
            part.mkdir(exist_ok=True)
            (part / f"{number:02d}.txt").write_text(text[:900], encoding="utf-8")

    def stream(
        self, number: int, *, packing: Packing = concatenate, fim: float = 0.0, **options: Any
    ) -> TokenStream:
        prefix, suffix, middle = NAMES
        part = FillInTheMiddle(rate=fim, prefix=prefix, suffix=suffix, middle=middle)
        source: Source = options.pop("source", None) or TextFiles(self.folder / f"text{number}")
        corpus = Corpus(
            source,
            tokenizer=ByteTokenizer(special_tokens=NAMES),
            validation_fraction=0.1,
            cache_dir=self.folder / "cache",
            shard_tokens=2000,
        )
        return TokenStream(
            corpus,
            seq_len=64,
            batch_size=BATCH_SIZE,
            seed=number,
            packing=packing,
            transforms=[part] if fim else [],
        )

    def mixture(self) -> Mixture:
        """Of all kinds, with stages whose ends are not where runs are stopped."""
        streams = {
            "plain": self.stream(0),
            "packed": self.stream(1, packing=best_fit),
            "filled": self.stream(2, packing=shuffle_and_concatenate, fim=0.6),
        }
        return Mixture(
            streams,
            batch_size=BATCH_SIZE,
            weights={"plain": 0.61, "packed": 0.28, "filled": 0.11},
            stages=[
                Stage(begin=6, weights={"plain": 1, "packed": 1, "filled": 3}),
                Stage(begin=18, weights={"packed": 1}),
            ],
        )


KINDS: dict[str, Callable[[Case], TrainingStream]] = {
    "concatenated": lambda case: case.stream(0),
    "best fit": lambda case: case.stream(1, packing=best_fit),
    "shuffled": lambda case: case.stream(2, packing=shuffle_and_concatenate),
    "fill in the middle": lambda case: case.stream(0, packing=best_fit, fim=0.6),
    "hub": lambda case: case.stream(
        0, source=HubDataset("some/texts", revision="0123456789" * 4), packing=best_fit
    ),
    "mixture": lambda case: case.mixture(),
}


@pytest.fixture(scope="module")
def case(modules: list[str], tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("order"), modules[:24])


@pytest.fixture(autouse=True)
def hub(modules: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that holds one dataset; no package of Hugging Face is needed."""

    class Datasets:
        @staticmethod
        def load_dataset(path: str, **options: Any) -> list[dict[str, str]]:
            assert options["streaming"]
            return [{"text": text[:500]} for text in modules[30:45]]

    monkeypatch.setitem(sys.modules, "datasets", Datasets)


def prepared(stream: TrainingStream) -> TrainingStream:
    stream.prepare(show_progress=False)
    return stream


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, case: Case) -> Callable[[], TrainingStream]:
    """Make a new stream of one kind."""
    return lambda: KINDS[request.param](case)


@pytest.fixture
def expected(make: Callable[[], TrainingStream]) -> list[Tensor]:
    """What one process reads that never stops and makes nothing ahead."""
    stream = prepared(make())
    return [stream.batch(step) for step in range(NUM_STEPS)]


def read_in_parts(make: Callable[[], TrainingStream]) -> list[Tensor]:
    """What is read if a run stops often; each rank has a stream of its own."""
    batches = []
    for (first, world_size), (stop, _) in itertools.pairwise([*PARTS, (NUM_STEPS, 1)]):
        ranks = [prepared(make()) for _ in range(world_size)]
        for step in range(first, stop):
            ranked = [s.batch(step, rank=r, world_size=world_size) for r, s in enumerate(ranks)]
            batches.append(torch.cat(ranked))
    return batches


def test_stops_and_ranks_change_no_token(make, expected):
    assert torch.equal(torch.stack(read_in_parts(make)), torch.stack(expected))


@pytest.mark.parametrize(("depth", "num_workers"), [(1, 1), (2, 2), (5, 4)])
def test_batches_made_ahead_change_no_token(make, expected, depth, num_workers):
    def ahead() -> Prefetch:
        return Prefetch(make(), depth=depth, num_workers=num_workers)

    assert torch.equal(torch.stack(read_in_parts(ahead)), torch.stack(expected))


def test_no_two_kinds_read_the_same(case: Case) -> None:
    """Otherwise the comparisons above would prove little."""
    firsts = [prepared(make(case)).batch(0) for make in KINDS.values()]
    assert len({tuple(batch.flatten().tolist()) for batch in firsts}) == len(KINDS)


ELSEWHERE = """
import hashlib, sys
from pathlib import Path
from test_order import Case, prepared, NUM_STEPS
stream = prepared(Case(Path(sys.argv[1]), []).mixture())
tokens = b"".join(stream.batch(step).numpy().tobytes() for step in range(NUM_STEPS))
print(hashlib.sha256(tokens).hexdigest())
"""


@pytest.mark.xdist_group("prepare")
def test_another_process_reads_the_same(case: Case) -> None:
    """With other hashes of texts, by which Python orders sets."""
    stream = prepared(case.mixture())
    tokens = b"".join(stream.batch(step).numpy().tobytes() for step in range(NUM_STEPS))
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(case.folder)],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.strip() == hashlib.sha256(tokens).hexdigest(), done.stderr
