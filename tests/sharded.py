"""Train `debug` with sharded weights: the script that runs it, and its cases."""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
import torch.distributed as dist
from small_models import whole_weights
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fidgpt import configs, fiddlers, train
from fidgpt.model import Transformer
from fidgpt.parallel.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.train.trackers.trackers import read_rows

NUM_STEPS = 3


def accumulating(cfg: fdl.Config) -> None:
    cfg.micro_batch_size = 1


def narrow(cfg: fdl.Config) -> None:
    cfg.precision = fdl.Config(train.BFloat16)


Case = tuple[Callable[[fdl.Config], object], ...]
MIXTURE = (fiddlers.use_moe, fiddlers.use_loss_free_balancing)
CASES: dict[int, dict[str, Case]] = {
    2: {
        "plain": (),
        "accumulating": (accumulating,),
        "narrow": (narrow,),  # gathered in bfloat16
        "mixture": MIXTURE,  # routers stay in float32 and are balanced by a bias
        "narrow_mixture": (*MIXTURE, narrow),
        # Balanced by the load of the whole batch, in one pass each and in two.
        "balanced": (fiddlers.use_moe,),
        "balanced_accumulating": (fiddlers.use_moe, accumulating),
        "adapters": (fiddlers.use_lora,),  # most weights are frozen
        # A further list of blocks, which use the model's table too, and blocks computed twice.
        "looking_ahead": (fiddlers.use_mtp, fiddlers.use_recompute),
        # Norms of torch's, which start themselves; positions at the root; one block for all layers.
        "classic": (
            fiddlers.use_layer_norm,
            fiddlers.use_learned_positions,
            fiddlers.share_blocks,
        ),
        "orthogonal": (fiddlers.use_muon,),  # works on whole matrices
        "rows_and_columns": (fiddlers.use_adafactor,),  # keeps sums over whole matrices
        "averaged": (fiddlers.use_ema,),  # an average that is put in between two evaluations
        "schedule_free": (fiddlers.use_schedule_free,),  # as are its weights to evaluate
    },
    # Two copies of the model, each sharded over half of the processes.
    4: {
        "plain": (),
        "hybrid": (functools.partial(fiddlers.use_hsdp, num_shards=2),),
        "mesh": (functools.partial(fiddlers.use_mesh, replicate=2, shard=-1),),
    },
}


def trainer_of(case: Case) -> train.Trainer:
    """`debug`, short, in float32 and sharded unless the case overrides it."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    fiddlers.use_fsdp(cfg)
    cfg.batch_size = 4
    for fiddler in case:
        fiddler(cfg)
    return build_trainer(cfg)


def trained(trainer: train.Trainer) -> dict[str, Any]:
    """What training leaves on this process."""
    with trainer.parallel as parallel:
        gradients: list[int] = []

        def measure_gradients(parameters: Iterable[nn.Parameter]) -> None:
            gradients.append(own_bytes(p.grad for p in parameters if p.grad is not None))

        trainer.gradient_transform = measure_gradients
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        start = whole_weights(state.model)
        rows = []
        for step in range(NUM_STEPS):
            torch.manual_seed(step)
            rank, size = parallel.data_rank, parallel.data_size
            batch = trainer.stream.batch(step, rank=rank, world_size=size)
            rows.append(trainer.update(state, batch))
            measure = trainer.evaluators["validation"]
            rows[-1] |= measure(state.replica, trainer.loss, parallel)
            if state.average is not None or isinstance(state.optimizer, train.EvaluationWeights):
                with state.averaged():
                    measured = measure(state.replica, trainer.loss, parallel)
                rows[-1] |= {f"average/{name}": value for name, value in measured.items()}
        state.replica.eval()
        assert trainer.samples is not None
        text = next(
            trainer.samples.write(state.replica, trainer.stream.tokenizer, context=16, seed=0)
        )
        model = state.model
        assert isinstance(model, Transformer)
        if isinstance(model, FSDPModule):
            model.reshard()  # after evaluation the root module stays gathered
        return {
            "start": start,
            "rows": rows,
            "text": text,
            "bytes": {
                "gradients": gradients[-1],
                "weights": own_bytes(model.parameters()),
                "optimizer": own_bytes(states(state.optimizer)),
            },
            "end": whole_weights(model),
            "biases": {name: b for name, b in model.named_buffers() if "bias" in name},
            "tied": model.embedding.weight is model.unembedding.weight,
        }


def states(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What an optimizer remembers of parameters, without counters."""
    for state in optimizer.state.values():
        yield from (x for x in state.values() if isinstance(x, Tensor) and x.dim())


def own_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the shards of this process."""
    locals_ = (x.to_local() if isinstance(x, DTensor) else x for x in tensors)
    return sum(x.numel() * x.element_size() for x in locals_)


def losses(path: Path, **options: Any) -> list[float]:
    """Those of a whole run with dropout and checkpoints, which may go on with one."""
    cfg = configs.debug()
    fiddlers.use_fsdp(cfg)
    cfg.num_steps, cfg.checkpoints.every, cfg.model.dropout = 4, 2, 0.1
    cfg.trackers = cfg.trackers[1:]
    build_trainer(cfg).train(train.RunDirectory(path, texts={}), **options)
    return [row["loss"] for row in read_rows(path / "metrics.jsonl")]


def main(path: Path, number: int) -> None:
    """Leaves what every case gives each of so many processes, in a file of each.

    They are forked once all cases are built.
    """
    made = {name: trainer_of(case) for name, case in CASES[number].items()}

    def leave() -> None:
        left: dict[str, Any] = {name: trained(trainer) for name, trainer in made.items()}
        if number == 2:
            whole_run = losses(path / "run")
            resumed = losses(path / "run", resume=True, resume_step=2)
            left |= {"runs": (whole_run, resumed)}
        torch.save(left, path / f"rank{dist.get_rank()}.pt")

    run_ranks(number, leave, seconds=300)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
