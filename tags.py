"""Tags: quantities that are set once, each with a tag named after it.

A parameter with a tag and a value sets the quantity; one with a tag and no value inherits it from
the nearest enclosing component that sets it (see `fidgpt.graph.bind`). Tags with `may_change` may
change when a run is resumed (see `fidgpt.graph.permissions`).
"""

import fiddle as fdl


class HiddenDim(fdl.Tag):
    """Width of the residual stream, in elements."""


class HeadDim(fdl.Tag):
    """Size of one attention head, in elements."""


class NumLayers(fdl.Tag):
    """Depth of the model, in blocks."""


class Window(fdl.Tag):
    """Sliding-window size of attention, in tokens, including the query."""


class Theta(fdl.Tag):
    """Base of RoPE's wavelengths."""


class ScoreCap(fdl.Tag):
    """Cap of attention scores before the softmax."""


class LogitCap(fdl.Tag):
    """Cap of the logits."""


class Rank(fdl.Tag):
    """Rank of low-rank adapters."""


class NumKVHeads(fdl.Tag):
    """Key and value heads per layer; must divide the query heads."""


class NumExperts(fdl.Tag):
    """Experts per layer."""


class TopK(fdl.Tag):
    """Experts per token."""


class VocabSize(fdl.Tag):
    """Rows of the embedding, in tokens; a tokenizer may use fewer."""


class SeqLen(fdl.Tag):
    """Length of a training sequence, in tokens."""


class Dropout(fdl.Tag):
    """Probability of dropping an element in training, from 0 to 1."""

    may_change = "restart"


class InitStd(fdl.Tag):
    """Standard deviation of initial weights."""


class NumSteps(fdl.Tag):
    """Length of the run, in optimizer steps."""

    may_change = "restart"


class TokensPerParameter(fdl.Tag):
    """Tokens of the run for each parameter that a token uses, which determine its steps."""

    may_change = "restart"
    FIDDLER = "train_for(tokens_per_parameter={})"  # where no parameter carries the tag


class WarmupSteps(fdl.Tag):
    """Warm-up of the learning rate, in optimizer steps."""

    may_change = "restart"


class BatchSize(fdl.Tag):
    """Sequences per optimizer step, over all ranks and micro-batches."""


class LearningRate(fdl.Tag):
    """Peak learning rate, per step."""

    may_change = "restart"


class WeightDecay(fdl.Tag):
    """Decoupled weight decay, per unit of learning rate."""

    may_change = "restart"


class LabelSmoothing(fdl.Tag):
    """Fraction of every target that is spread over all tokens, from 0 to below 1."""

    may_change = "restart"


class MaxGradValue(fdl.Tag):
    """Largest absolute value of a gradient's elements."""

    may_change = "restart"


class AverageBeta(fdl.Tag):
    """Decay rate of averaged weights per step, from 0 to below 1."""

    may_change = "restart"


class Seed(fdl.Tag):
    """Seed from which all random numbers are derived."""


class ReplicateSize(fdl.Tag):
    """Copies of the model, each with its own rows of a batch; -1 for the processes left."""

    may_change = "restart"


class ShardSize(fdl.Tag):
    """Processes that share the weights of one copy, each with its own rows; -1 for those left."""

    may_change = "restart"


class ContextSize(fdl.Tag):
    """Processes that share the tokens of each sequence; -1 for those left."""

    may_change = "restart"


class TensorSize(fdl.Tag):
    """Processes that share each matrix product; -1 for those left."""

    may_change = "restart"


class PipelineSize(fdl.Tag):
    """Processes that share the layers of one copy; each has some of them."""

    may_change = "restart"


class ExpertSize(fdl.Tag):
    """Processes of shard x context that share the experts of mixtures."""

    may_change = "restart"
