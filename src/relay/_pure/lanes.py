"""Lanes: the course of a batch that every one takes, from when its lane takes it until its answers are sent.

A lane (`_lane`) works with a station (`_station`), which chooses the members and learns from the runs, and makes a
batch under way of them (`_running`). Each belongs to one lane; what other threads may do is said in `relay.running`.
"""

from relay._pure._lane import LaneBase
from relay._pure._running import BatchView, RunningBase
from relay._pure._station import CLOSED_GROUP, OVERHEAD_NS, StationBase

__all__ = ["CLOSED_GROUP", "OVERHEAD_NS", "BatchView", "LaneBase", "RunningBase", "StationBase"]
