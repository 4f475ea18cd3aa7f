"""A pytest plugin: a test may be skipped only because the machine lacks something that it may lack.

Any other skip is a failure: a check that quietly does nothing is worse than none.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

ALLOWED = ("no GPU", "no ../shared data", "no free-threaded interpreter")


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"skipped ({reason}); only these reasons count here: {', '.join(ALLOWED)}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report
