"""Optimizers, parameter groups and schedules."""

from fidgpt.optim.adafactor import *
from fidgpt.optim.groups import *
from fidgpt.optim.muon import *
from fidgpt.optim.normuon import *
from fidgpt.optim.optima import *
from fidgpt.optim.optimizers import *
from fidgpt.optim.schedules import *
from fidgpt.schedule import *
