"""Schemathesis: requests that the OpenAPI document allows and others that it does not, all of them answered as it says."""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

url, paths = sys.argv[1:]
program = Path(find_spec("schemathesis").origin).parent.parent / "bin" / "st"
config = Path(__file__).with_name("schemathesis.toml")
# It leaves notes where it runs.
with tempfile.TemporaryDirectory() as folder:
    command = [sys.executable, program, "--config-file", config, "run", f"{url}/openapi.json"]
    bounds = ["--max-examples=10", "--max-time=20", "--request-timeout=20", "--generation-deterministic"]
    phases = ["--phases=examples,coverage,fuzzing", f"--include-path-regex={paths}", "--no-color", "--no-shrink"]
    sys.exit(subprocess.run([*command, *bounds, *phases], cwd=folder).returncode)
