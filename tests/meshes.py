"""Small models on meshes of processes: the script that runs them, and its cases."""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fiddle as fdl
import torch
import torch.distributed as dist
from small_models import shrunk, whole_weights
from torch import Tensor, nn

from fidgpt import data, fiddlers, graph, model, tags, train
from fidgpt.fiddlers.patterns import repeated
from fidgpt.fiddlers.recurrent import RECURRENT, put_mixer
from fidgpt.placement import held, whole_of
from fidgpt.processes.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.train.mesh_check import counting
from fidgpt.train.state import TrainState, progress

SEQ_LEN, ROWS, NUM_STEPS = 24, 4, 2
END_OF_TEXT = 256  # of bytes
SCHEDULES = ("gpipe", "interleaved", "breadth_first", "zero_bubble", "zero_bubble_v", "dual_pipe_v")
Fiddler = Callable[[fdl.Config], object]


def mesh(*, sequence: bool = False, ulysses: bool = False, **sizes: int) -> Fiddler:
    """Return the change to a mesh of these sizes.

    Args:
      sequence: whether processes share the sequences between products, too.
      ulysses: whether the context exchanges heads instead of keys and values.
      sizes: of the axes.
    """

    def use(cfg: fdl.Config) -> None:
        fiddlers.use_mesh(cfg, **sizes)
        if sequence:
            fiddlers.use_sequence_parallel(cfg)
        if ulysses:
            fiddlers.use_ulysses(cfg)

    return use


def pipeline(schedule: str = "1f1b", **sizes: int) -> Fiddler:
    """Return the change to a pipeline, whose micro-batches have one row.

    Args:
      schedule: of the pipeline.
      sizes: of the axes, of which `pipeline` defaults to 2.
    """

    def use(cfg: fdl.Config) -> None:
        fiddlers.use_mesh(cfg, **{"pipeline": 2, **sizes})
        fiddlers.use_pipeline(cfg, schedule)
        cfg.micro_batch_size = 1

    return use


def with_experts(change: Fiddler, number: int) -> Fiddler:
    """Return a change whose mesh divides experts over so many processes, where there are some."""

    def use(cfg: fdl.Config) -> None:
        change(cfg)
        if any(fdl.get_callable(node.value) is model.MoE for node in graph.parts(cfg.model)):
            fiddlers.use_mesh(cfg, expert=number)

    return use


def both(*changes: Fiddler) -> Fiddler:
    """Return changes as one."""

    def use(cfg: fdl.Config) -> None:
        for change in changes:
            change(cfg)

    return use


def traced(cfg: fdl.Config) -> None:
    """Compile blocks as far as torch alone does, without the machine's compiler, which is slow."""
    fiddlers.use_compile(cfg)
    for node in graph.find(cfg, model.Compile):
        node.backend = "aot_eager"


