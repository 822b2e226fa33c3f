"""The table at the end of `make drills`: what each drill claims, its tries and losses, how long it took.

`--drill-report=FILE` also writes it to a file.
"""

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import pytest

REPORTS: dict[str, list[pytest.TestReport]] = {}
HEAD = ("drill", "claim", "tries", "losses", "seconds")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--drill-report", default="", help="a file for the table")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    REPORTS.setdefault(report.nodeid.partition("[")[0], []).append(report)


def rows() -> list[tuple[str, ...]]:
    """A row for each drill; the cases of one are counted together.

    A drill counts its tries and losses with the fixture `tally`; for others a case is a try, and a failed one a loss.
    """
    found = []
    for test, reports in REPORTS.items():
        file, _, name = test.partition("::test_")
        cases = {report.nodeid for report in reports}
        failed = {report.nodeid for report in reports if report.failed}
        skipped = {report.nodeid for report in reports if report.skipped}
        counted = [dict(report.user_properties) for report in reports if report.when == "call"]
        tries = sum(int(c["tries"]) for c in counted if "tries" in c) or len(cases - skipped)
        losses = max(sum(int(c["losses"]) for c in counted if "losses" in c), len(failed))
        seconds = f"{sum(report.duration for report in reports):.0f}"
        skips = f" ({len(skipped)} skipped)" if skipped else ""
        found.append((file.removeprefix("tests/"), name.replace("_", " "), f"{tries}{skips}", str(losses), seconds))
    return sorted(found, key=lambda row: row[0])


def table() -> str:
    """The table in Markdown."""
    lines = [HEAD, ("---", "---", "---:", "---:", "---:"), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def where() -> str:
    """The machine and the date, for the head of the file."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = [line.partition(":") for line in info.read_text().splitlines()]
        model = next((value.strip() for name, _, value in fields if name.strip() == "model name"), model)
    versions = f"Python {platform.python_version()}, jax {version('jax')}"
    return f"{os.cpu_count()} cores of {model}, {versions}, {time.strftime('%d %B %Y')}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("drills")
    for line in table().splitlines():
        terminalreporter.write_line(line)
    name = terminalreporter.config.getoption("drill_report")
    if name:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"{where()}\n\n{table()}\n", encoding="utf-8")
