"""For all tests: hypothesis profiles, options, what cannot be told to be quiet otherwise."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.aws import aws
from tests.guard import guarded

if TYPE_CHECKING:
    from tests.drives import Drive

__all__ = ["aws"]

settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--moments", type=int, default=6, help="random moments at which an ingest is killed")
    parser.addoption("--schedules", type=int, default=150, help="random schedules of the model of a fleet")
    parser.addoption("--torture", action="store_true", help="leave nothing out, however long it takes")


ALONE = {"spark_jobs", "k8s"}  # folders whose tests share what there is once: a JVM, a cluster
APART = {  # modules of these folders that need none, or start their own: any process may run them
    f"tests/spark_jobs/{name}.py"
    for name in (
        *(
            "common/test_job",
            "common/test_jvm",
            "logstore/test_logstore",
            "logstore/test_stock",
            "quality/test_browser",
        ),
        *("test_first_hour", "test_modules_of_a_user", "test_proof"),
    )
}

KINDS = {"integration": "services", "spark_jobs": "spark", "k8s": "cluster"}  # folders whose tests all need the same
SLOW_FIXTURES = {"drive", "wheel"}  # a sample drive that is ingested, a wheel that is built


SECONDS = {"unit": 0.05, "services": 1.0, "spark": 2.0, "cluster": 10.0}  # CPU time of a test of each kind, roughly
SLOW_SECONDS = 5.0  # of a test that is marked `slow`


def scope_of(nodeid: str) -> str:
    """The module of a test, or its folder: what one process runs."""
    module = nodeid.split("::")[0]
    folder = module.split("/")[1]
    return folder if folder in ALONE and module not in APART else module


class ByModule(LoadScopeScheduling):
    """For `-n`: a module's tests stay in one process, so that its fixtures are made once; a folder of ALONE, too,
    but for the modules APART.

    Not by xdist_group: xdist 3.8 writes the group into what pytest 9.2 does not read any more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test whose process ended has failed. xdist 3.8 would run it again in the next process, and in all after it."""
        units = self.assigned_work.pop(node)
        ended = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        if ended is not None:
            units[self._split_scope(ended)][ended] = True
            self.workqueue.update((scope, unit) for scope, unit in units.items() if not all(unit.values()))
            for other in self.assigned_work:
                self._reschedule(other)
        return ended

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """A process that replaces one that ended, and finds other tests than it, gets no work; the others go on."""
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            differing = sorted(set(collection) ^ set(self.collection or ()))
            print(f"{node.gateway.id} found other tests, or another order: {differing[:20]}", file=sys.stderr)
            node.shutdown()

    def _reschedule(self, node: WorkerController) -> None:
        """Without work as long as it has not found the tests: xdist 3.8 would end with an internal error.

        A process waits for its next test before it runs one. xdist 3.8 gives a new process one module, and if this has one
        test, and others are left, both would wait for ever.
        """
        if node in self.registered_collections:
            super()._reschedule(node)
            if self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByModule | None:
    if config.getoption("dist") != "loadscope":
        return None
    config.option.loadscopereorder = (
        False  # xdist would begin with the modules of most tests; `_longest_first` has an order
    )
    return ByModule(config, log)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    from tests import wheels

    session = tmp_path_factory.getbasetemp()
    return wheels.build_once(session.parent if "PYTEST_XDIST_WORKER" in os.environ else session)


@pytest.fixture(scope="session")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """Made once; nobody may change it. Every table gets rows."""
    from tests.drives import ingested

    return ingested(tmp_path_factory.mktemp("drive"), "drive", 0.4, vehicles=2)


@pytest.fixture(scope="session")
def bus_drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """CAN, LIN and SOME/IP: six tables get rows, so an ingest takes a third of the time. One capture of each vehicle."""
    from tests.drives import ingested

    return ingested(tmp_path_factory.mktemp("bus-drive"), "c", 0.02, vehicles=8)


@pytest.fixture(scope="session", autouse=True)
def _clients_are_quick() -> Iterator[None]:
    from tests.aws_clients import share_what_clients_read  # imports botocore

    with pytest.MonkeyPatch.context() as patch:
        share_what_clients_read(patch)
        yield


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are no part of an id: gzip writes the time into them, and processes must find the same tests."""
    return argname if isinstance(val, bytes) else None


def kind_of(item: pytest.Item) -> str:
    """The mark of a test: what it needs besides Python."""
    folder = item.nodeid.split("/")[1]
    if item.get_closest_marker("unit") is not None:  # a module in one of these folders may say so
        return "unit"
    if folder in KINDS:
        return KINDS[folder]
    return "services" if "aws" in getattr(item, "fixturenames", ()) else "unit"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test gets the mark of its kind. What only `make torture` has time for is left out, not skipped.

    A skip is a test that could not run.
    """
    for item in items:
        if item.nodeid.split("::")[0] in APART and "spark" in getattr(item, "fixturenames", ()):
            raise pytest.UsageError(f"{item.nodeid} needs the one JVM: its module must not be in APART")
        item.add_marker(kind_of(item))
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    if not config.getoption("--torture"):
        out = [item for item in items if item.get_closest_marker("torture") is not None]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item.get_closest_marker("torture") is None]
    if hasattr(config, "workerinput"):  # a process of `-n`
        _longest_first(items)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: without this, each full collection of garbage looks at all of it."""
    gc.collect()
    gc.freeze()


def _longest_first(items: list[pytest.Item]) -> None:
    """The modules that take longest begin, so that no process is left with one of them while the others have ended."""
    seconds: Counter[str] = Counter()
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        seconds[scope_of(item.nodeid)] += SLOW_SECONDS if slow else SECONDS[kind_of(item)]
    items.sort(key=lambda item: -seconds[scope_of(item.nodeid)])


def _guard(item: pytest.Item) -> AbstractContextManager[None]:
    if item.get_closest_marker("unit") is None:
        return nullcontext()
    return guarded(quick=item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _guard(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _guard(item):
        yield


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> int:
    """At how many random moments an ingest is killed."""
    count: int = request.config.getoption("--moments")
    return count


@pytest.fixture
def schedules(request: pytest.FixtureRequest) -> int:
    """How many random schedules the model of a fleet goes through."""
    count: int = request.config.getoption("--schedules")
    return count


@pytest.fixture(scope="session")
def torture(request: pytest.FixtureRequest) -> bool:
    """Whether time does not matter."""
    return bool(request.config.getoption("--torture"))
