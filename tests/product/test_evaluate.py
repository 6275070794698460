"""How `make evaluate` chooses its runs. The runs themselves are too long for a test."""

import re
import subprocess
import sys

import pytest

from tests.evaluate import ROOT, RUNS, Run, main


@pytest.mark.parametrize("wanted", [["kill drills"], ["no such", RUNS[0].name]])
def test_an_unknown_run_is_refused_with_the_known_names(wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a run was started"))
    with pytest.raises(SystemExit) as ended:
        main(wanted)
    said = str(ended.value.code)
    assert said.startswith(f"no such run: {wanted[0]}; known are: ")
    assert all(run.name in said for run in RUNS)


@pytest.mark.parametrize("run", [run for run in RUNS if "pytest" in run.arguments], ids=lambda run: run.name)
def test_a_run_of_tests_collects_its_tests(run: Run) -> None:
    """`make test` leaves out the tests marked `engines`. A run that left them out too once collected nothing."""
    found = subprocess.run(
        [sys.executable, *run.arguments, "--collect-only"], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout
    last = found.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ tests? collected in .*", last), last
