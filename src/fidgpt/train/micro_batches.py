"""The rows of an optimizer step as micro-batches, and the share of each in the step's losses."""

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fidgpt.data import Batch
from fidgpt.model.context import Division
from fidgpt.model.reports import Counts, Totals, collecting
from fidgpt.model.transformer import LanguageModel
from fidgpt.parallel import DataParallel
from fidgpt.processes import Processes
from fidgpt.processes.collectives import FusedAllReduce, Handle
from fidgpt.train.loss import NextToken


class MicroBatch(NamedTuple):
    """Sequences that one device computes at once.

    Attributes:
      batch: on the device; a mask is None if all tokens count in the loss, or none is padding.
      num_targets: number of this process's tokens that count in the loss.
      num_real: number of this process's inputs that are not padding, among the first n columns of
        the rows, by n.
      is_idle: whether it counts for nothing, and is computed only because other processes compute.
    """

    batch: Batch
    num_targets: int
    num_real: Mapping[int, int]
    is_idle: bool = False


def split_batch(
    batch: Batch, model: LanguageModel, *, size: int | None, device: torch.device, sequences: int
) -> list[MicroBatch]:
    """Split a batch, and copy it to a device at once.

    Reading a number from an accelerator waits for all queued work, and leaves it idle until Python
    has queued more. So tokens are counted where they were made, not micro-batch by micro-batch.

    Args:
      batch: on the CPU, as streams make it, or on the device.
      model: reads them, maybe divided over processes.
      size: rows of a micro-batch, at most; None for all of them.
      device: where they are computed.
      sequences: how many sequences a row holds.
    """
    size = size or max(1, len(batch.tokens))
    division = model.division
    columns = model.computed_columns(batch.tokens.shape[1] // sequences - 1)
    micro_batches = []
    for rows, copied in zip(batch.split(size), batch.to(device).split(size), strict=True):
        all_count = rows.counted is None or rows.counted.all()
        all_real = rows.real_inputs is None or rows.real_inputs.all()
        copied = Batch(
            copied.tokens, None if all_count else copied.counted, None if all_real else copied.real
        )
        rows = rows.sequences(sequences)
        num_real = {n: _num_real(rows, division, n, ahead) for n, ahead in columns.items()}
        micro_batches.append(MicroBatch(copied, _num_targets(rows, division), num_real))
    return micro_batches


def _num_targets(batch: Batch, division: Division | None) -> int:
    """Return how many of this process's targets count in the loss."""
    counted = batch.counted_targets
    targets = batch.targets if counted is None else counted
    own = targets if division is None else division.own(targets)
    return own.numel() if counted is None else int(own.sum())


def _num_real(batch: Batch, division: Division | None, num_columns: int, ahead: int) -> int:
    """Return how many of this process's inputs in the first columns are not padding."""
    columns = torch.arange(batch.inputs.shape[1]).unsqueeze(0)
    columns = (columns if division is None else division.own(columns)).squeeze(0)
    columns = columns[columns < num_columns]
    if batch.real_inputs is None:
        return len(batch.tokens) * len(columns)
    return int((batch.real_inputs[:, columns] & batch.real_inputs[:, columns + ahead]).sum())


def pad_with_idle(micro_batches: Sequence[MicroBatch], number: int) -> list[MicroBatch]:
    """Pad with idle micro-batches so that all ranks run the same number of all-gathers."""
    last = micro_batches[-1]
    row = last.batch.map(lambda rows: rows[-1:])
    nothing = dict.fromkeys(last.num_real, 0)
    idle = last._replace(batch=row, num_targets=0, num_real=nothing, is_idle=True)
    return [*micro_batches, *[idle] * (number - len(micro_batches))]


class BatchShares:
    """The shares of this process's micro-batches in the losses of an optimizer step.

    Gradients are summed over micro-batches and averaged over processes; the shares give each token
    the same weight, whichever micro-batch it is in.

    Args:
      micro_batches: micro-batches of this process.
      fused: the all-reduce that counts the tokens of all processes.
      parallel: the processes of the step.
      accumulates: whether any process has several micro-batches.
    """

    def __init__(
        self,
        micro_batches: Sequence[MicroBatch],
        fused: FusedAllReduce,
        parallel: DataParallel,
        *,
        accumulates: bool,
    ) -> None:
        self.micro_batches = micro_batches
        self.parallel = parallel
        self.accumulates = accumulates
        # Of this process: of targets, of rows, and of real inputs by the number of columns.
        self._own: dict[str | int, int] = {
            "targets": sum(each.num_targets for each in micro_batches),
            "rows": sum(len(each.batch.tokens) for each in micro_batches if not each.is_idle),
        }
        for columns in micro_batches[0].num_real:
            self._own[columns] = sum(each.num_real[columns] for each in micro_batches)
        is_alone = parallel.tokens.size == 1
        self._sums = {key: fused.sum(own) for key, own in self._own.items() if not is_alone}
        self._counted: Sequence[Handle] = ()
        self._totals: tuple[Sequence[int | Tensor], Counts] | None = None

    @functools.cached_property
    def targets_per_process(self) -> float | Float[Tensor, ""]:
        """The mean number of targets of a process, on the device if there are several."""
        total, size = self.of_all("targets"), self.parallel.tokens.size
        if isinstance(total, Tensor):
            return (total.double() / size).clamp_min(1.0)
        return max(total / size, 1.0)

    @functools.cached_property
    def is_counted(self) -> bool | Bool[Tensor, ""]:
        """Whether any token of the step counts in the loss."""
        return self.of_all("targets") > 0

    def of_all(self, counted: str | int) -> int | Int64[Tensor, ""]:
        """Return the number of `targets` or `rows` of all processes, or of real inputs.

        Args:
          counted: what is counted; a number of columns for the inputs in them that are no padding.
        """
        return self._sums[counted]().long() if self._sums else self._own[counted]

    def share_of(self, micro_batch: MicroBatch) -> "PassShare | None":
        """Return the share of a micro-batch; None if it is the whole batch."""
        return PassShare(self, micro_batch) if self.is_shared else None

    @property
    def is_shared(self) -> bool:
        """Whether there are several micro-batches, of this process or of others."""
        return self.parallel.tokens.size > 1 or self.accumulates

    def count(self, objective: NextToken, fused: FusedAllReduce) -> None:
        """Sum the counts that losses need of the whole batch before the first backward pass.

        If the model must compute them, this is a pass without gradients, which draws the same
        random numbers as the passes that follow.
        """
        self._counted = [fused.sum(count) for count in self._counts_of(objective)]

    def count_within(self, objective: NextToken, processes: Processes) -> None:
        """Sum the counts over some processes, while others sum the counts of other layers."""
        self.counted = processes.all_reduce(self._counts_of(objective))

    def of_stage(self, counted: slice) -> "BatchShares":
        """Return the same batch for the layers of a stage, with the counts that these report."""
        shares = copy.copy(self)
        vars(shares).update(counted=self.counted[counted], _totals=None)
        return shares

    def _counts_of(self, objective: NextToken) -> Counts:
        device = self.parallel.device
        sums: Counts = []
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            for micro_batch in self.micro_batches:
                with collecting() as reports:
                    batch = micro_batch.batch
                    objective.count(batch.tokens, batch.counted, batch.real)
                if not micro_batch.is_idle:
                    own = reports.counted
                    sums = [a + b for a, b in zip(sums, own, strict=True)] if sums else own
        return sums

    @functools.cached_property
    def counted(self) -> Sequence[Tensor]:
        """The counts, summed over all processes; empty if nothing was counted."""
        return [total() for total in self._counted]

    def totals(
        self, fixed: Sequence[int], counted: Counts, *, num_rows: int
    ) -> tuple[Sequence[int | Tensor], Counts]:
        """Return the sums of counts of a micro-batch over all micro-batches of all processes."""
        if self._totals is None:
            # Counts that depend on a micro-batch's shape only are in proportion to its rows.
            rows = max(1, num_rows)
            rows_of_all = self.of_all("rows")
            totals: Sequence[int | Tensor] = [n * rows_of_all // rows for n in fixed]
            if (sharing := self.parallel.places.rows).size > 1:
                device = self.parallel.device  # parts of sequences may be of unequal lengths
                own = [torch.full((), n // rows, dtype=torch.int64, device=device) for n in fixed]
                totals = [n * rows_of_all // sharing.size for n in sharing.all_reduce(own)]
            self._totals = totals, self.counted or self.parallel.tokens.all_reduce(counted)
        return self._totals


class PassShare:
    """The `Share` of a micro-batch."""

    def __init__(self, batch: BatchShares, micro_batch: MicroBatch) -> None:
        self.num_processes = batch.parallel.tokens.size
        self._batch = batch
        self._micro_batch = micro_batch
        self._of_sequences: Counts | None = None

    @property
    def of_targets(self) -> float | Float[Tensor, ""]:
        """The fraction of the tokens that count in the loss, times the number of processes."""
        return self._micro_batch.num_targets / self._batch.targets_per_process

    @property
    def is_counted(self) -> bool | Bool[Tensor, ""]:
        """Whether any token of the step counts in the loss."""
        return self._batch.is_counted

    def of_real(self, columns: int) -> float | Float[Tensor, ""]:
        """Return the fraction of the tokens that are no padding, times the number of processes."""
        count, total = self._micro_batch.num_real[columns], self._batch.of_all(columns)
        total = total.clamp_min(1) if isinstance(total, Tensor) else max(1, total)
        return count * self.num_processes / total

    def totals(self, fixed: Sequence[int], counted: Counts, by_sequence: Counts) -> Totals:
        """Return the sums of these counts over the step, or the processes that share sequences."""
        if self._of_sequences is None:
            self._of_sequences = self._batch.parallel.places.rows.all_reduce(by_sequence)
        num_rows = len(self._micro_batch.batch.tokens)
        return *self._batch.totals(fixed, counted, num_rows=num_rows), self._of_sequences
