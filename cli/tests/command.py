"""The `capelin` command in the test's process, since a new process takes a second to start."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
from capelin_cli.verbs import main


class Said(NamedTuple):
    """Output and exit code of the command."""

    returncode: int
    stdout: str
    stderr: str


def capelin(*arguments: str, home: Path) -> Said:
    """Run the command, with its environments in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["capelin", *arguments]),
        patch.dict(os.environ, {"XDG_STATE_HOME": str(home), "COLUMNS": "100"}),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, out.getvalue(), err.getvalue())
