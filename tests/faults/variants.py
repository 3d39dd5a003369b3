"""The runs that are disturbed: one for each part with a memory, and one with all of them."""

import random
from pathlib import Path

STEPS, EVERY = 10, 3
WORDS = [
    "the",
    "a",
    "fox",
    "bear",
    "river",
    "stone",
    "moon",
    "old",
    "red",
    "runs",
    "sleeps",
    "sees",
    "says",
    "and",
    "to",
    "of",
]


def variants(texts: Path) -> dict[str, list[str]]:
    """The arguments of the training command for each run, by name.

    Args:
      texts: has been filled by `write_texts`.
    """
    changes: dict[str, list[str]] = {
        "plain": [],
        "dropout, accumulation": ["set:model.dropout=0.1", "set:micro_batch_size=1"],
        "Muon": ["fiddler:use_muon"],
        "average": ["fiddler:use_ema(beta=0.9)", "set:checkpoints.keep_last=1"],
        "guard": ["fiddler:use_skip_step(window=4, num_deviations=0.5)"],
        "prefetch": ["fiddler:use_prefetch"],
        "mixture": [f'fiddler:use_mixture(texts={{"other": "{texts / "other"}"}})'],
        "saved beside": ["fiddler:use_async_checkpoints"],
        "saved by time, best kept": ["fiddler:save_by_time(0.0005)", "fiddler:keep_best"],
    }
    changes["all of it"] = [one for several in changes.values() for one in several]
    common = [
        "config:debug",
        f"fiddler:use_text({texts / 'own'})",
        "set:data.corpus.shard_tokens=20000",
        f"set:num_steps={STEPS}",
        f"set:checkpoints.every={EVERY}",
        'set:evaluators["validation"].every=2',
        "set:samples=None",
    ]
    return {
        name: [f"--config={directive}" for directive in [*common, *more]]
        for name, more in changes.items()
    }


def write_texts(texts: Path) -> None:
    """Two folders of small files of text, alike every time."""
    draw = random.Random(0)
    for folder in ("own", "other"):
        (texts / folder).mkdir(parents=True)
        for number in range(60):
            words = " ".join(draw.choices(WORDS, k=draw.randrange(50, 300)))
            (texts / folder / f"{number:02d}.txt").write_text(
                words if folder == "own" else words.upper(), encoding="utf-8"
            )
