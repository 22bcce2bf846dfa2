"""The browser that opens pages, where there is one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from .browser import Browser


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = shutil.which("chromium")
    if program is None:
        if "CI" in os.environ:
            pytest.fail("this test needs the program 'chromium', and CI must not go without it")
        pytest.skip("there is no program 'chromium' here; install it to see the page in a browser")
    return Browser(program, tmp_path)
