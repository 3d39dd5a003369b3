"""The program that every config here configures: plain classes, which know of no config system."""

from typing import Any


class Part:
    """Equal to another of its class that has equal attributes."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # as for every mutable value


class Rope(Part):
    """Rotates queries and keys."""

    def __init__(self, *, theta: float, scaling: float, max_len: int) -> None:
        self.theta = theta
        self.scaling = scaling
        self.max_len = max_len


class Norm(Part):
    """Scales activations."""

    def __init__(self, *, hidden_dim: int, eps: float, affine: bool) -> None:
        self.hidden_dim = hidden_dim
        self.eps = eps
        self.affine = affine


class Attention(Part):
    """Mixes tokens."""

    def __init__(
        self,
        *,
        hidden_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
        bias: bool,
        dropout: float,
        kernel: str,
        rope: Rope,
    ) -> None:
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.window = window
        self.bias = bias
        self.dropout = dropout
        self.kernel = kernel
        self.rope = rope


class Mlp(Part):
    """Mixes channels."""

    def __init__(
        self,
        *,
        hidden_dim: int,
        ffn_dim: int,
        activation: str,
        bias: bool,
        dropout: float,
        init_std: float,
    ) -> None:
        self.hidden_dim = hidden_dim
        self.ffn_dim = ffn_dim
        self.activation = activation
        self.bias = bias
        self.dropout = dropout
        self.init_std = init_std


class Block(Part):
    """A layer: 27 values with those of its parts."""

    def __init__(
        self,
        *,
        residual_scale: float,
        drop_path: float,
        recompute: bool,
        placement: str,
        attention_norm: Norm,
        attention: Attention,
        mlp_norm: Norm,
        mlp: Mlp,
    ) -> None:
        self.residual_scale = residual_scale
        self.drop_path = drop_path
        self.recompute = recompute
        self.placement = placement
        self.attention_norm = attention_norm
        self.attention = attention
        self.mlp_norm = mlp_norm
        self.mlp = mlp


class Embedding(Part):
    """A vector for each token."""

    def __init__(self, *, vocab_size: int, hidden_dim: int, init_std: float, scale: float) -> None:
        self.vocab_size = vocab_size
        self.hidden_dim = hidden_dim
        self.init_std = init_std
        self.scale = scale


class Unembedding(Part):
    """Logits for each token."""

    def __init__(self, *, vocab_size: int, hidden_dim: int, bias: bool, soft_cap: float) -> None:
        self.vocab_size = vocab_size
        self.hidden_dim = hidden_dim
        self.bias = bias
        self.soft_cap = soft_cap


class Gpt(Part):
    """The model."""

    def __init__(
        self,
        *,
        hidden_dim: int,
        vocab_size: int,
        max_len: int,
        dtype: str,
        embedding: Embedding,
        blocks: list[Block],
        final_norm: Norm,
        unembedding: Unembedding,
    ) -> None:
        self.hidden_dim = hidden_dim
        self.vocab_size = vocab_size
        self.max_len = max_len
        self.dtype = dtype
        self.embedding = embedding
        self.blocks = blocks
        self.final_norm = final_norm
        self.unembedding = unembedding


class Optimizer(Part):
    """AdamW."""

    def __init__(
        self,
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        fused: bool,
        amsgrad: bool,
        foreach: bool,
    ) -> None:
        self.learning_rate = learning_rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps
        self.weight_decay = weight_decay
        self.fused = fused
        self.amsgrad = amsgrad
        self.foreach = foreach


class Schedule(Part):
    """The learning rate over the steps."""

    def __init__(
        self, *, warmup_steps: int, num_steps: int, decay_steps: int, min_ratio: float, shape: str
    ) -> None:
        self.warmup_steps = warmup_steps
        self.num_steps = num_steps
        self.decay_steps = decay_steps
        self.min_ratio = min_ratio
        self.shape = shape


class Data(Part):
    """Batches of tokens."""

    def __init__(
        self,
        *,
        path: str,
        split: str,
        tokenizer: str,
        seq_len: int,
        batch_size: int,
        seed: int,
        num_workers: int,
        shuffle: bool,
    ) -> None:
        self.path = path
        self.split = split
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.num_workers = num_workers
        self.shuffle = shuffle


class Checkpoints(Part):
    """Where and when the state is saved."""

    def __init__(self, *, directory: str, every: int, keep: int, wait: bool) -> None:
        self.directory = directory
        self.every = every
        self.keep = keep
        self.wait = wait


class Trainer(Part):
    """The root: 27 values a block, and 48 others."""

    def __init__(
        self,
        *,
        run_name: str,
        num_steps: int,
        seed: int,
        precision: str,
        max_grad_norm: float,
        log_every: int,
        eval_every: int,
        compile: bool,
        model: Gpt,
        optimizer: Optimizer,
        schedule: Schedule,
        data: Data,
        checkpoints: Checkpoints,
    ) -> None:
        self.run_name = run_name
        self.num_steps = num_steps
        self.seed = seed
        self.precision = precision
        self.max_grad_norm = max_grad_norm
        self.log_every = log_every
        self.eval_every = eval_every
        self.compile = compile
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.data = data
        self.checkpoints = checkpoints


def value_at(root: Any, path: str) -> Any:
    """What lies at a path such as `model.blocks[3].mlp.ffn_dim` of objects or containers."""
    for name in path.replace("[", ".").replace("]", "").split(".") if path else ():
        if isinstance(root, dict):
            root = root[name]
        else:
            root = root[int(name)] if name.isdigit() else getattr(root, name)
    return root


def assign(root: Any, changes: dict[str, Any]) -> Any:
    """Sets attributes at paths, as Python does; returns the root."""
    for path, value in changes.items():
        above, _, name = path.rpartition(".")
        setattr(value_at(root, above), name, value)
    return root