MESHES: dict[int, dict[str, Fiddler]] = {
    2: {
        "tensor": mesh(tensor=2),
        "sequence": mesh(tensor=2, sequence=True),
        "chunked": both(mesh(tensor=2), fiddlers.use_chunked_sums),
        "chunked_sequence": both(fiddlers.use_chunked_sums, mesh(tensor=2, sequence=True)),
        "traced": both(mesh(tensor=2, sequence=True), traced),
        "context": mesh(context=2),
        "ulysses": mesh(context=2, ulysses=True),
        "shard": mesh(shard=2),
        "zero2": both(mesh(shard=2), fiddlers.use_zero2),
        "replicate": mesh(replicate=2),
        "expert": mesh(shard=2, expert=2),
        "context_expert": mesh(context=2, expert=2),
        "pipeline": pipeline(),
        **{name: pipeline(name) for name in SCHEDULES},
    },
    4: {
        "tensor": mesh(tensor=4),
        "shard_tensor": mesh(shard=2, tensor=2),
        "shard_sequence": mesh(shard=2, tensor=2, sequence=True),
        "replicate_tensor": mesh(replicate=2, tensor=2),
        "replicate_sequence": mesh(replicate=2, tensor=2, sequence=True),
        "replicate_shard": mesh(replicate=2, shard=2),
        "context": mesh(context=4),
        "ulysses": mesh(context=4, ulysses=True),
        "context_tensor": mesh(context=2, tensor=2),
        "context_sequence": mesh(context=2, tensor=2, sequence=True),
        "ulysses_tensor": mesh(context=2, tensor=2, ulysses=True),
        "ulysses_sequence": mesh(context=2, tensor=2, sequence=True, ulysses=True),
        "shard_context": mesh(shard=2, context=2),
        "shard_ulysses": mesh(shard=2, context=2, ulysses=True),
        "replicate_context": mesh(replicate=2, context=2),
        "replicate_ulysses": mesh(replicate=2, context=2, ulysses=True),
        "expert": mesh(shard=4, expert=4),
        "shard_expert": mesh(shard=4, expert=2),
        "replicate_expert": mesh(replicate=2, shard=2, expert=2),
        "context_expert": mesh(shard=2, context=2, expert=4),
        "replicate_context_expert": mesh(replicate=2, context=2, expert=2),
        "tensor_expert": mesh(shard=2, tensor=2, expert=2),
        "sequence_expert": mesh(shard=2, tensor=2, expert=2, sequence=True),
        "pipeline_expert": pipeline("zero_bubble", shard=2, expert=2),
        "pipeline": pipeline(pipeline=4),
        "pipeline_replicate": pipeline("zero_bubble_v", replicate=2),
        "pipeline_shard": pipeline("zero_bubble", shard=2),
        "pipeline_expert_zero2": both(
            pipeline("interleaved", shard=2, expert=2), fiddlers.use_zero2
        ),
        "pipeline_tensor": pipeline("zero_bubble", tensor=2),
        "pipeline_sequence": both(pipeline(tensor=2), fiddlers.use_sequence_parallel),
        "pipeline_context": pipeline("interleaved", context=2),
    },
    8: {
        "shard_expert": mesh(shard=4, context=2, expert=4),
        "tensor_expert": mesh(shard=4, tensor=2, expert=4),
        "everything_expert": mesh(replicate=2, shard=2, context=2, expert=2),
        "pipeline_shard_tensor": with_experts(pipeline("interleaved", shard=2, tensor=2), 2),
        "pipeline_context_tensor": with_experts(pipeline("zero_bubble", context=2, tensor=2), 2),
        "pipeline_replicate_shard": with_experts(pipeline("gpipe", replicate=2, shard=2), 2),
        "shard_context_tensor": mesh(shard=2, context=2, tensor=2),
        "shard_ulysses_sequence": mesh(shard=2, context=2, tensor=2, sequence=True, ulysses=True),
    },
    # Two processes on each axis but one.
    16: {
        "pipeline_shard": with_experts(pipeline("interleaved", shard=2, context=2, tensor=2), 4),
        "pipeline_replicate": with_experts(
            both(pipeline(replicate=2, context=2, tensor=2), fiddlers.use_sequence_parallel), 2
        ),
        "pipeline_hybrid": with_experts(pipeline("gpipe", replicate=2, shard=2, tensor=2), 2),
        "replicate_shard": with_experts(mesh(replicate=2, shard=2, context=2, tensor=2), 4),
    },
}


PIPELINES = {*SCHEDULES, *(n for names in MESHES.values() for n in names if "pipeline" in n)}


def base(*changes: Fiddler) -> fdl.Config:
    """`base`, small, in float32 and with some changes."""
    cfg = shrunk("base")
    for change in changes:
        change(cfg)
    return cfg


def everything(cfg: fdl.Config) -> None:
    """Add what has no family of its own."""
    fiddlers.use_alibi(cfg)
    fiddlers.use_value_embeddings(cfg)
    fiddlers.use_z_loss(cfg)
    fiddlers.use_label_smoothing(cfg)
    use_all_biases(cfg)
    cfg.model.unembedding.softcap = 3.0
    cfg.loss.chunk_size = 100


