"""The programs that only the command uses: kind, and crane."""

from pathlib import Path
from typing import Final

from capelin_embedded.binaries import COMPONENTS, Component, Project

_MODULES: Final = Path(__file__).parent / "modules"

KIND: Final = Component(
    "kind",
    Project("kind", "kind", sources={}, stamps={}, modules=_MODULES),
    "sigs.k8s.io/kind",
    version_arguments=("version",),
)
CRANE: Final = Component(
    "crane",
    Project("crane", "crane", sources={}, stamps={}, modules=_MODULES),
    "github.com/google/go-containerregistry/cmd/crane",
)
PROGRAMS: Final = {**COMPONENTS, KIND.name: KIND, CRANE.name: CRANE}
"""All programs that the command can get, by name."""
