"""Finds the request of a response: state of a capture, so that it does not matter where morsels end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .buses import PREFIX as BUS
from .kernels import encoding
from .pairing import PREFIX, Pairing
from .row_keys import KEY_BYTES, key_words, row_keys
from .row_values import RowValues

NO_TIME = int(encoding.NO_TIME)  # compared faster than a number of numpy
MOST_OPEN = 4096  # requests of a capture that wait for a response
Key = bytes
Request = tuple[int, int, int]  # number and time of its packet; when it, or a response that left it open, was captured


class OpenRequests:
    """The requests of one table that are open in a capture. The oldest is closed if there are too many."""

    def __init__(self, pairing: Pairing, partners: Mapping[int, int]) -> None:
        self.pairing, self._partners = pairing, partners
        self._open: dict[Key, Request] = {}  # the oldest first

    def match(self, values: RowValues) -> dict[str, tuple[Any, Any]]:
        """The columns of rows in the order of the capture, each as values int64[n] and whether they are known.

        values: the columns are those of `Pairing.columns`, and of the buses.
        """
        read = {name.removeprefix(PREFIX): column for name, column in values.columns.items()}
        responds, pending = read["response"] != 0, read["pending"].tolist()
        responded = responds.tolist()
        senders, receivers = ([read[name] for name in read if name.startswith(end)] for end in ("sender", "receiver"))
        # rule: a response goes the way of its request back
        ends = [*np.where(responds, [receivers, senders], [senders, receivers])]
        buses = (column for name, column in read.items() if name.startswith(BUS))
        # rule: messages of two interfaces, or of two buses, have nothing in common
        common = (values.interfaces, *buses, read["subject"])
        channels = read["channel"]
        if self._partners:
            channels = np.array([self._partners.get(channel, channel) for channel in channels.tolist()])
        columns = [*common, *(column for end in ends for column in end), channels]
        keys = row_keys(key_words(columns))
        numbers, times = values.numbers.tolist(), values.times.tolist()
        requests = list(zip(numbers, times, times, strict=True))
        size, to_group = KEY_BYTES * (len(common) + len(senders)), (read["group"] != 0) | (channels < 0)
        request_no, latency = np.zeros(len(keys), np.int64), np.full(len(keys), -1, np.int64)
        first = 0
        for i in np.flatnonzero(responds | to_group).tolist():
            if first < i:
                self._add(keys[first:i], requests[first:i])
            first = i + 1
            key, time = keys[i], times[i]
            if not responded[i]:
                # rule: a request to a group has no receiver
                self._add([key[:size]], [requests[i]])
                continue
            request = self._find(key, time)
            if request is None:
                key = key[:size]
                request = self._find(key, time)
                if request is None:
                    continue
            request_no[i] = request[0]
            if NO_TIME not in (time, request[1]):
                latency[i] = (time - request[1]) // 1000
            # rule: a pending response keeps the request open
            if pending[i]:
                self._open[key] = *request[:2], time
            # rule: a group may respond more than once
            elif len(key) != size:
                del self._open[key]
        self._add(keys[first:], requests[first:])
        # rule: a clock may go backwards
        known = latency >= 0
        return {self.pairing.packet_no: (request_no, request_no > 0), self.pairing.latency_us: (latency, known)}

    def _add(self, keys: Sequence[Key], requests: Sequence[Request]) -> None:
        """Requests that follow each other. One that is made again is the latest."""
        for key, request in zip(keys, requests, strict=True):
            self._open.pop(key, None)
            self._open[key] = request
        # rule: open requests are bounded
        if len(self._open) > MOST_OPEN:
            for key in list(itertools.islice(self._open, len(self._open) - MOST_OPEN)):
                del self._open[key]

    def _find(self, key: Key, time: int) -> Request | None:
        request = self._open.get(key)
        # rule: a late response belongs to no request
        if request and NO_TIME not in (time, request[2]) and time - request[2] > self.pairing.timeout_ns:
            del self._open[key]
            return None
        return request