def use_all_biases(cfg: fdl.Config) -> None:
    """Add a bias to every linear layer."""
    for block in graph.find(cfg.model, model.Attention) + graph.find(cfg.model, model.SwiGLU):
        block.bias = True


def shallow(name: str) -> fdl.Config:
    """A small named config, of whose pattern two layers are left and then come again."""
    cfg = shrunk(name)
    cfg.model.first_blocks, cfg.model.blocks = cfg.model.first_blocks[:1], cfg.model.blocks[-2:]
    cfg.model.num_layers = len(cfg.model.first_blocks) + len(cfg.model.blocks) + 1
    return cfg


def shallow_with(name: str, change: Fiddler) -> fdl.Config:
    """The same, changed."""
    cfg = shallow(name)
    change(cfg)
    return cfg


def use_prefix_mask(cfg: fdl.Config) -> None:
    """Let tokens attend to a prefix, by positions that are scaled, with fewer heads of keys."""
    fiddlers.use_gqa(cfg)
    fiddlers.use_sinks(cfg)
    attention = cfg.model.blocks[0].attention
    attention.mask = fdl.Config(model.Prefix, length=7)
    attention.rope.scaling = fdl.Config(model.NTKScaling, factor=2.0)


def use_separate_experts(cfg: fdl.Config) -> None:
    """Let experts be modules of their own."""
    expert = fdl.Partial(model.SwiGLU, hidden_dim=tags.HiddenDim.new(), ffn_dim=48)
    for moe in graph.find(cfg.model, model.MoE):
        moe.experts = fdl.ArgFactory(
            model.SeparateExperts, num_experts=tags.NumExperts.new(), expert=expert
        )


class Lopsided(model.SoftmaxRouter):
    """Routes all tokens to the first half of the experts."""

    def scored(self, logits: Tensor) -> Tensor:
        last = torch.arange(self.num_experts, device=logits.device) >= self.num_experts // 2
        return super().scored(logits.masked_fill(last, -100.0))


def use_lopsided_router(cfg: fdl.Config) -> None:
    for moe in graph.find(cfg.model, model.MoE):
        moe.router = graph.swapped(moe.router, Lopsided)


def use_small_capacity(cfg: fdl.Config) -> None:
    fiddlers.use_expert_capacity(cfg, factor=0.7)


def dropping(cfg: fdl.Config) -> None:
    """Drop elements of embeddings, of attention weights and of branches."""
    cfg.model.dropout = cfg.model.blocks[0].dropout = 0.2
    cfg.model.blocks[0].attention.dropout = 0.2


def dropping_branches(cfg: fdl.Config) -> None:
    """Drop elements of embeddings and of branches, and no attention weights."""
    cfg.model.dropout = cfg.model.blocks[0].dropout = 0.2
    cfg.model.blocks[0].attention.dropout = 0.0


def narrow(cfg: fdl.Config) -> None:
    cfg.precision = fdl.Config(train.BFloat16)


def accumulating(cfg: fdl.Config) -> None:
    cfg.micro_batch_size = 1


def use_recurrent_mixers(cfg: fdl.Config) -> None:
    """Mix tokens by another component in each layer, with several documents in a row."""
    fiddlers.use_document_mask(cfg)
    cfg.model.blocks = repeated(cfg.model.blocks, len(RECURRENT))
    cfg.model.num_layers = len(RECURRENT)
    for block, kind in zip(cfg.model.blocks, RECURRENT, strict=True):
        put_mixer(block, kind)
    cfg.model.blocks[0].attention.num_key_heads = 2
    cfg.model.blocks[0].attention.value_head_dim = 12


