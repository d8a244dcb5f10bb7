"""What Pulumi's host of Python programs asks pip for, in an environment that has no pip.

`python -m pip list -v --format json`, for environments that uv made. Later hosts ask uv.
"""

import json
import sys
from importlib.metadata import distributions

if sys.argv[1:2] != ["list"]:
    sys.exit(f"only `list` can be had here, not {sys.argv[1:]}")
listed = [
    {"name": each.name, "version": each.version, "location": str(each.locate_file(""))}
    for each in distributions()
]
sys.stdout.write(json.dumps(listed))
