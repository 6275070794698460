"""What a test needs beside Python: found, skipped over on a laptop, insisted on in CI."""

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test that lacks something; where CI=true, fail it, so that nothing goes untested unseen."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (a missing part is a failure in CI)", pytrace=False)
    pytest.skip(reason)