# Few keys of each document, selected by heads of which few scores are equal.
INDEXED = both(fiddlers.use_document_mask, partial(fiddlers.use_indexer, top_k=5))
FAMILIES: dict[str, Callable[[], fdl.Config]] = {
    "indexer": partial(shallow_with, "deepseek_v3", INDEXED),
    "indexer_warmup": partial(shallow_with, "deepseek_v3", fiddlers.use_indexer_warmup),
    "llama": partial(shrunk, "llama3_2_1b"),
    "qwen3": partial(shrunk, "qwen3_0_6b"),
    "gemma3": partial(shallow, "gemma3_1b"),  # with windows and without, in turn
    "gpt2": partial(shrunk, "gpt2_124m"),  # learned positions, biases
    "deepseek_v3": partial(shallow, "deepseek_v3"),  # latent attention, YaRN, balanced sequences
    "gpt_oss": partial(shrunk, "gpt_oss_20b"),  # sinks
    "mixtral": partial(shrunk, "mixtral_8x7b"),
    "qwen3_moe": partial(shrunk, "qwen3_30b_a3b"),
    "separate": partial(base, fiddlers.use_moe, use_separate_experts),
    "lopsided": partial(base, fiddlers.use_moe, use_lopsided_router),
    "lopsided_separate": partial(base, fiddlers.use_moe, use_separate_experts, use_lopsided_router),
    "capacity": partial(base, fiddlers.use_moe, use_small_capacity),
    "experts": partial(base, fiddlers.use_moe, fiddlers.use_lora),
    "narrow_experts": partial(base, fiddlers.use_moe, narrow),
    "adafactor_experts": partial(base, use_all_biases, fiddlers.use_moe, fiddlers.use_adafactor),
    "compiled_experts": partial(base, fiddlers.use_moe, traced),
    "recomputed_experts": partial(
        shallow_with, "deepseek_v3", both(fiddlers.use_selective_recompute, accumulating)
    ),
    "olmo2": partial(shrunk, "olmo2_7b"),
    "nanochat": partial(shrunk, "nanochat"),  # skips, smear, value embeddings; Muon
    "lora": partial(base, fiddlers.use_lora),
    "deepseek_mtp": partial(shallow_with, "deepseek_v3", fiddlers.use_mtp),
    "narrow": partial(base, fiddlers.use_lora, narrow),
    "mtp": partial(base, fiddlers.use_mtp),
    "packing": partial(base, fiddlers.use_packing, fiddlers.use_document_mask),
    "mixture": partial(
        base,
        fiddlers.use_moe,
        fiddlers.use_mtp,
        fiddlers.use_document_mask,
        fiddlers.use_recompute,
        accumulating,
    ),
    "everything": partial(base, everything),
    "prefix": partial(base, use_prefix_mask, fiddlers.tie_embeddings),
    "muon": partial(base, fiddlers.use_moe, fiddlers.use_muon),
    "adafactor": partial(base, fiddlers.use_adafactor, use_all_biases),
    "balanced": partial(
        base, fiddlers.use_gelu, fiddlers.use_moe, fiddlers.use_loss_free_balancing
    ),
    # Norms of torch's, which start themselves; positions at the root; one block for all layers;
    # an activation with parameters and buffers.
    "classic": partial(
        base,
        fiddlers.use_layer_norm,
        fiddlers.use_learned_positions,
        fiddlers.use_xielu,
        fiddlers.use_moe,
        fiddlers.share_blocks,
    ),
    "schedule_free": partial(base, fiddlers.use_schedule_free),
    "recurrent": partial(base, use_recurrent_mixers),
    "compiled": partial(base, fiddlers.use_compile, fiddlers.use_document_mask),
    "dropout": partial(base, dropping),  # of which each process drops its own
    "branch_dropout": partial(base, dropping_branches),  # outside of what is divided
}


def spread(tensor: Tensor, generator: torch.Generator | None) -> None:
    """Initialize so that no gradient is zero, as the gradients of adapters are at first."""
    tensor.normal_(std=0.2, generator=generator)
    if tensor.dim() == 1:
        tensor += 0.5


