"""Imported before processes are forked: what each of them would measure and look up again."""

import torch

from fidgpt.data import StandardLibrary
from fidgpt.train.device import peak_flops

StandardLibrary().identity()
_threads = torch.get_num_threads()
torch.set_num_threads(1)  # a pool of threads does not survive a fork
for _dtype in (torch.float32, torch.bfloat16):
    peak_flops(torch.device("cpu"), _dtype)
torch.set_num_threads(_threads)
