"""The long runs themselves are made by `make evaluate`; here it is how they are chosen."""

import pytest

from tests.evaluate import RUNS, main


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
