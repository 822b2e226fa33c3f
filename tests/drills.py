"""The table at the end of `make drills`: what each drill claims, how long it took and how it ended."""

import pytest

REPORTS: dict[str, list[pytest.TestReport]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    REPORTS.setdefault(report.nodeid, []).append(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [("drill", "claim", "seconds", "outcome"), ("---", "---", "---:", "---")]
    for test, reports in REPORTS.items():
        file, _, name = test.partition("::test_")
        worst = next((report.outcome for report in reports if report.outcome != "passed"), "passed")
        rows.append(
            (file.removeprefix("tests/"), name.replace("_", " "), f"{sum(r.duration for r in reports):.0f}", worst)
        )
    terminalreporter.section("drills")
    for row in rows:
        terminalreporter.write_line(f"| {' | '.join(row)} |")
