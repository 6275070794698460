"""The user's message templates: a folder, read as a whole and tried on samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from monitor.messages.own import REPLACEABLE, OwnTemplate
from monitor.types import Monitor

NAMES = ", ".join(f"{name}.txt" for name in REPLACEABLE)


def read_templates(folder: Path) -> tuple[list[OwnTemplate], list[str]]:
    """(templates, mistakes) of a folder; hidden files are ignored.

    Raises:
        ValueError: it is not a readable folder.
    """
    try:
        files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        raise ValueError("there is no folder {file}") from None
    except OSError as error:
        raise ValueError(f"the folder {{file}} cannot be read ({error.strerror})") from None
    found, mistakes = list[OwnTemplate](), list[str]()
    for path in files:
        if path.suffix != ".txt" or path.stem not in REPLACEABLE:
            mistakes.append(f"{path}: replaces no template; rename it to one of {NAMES}, or remove it")
            continue
        try:
            found.append(OwnTemplate(path.stem, str(path), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            mistakes.append(f"{path}: is not UTF-8")
        except OSError as error:
            mistakes.append(f"{path}: cannot be read ({error.strerror}); let this user read it")
    if not files:
        raise ValueError(f"the folder {{file}} has no template; put {NAMES} there, or remove this key")
    return found, mistakes


def faults_of(own: Sequence[OwnTemplate], monitors: Sequence[Monitor]) -> list[str]:
    """What is wrong with templates, tried on monitors that differ in label names or in having a runbook."""
    from monitor.messages.notification import About
    from monitor.messages.samples import faults

    unlike = {(tuple(name for name, _ in m.labels), bool(m.runbook_url)): m for m in monitors}
    return faults(own, [About(m.name, m.labels, m.runbook_url, "http://localhost/") for m in unlike.values()])
