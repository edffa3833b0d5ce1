"""The job `signals`: decodes the frames of a lake with `pcaplake.signals`, on executors.

Writes the tables `signals`, `signal_catalog` and `signals_<message>`.
"""

from .pipeline import SignalOptions, SignalReport, run

__all__ = ["SignalOptions", "SignalReport", "run"]
