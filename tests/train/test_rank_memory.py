"""What a process holds in memory on a mesh, by torch's storages, is what arithmetic gives."""

import json
from pathlib import Path

import pytest
import rank_memory
import torch
from forked import run_ranks
from rank_memory import FFN, HIDDEN, LAYERS, MESHES, ROWS, TOKENS, VOCAB, Change, small

from fidgpt.plan import Planner
from fidgpt.runs.building import build_trainer
from fidgpt.train.device import cluster_at_hand

SIZE = 4  # bytes of float32
NORMS = (2 * LAYERS + 1) * HIDDEN
MATRICES = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN) + 2 * VOCAB * HIDDEN


def activations(
    *, rows: int = ROWS, tensor: int = 1, norms: int = 1, context: int = 1, gathers: bool = True
) -> float:
    """Bytes that the backward pass needs, but for tables of positions and the like.

    Of each layer: the inputs of both norms, of attention and of the MLP; queries, keys, values and
    the result of attention; four vectors as wide as the MLP. Then the input of the last norm, that
    of the unembedding, and what the embedding keeps; the loss's gradients of logits and weights.
    A context gathers the keys and values of all tokens, or exchanges heads, and the result again.
    """
    tokens = rows * TOKENS / context
    stream = tokens * HIDDEN
    again = stream if context > 1 else 0
    attention = 2 * stream + 2 * stream * (context if gathers else 1) + again
    layer = 2 * stream + 2 * stream / norms + (attention + 4 * tokens * FFN) / tensor
    loss = tokens * VOCAB / tensor + (stream if tensor > 1 else VOCAB * HIDDEN)
    return SIZE * (LAYERS * layer + 3 * stream + loss)


WHOLE = MATRICES + NORMS
# By mesh: the numbers of a process's parameters, and the bytes of its activations.
EXPECTED = {
    "replicate=2": (WHOLE, activations(rows=ROWS // 2)),
    "shard=2": (WHOLE // 2, activations(rows=ROWS // 2) + SIZE * VOCAB * HIDDEN),
    "tensor=2": (MATRICES // 2 + NORMS, activations(tensor=2)),
    "tensor=2, sequence": (MATRICES // 2 + NORMS, activations(tensor=2, norms=2)),
    "context=2": (WHOLE, activations(context=2)),
    "context=2, ulysses": (WHOLE, activations(context=2, gathers=False)),
}
OFTEN = ["shard=2", "tensor=2, sequence", "context=2", "context=2, ulysses"]


@pytest.mark.slow
@pytest.mark.parametrize("names", [OFTEN, pytest.param([*EXPECTED], marks=pytest.mark.long)])
def test_memory_of_a_process_falls_as_computed(tmp_path: Path, names: list[str]) -> None:
    script = Path(rank_memory.__file__)
    run_ranks(2, script, tmp_path, *names, folder=tmp_path)
    for rank in range(2):
        held = json.loads((tmp_path / f"rank{rank}.json").read_text())
        for name in names:
            parameters, bytes_of_activations = EXPECTED[name]
            assert held[name]["parameters"] == SIZE * parameters, name
            assert held[name]["gradients"] == SIZE * parameters, name
            assert held[name]["optimizer"] == 2 * SIZE * parameters, name  # two moments
            assert held[name]["activations"] == pytest.approx(bytes_of_activations, rel=0.01), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor=2", "tensor=2, sequence", "context=2"])
def test_the_summary_knows_what_is_divided(name: str) -> None:
    def kept(change: Change | None) -> int:
        trainer = build_trainer(small(change))
        plans = Planner(trainer, cluster_at_hand(trainer.parallel, torch.float32))
        return plans._trace(plans.setting(trainer.parallel.mesh)).kept

    part = kept(MESHES[name]) / kept(None)  # both without what the loss keeps
    assert part == pytest.approx(
        EXPECTED[name][1] / activations(), rel=0.01 if "tensor" in name else 0.03
    )
