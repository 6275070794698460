"""The long runs themselves are made by `make evaluate`; here it is how they are chosen."""

import re
import subprocess
import sys

import pytest

from tests.evaluate import ROOT, RUNS, Run, main


@pytest.mark.parametrize("wanted", [["kill drills"], ["no such", RUNS[0].name]])
def test_a_name_that_fits_no_run_is_told_with_those_that_there_are(
    wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("nothing is run"))
    with pytest.raises(SystemExit) as ended:
        main(wanted)
    said = str(ended.value.code)
    assert said.startswith(f"no such run: {wanted[0]}; known are: ")
    assert all(run.name in said for run in RUNS)


@pytest.mark.parametrize("run", [run for run in RUNS if "pytest" in run.arguments], ids=lambda run: run.name)
def test_a_run_of_tests_leaves_none_of_its_files_out(run: Run) -> None:
    """Tests of further engines are left out of `make test`; a run that left them out too had none at all."""
    found = subprocess.run(
        [sys.executable, *run.arguments, "--collect-only"], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout
    last = found.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ tests? collected in .*", last), last
