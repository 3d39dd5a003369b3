"""Optimizers, parameter groups and schedules."""

from fidgpt.optim.adafactor import *
from fidgpt.optim.adam import *
from fidgpt.optim.groups import *
from fidgpt.optim.lion import *
from fidgpt.optim.muon import *
from fidgpt.optim.rules import *
from fidgpt.optim.schedules import *
from fidgpt.schedule import *
