"""Meshes of the largest named configs on the GPUs that train them, as rules of `for_hardware`."""

from collections.abc import Callable, Mapping, Sequence

import fiddle as fdl

from fidgpt.fiddlers.parallel import use_mesh, use_pipeline, use_sequence_parallel, use_zero2
from fidgpt.fiddlers.speed import use_recompute
from fidgpt.train import Trainer


def share_llama3_1_405b(cfg: fdl.Config[Trainer]) -> None:
    """Divide Llama 3.1 405B over 1,024 GPUs of 80 GB, in machines of eight.

    Matrix products are divided over the GPUs of a machine, whose link alone is fast enough for
    their sums; with norms and the stream split along the sequence, nothing of a layer is kept
    twice. Layers are divided over 16 machines, which send each other the stream only. The 8
    processes left shard weights, gradients and AdamW, and gather the weights once a step. Gathering
    them for every pass would take 0.2 of the step; copies would need 29 GiB more. Recomputation
    leaves the inputs of layers, without which the activations of the micro-batches under way would
    take 190 GiB. Four stages on each process lower the bubble from 6.5% to 2.4%.

    The paper's mesh of 16,384 GPUs has the same 16 stages and eight parts of products (Grattafiori
    et al., 2024, arXiv:2407.21783, table 4).
    """
    cfg.micro_batch_size = 1
    use_mesh(cfg, pipeline=16, shard=8, tensor=8)
    use_zero2(cfg)
    use_pipeline(cfg, "interleaved", stages_per_rank=4)
    use_sequence_parallel(cfg)
    use_recompute(cfg)


def share_deepseek_v3(cfg: fdl.Config[Trainer]) -> None:
    """Divide DeepSeek-V3 over 2,048 GPUs of 80 GB, in machines of eight.

    Experts are 97% of the weights, and a token uses 8 of 256: each process computes four of every
    mixture, for the tokens of 64 processes, and gathers none but those that a second group of 64
    shares with it. Its layers are divided over 16 processes, since tokens of whole models would
    cross machines 61 times; products are not, as single experts are narrow. The rest of the
    weights is sharded over 128 processes and gathered once a step. Under `dual_pipe_v` the first
    process has the first and the last stage, and the bubble is 5%. Recomputation leaves the inputs
    of layers, without which the activations of the micro-batches under way would take 200 GiB.

    The sizes of the pipeline and of experts come from the paper (DeepSeek-AI, 2024,
    arXiv:2412.19437, section 3.2), which sends tokens in float8 by kernels of its own.
    """
    cfg.micro_batch_size = 1
    use_mesh(cfg, pipeline=16, shard=128, expert=64)
    use_zero2(cfg)
    use_pipeline(cfg, "dual_pipe_v")
    use_recompute(cfg)


# By hidden_dim and num_layers of the model, the machines and what divides it over them.
LARGE_MESHES: Mapping[object, Sequence[tuple[str, Sequence[Callable[[fdl.Config], None]]]]] = {
    (16_384, 126): [("[bh][12]00x1024", [share_llama3_1_405b])],
    (7168, 61): [("[bh][12]00x2048", [share_deepseek_v3])],
}
