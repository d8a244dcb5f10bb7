"""The part of pip that Pulumi's Python host needs, for an environment without pip.

`python -m pip list -v --format json`, for environments that uv made. Later hosts ask uv.
"""

import json
import sys
from importlib.metadata import distributions

if sys.argv[1:2] != ["list"]:
    sys.exit(f"only `list` is available here, not {sys.argv[1:]}")
listed = [
    {"name": each.name, "version": each.version, "location": str(each.locate_file(""))}
    for each in distributions()
]
sys.stdout.write(json.dumps(listed))