@torch.no_grad()
def load(model: nn.Module) -> None:
    """Copy whole tensors into a model, as those of another run."""
    for number, parameter in enumerate(model.parameters()):
        values = torch.empty(parameter.shape)
        spread(values, torch.Generator().manual_seed(number))
        parameter.copy_(values)


def batch() -> data.Batch:
    """Rows of some documents; the tokens that count in the loss, or are real, differ in number."""
    tokens = torch.randint(0, 256, (ROWS, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    tokens[0, [3, 15]] = tokens[2, 9] = END_OF_TEXT
    columns = torch.arange(SEQ_LEN + 1)
    counted = columns < torch.tensor([[20], [25], [9], [14]])
    real = columns < torch.tensor([[SEQ_LEN + 1], [25], [11], [14]])
    return data.Batch(tokens, counted, real)


def built(family: str, change: Fiddler | None = None) -> train.Trainer:
    """A run of a family, on the mesh that a change makes, or on one process.

    A family may be followed by a number of layers, as in `lora+4`.
    """
    family, _, num_layers = family.partition("+")
    cfg = FAMILIES[family]()
    if num_layers:
        cfg.model.num_layers = int(num_layers)
    cfg.seq_len, cfg.batch_size = SEQ_LEN, ROWS
    if change is not None:
        change(cfg)
    trainer = build_trainer(cfg)
    for parameter in trainer.model.parameters():
        vars(parameter)["init"] = spread
    if family == "qwen3":
        trainer.weights = load
    return trainer


def trained(trainer: train.Trainer) -> dict[str, Any]:
    """What two steps of training give: rows of metrics, and the first step's whole gradients.

    All processes of its mesh call this.
    """
    kept: dict[str, Tensor] = {}

    def keep(parameters: Iterable[nn.Parameter]) -> None:
        for name, parameter in state.model.named_parameters():
            if parameter.grad is not None:
                kept.setdefault(name, whole_of(parameter.grad, parameter).clone())

    trainer.gradient_transform = keep
    with trainer.parallel as parallel:
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        start = whole_weights(state.model)
        rank, size = parallel.data_rank, parallel.data_size
        batches = [
            batch().split(ROWS // size)[rank],
            trainer.stream.batch(1, rank=rank, world_size=size),
        ]
        torch.manual_seed(0)
        rows = [trainer.update(state, batch) for batch in batches]
        end = whole_weights(state.model)
        moments = [moment for state in state.optimizer.state.values() for moment in state.values()]
        own = sum(held(tensor).numel() for tensor in (*state.model.parameters(), *moments))
        return {"start": start, "rows": rows, "gradients": kept, "end": end, "elements": own}


def sent(trainer: train.Trainer) -> dict[str, int]:
    """The bytes that a process sends in a step's exchanges of rows, and those that its tokens need.

    A token that goes to an expert of another process needs its vector there and the result back,
    and the gradients of both.
    """
    counted, needed = 0, 0
    exchange = dist.all_to_all_single

    def count(out: Tensor, x: Tensor, received: list[int], rows: list[int], **more: Any) -> Any:
        nonlocal counted
        group = more["group"]
        own = rows[dist.get_rank(group)]
        counted += (sum(rows) - own) * x[:1].nbytes
        return exchange(out, x, received, rows, **more)

    def route(module: model.Router, args: object, routing: Any) -> None:
        nonlocal needed
        rank = routing.experts * trainer.parallel.places.axes["expert"].size // module.num_experts
        leaving = (rank != trainer.parallel.places.axes["expert"].rank).sum().item()
        needed += 4 * int(leaving) * module.weight.shape[1] * 4  # of four bytes

    with trainer.parallel as parallel, patch.object(dist, "all_to_all_single", count):
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        for router in [m for m in state.model.modules() if isinstance(m, model.Router)]:
            router.register_forward_hook(route)
        rank, size = parallel.data_rank, parallel.data_size
        trainer.update(state, batch().split(ROWS // size)[rank])
    return {"counted": counted, "needed": needed}


def counted(trainer: train.Trainer) -> tuple[Counter[str], Counter[str]]:
    """The collectives of a process in a step, and their bytes, by kind."""
    with trainer.parallel as parallel:
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        rank, size = parallel.data_rank, parallel.data_size
        batches = [trainer.stream.batch(step, rank=rank, world_size=size) for step in range(3)]
        for one in batches[:2]:  # DistributedDataParallel makes its buckets again after the first
            trainer.update(state, one)
        with counting(state.replica) as counter:
            trainer.update(state, batches[2])
    return sum(counter.counts.values(), Counter()), counter.sizes


def use_bfloat16(cfg: fdl.Config) -> None:
    """Compute with rounded copies of the weights."""
    cfg.precision = fdl.Config(train.BFloat16)


def measuring(change: Fiddler | None = None) -> train.Trainer:
    """A run that is evaluated on sequences of a length that two does not divide."""
    cfg = FAMILIES["packing"]()
    fiddlers.use_moe(cfg)
    cfg.seq_len, cfg.model.num_layers = SEQ_LEN, 3
    cfg.evaluators["validation"].data.seq_len = SEQ_LEN + 3
    if change is not None:
        change(cfg)
    return build_trainer(cfg)


def evaluated(trainer: train.Trainer) -> tuple[dict[str, float], list[str]]:
    """The validation of new weights, and texts.

    A text is written with a cache, and beyond the length of its context.
    """
    with trainer.parallel:
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        found = trainer.evaluators["validation"](state.replica, trainer.loss, trainer.parallel)
        samples = train.Samples(prompts=["The", ""], num_tokens=2 * SEQ_LEN, temperature=1.0)
        written = samples.write(
            state.replica.eval(), trainer.stream.tokenizer, context=SEQ_LEN, seed=0
        )
        return found, [*written]


SAVED: dict[str, Fiddler] = {
    "replicate": mesh(replicate=4),
    "shard": mesh(shard=4),
    "tensor": mesh(tensor=4),
    "shard_tensor": mesh(shard=2, tensor=2),
    "replicate_sequence": mesh(replicate=2, tensor=2, sequence=True),
    "pipeline_expert": pipeline(shard=2, expert=2),
    "shard_expert": mesh(shard=4, expert=2),
    "tensor_expert": mesh(tensor=2, shard=2, expert=2),
}
OPTIMIZERS: dict[str, Fiddler] = {
    "adamw": lambda cfg: None,
    "muon": fiddlers.use_muon,
    "normuon": fiddlers.use_normuon,
    "adafactor": fiddlers.use_adafactor,
}


class Run:
    """A run with every kind of state, which is saved or restored on one mesh.

    Args:
      optimizer: fiddler of the optimizer.
      change: to the mesh; None for one process.
    """

    def __init__(self, optimizer: Fiddler, change: Fiddler | None = None) -> None:
        cfg = base(everything, fiddlers.use_moe, optimizer, fiddlers.use_ema)
        cfg.batch_size, cfg.model.num_layers = ROWS, 1
        if change is not None:
            change(cfg)
        self.trainer = build_trainer(cfg)

    def save(self, path: Path) -> dict[str, Tensor]:
        """Take two steps and save; return the whole state."""
        trainer = self.trainer
        with trainer.parallel:
            trainer.prepare()
            state = trainer.setup(train.RunDirectory(path, texts={}))
            for step in range(NUM_STEPS):
                self._step(state, step)
            trainer.checkpoints.save(
                path,
                step=NUM_STEPS,
                model=state.model,
                optimizer=state.optimizer,
                stateful=state.stateful,
                state=progress(trainer.stream, state),
            )
            return whole_state(state)

    def restore(self, path: Path) -> dict[str, Tensor]:
        """Resume; return the whole state, from which another step is taken."""
        with self.trainer.parallel:
            self.trainer.prepare()
            state = self.trainer.setup(train.RunDirectory(path, texts={}), resume=True)
            whole = whole_state(state)
            self._step(state, NUM_STEPS)
            return whole

    def _step(self, state: TrainState, step: int) -> None:
        trainer, parallel = self.trainer, self.trainer.parallel
        rank, size = parallel.data_rank, parallel.data_size
        trainer.update(state, trainer.stream.batch(step, rank=rank, world_size=size))


def whole_state(state: TrainState) -> dict[str, Tensor]:
    """Return weights, optimizer state and averages, whole and by name."""
    tensors = whole_weights(state.model)
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimizer.state[parameter].items():
            alike = parameter if value.shape == parameter.shape else value
            tensors[f"{name}/{key}"] = whole_of(value, alike).clone()
    with state.averaged():
        tensors |= {f"{name}/average": x for name, x in whole_weights(state.model).items()}
    return tensors


def saved_and_restored(path: Path, optimizer: Fiddler, *, each: bool) -> Callable[[], Any]:
    """Save under every mesh, and restore each under every other or the next; return what differs.

    Args:
      path: folder that holds the checkpoint of one process, and `alone.pt`, its state.
      optimizer: fiddler of the optimizer.
      each: restore each checkpoint under every mesh; else under the next one.

    Returns: what all processes call.
    """
    names = [*SAVED, "alone"]
    pairs = [*itertools.product(names, SAVED)]
    if not each:  # with six of the one and five of the other, this meets every mesh
        pairs = [*zip(names, itertools.cycle([*SAVED][1:] + [*SAVED][:1]), strict=False)]
    saving = {name: Run(optimizer, change) for name, change in SAVED.items()}
    restoring = {(here, there): Run(optimizer, SAVED[there]) for here, there in pairs}

    def leave() -> dict[str, Any]:
        states = {name: run.save(path / name) for name, run in saving.items()}
        states["alone"] = torch.load(path / "alone.pt")
        differ = {
            f"{here} to {there}": [
                name
                for name, value in run.restore(path / here).items()
                if name not in states[here] or not torch.equal(states[here][name], value)
            ]
            for (here, there), run in restoring.items()
        }
        return {"differ": differ, "states": states}

    return leave


def patience(num_cases: int) -> float:
    """Return the seconds after which so many cases have hung, on a machine that is busy."""
    return 1800 + 10 * num_cases


def main(path: Path, number: int, cases: list[str]) -> None:
    """Leave what every case gives each of so many processes, in a file of each.

    They are forked once all runs are built. What one process gives is left by family in `alone.pt`.
    """
    made: dict[str, Callable[[], Any]] = {}
    alone: dict[str, Callable[[], Any]] = {}
    if cases[0] in OPTIMIZERS:
        each = cases[1:] == ["each"]
        made["saved"] = saved_and_restored(path, OPTIMIZERS[cases[0]], each=each)
        cases = []
    for case in cases:
        what, name = case.split("/")
        change = MESHES[number][name]
        if what == "sent":
            made[case] = partial(sent, built("qwen3_moe", change))
        elif what.startswith("counted"):
            made[case] = partial(counted, built(what.removeprefix("counted "), change))
        elif what == "evaluated":
            made[case] = partial(evaluated, measuring(change))
            alone.setdefault(what, partial(evaluated, measuring()))
        elif what == "rounded":
            made[case] = partial(evaluated, measuring(both(change, use_bfloat16)))
            alone.setdefault(what, partial(evaluated, measuring(use_bfloat16)))
        else:
            made[case] = partial(trained, built(what, change))
            alone.setdefault(what, partial(trained, built(what)))

    def leave(calls: Mapping[str, Callable[[], Any]], name: str) -> None:
        torch.save({case: call() for case, call in calls.items()}, path / f"{name}.pt")

    seconds = patience(len(cases))
    if alone:
        run_ranks(1, partial(leave, alone, "alone"), seconds=seconds)
    run_ranks(number, lambda: leave(made, f"rank{dist.get_rank()}"), seconds=seconds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
