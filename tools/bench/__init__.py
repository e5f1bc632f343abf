"""Measures contenders in turns: `kernelmint bench`. A family's tools.py takes from here what it
gives it."""

from .driver import print_times
from .hooks import Contender, Inputs, Problem, Results, difference
from .measure import Call

__all__ = ["Call", "Contender", "Inputs", "Problem", "Results", "difference", "print_times"]
