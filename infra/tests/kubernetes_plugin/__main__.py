"""The stand-in as a program: `pulumi-resource-kubernetes`, which the engine starts."""

import sys
from importlib.metadata import version

from capelin_infra.plugin.server import serve

from .provider import KubernetesProvider

serve(sys.argv[1:], version("pulumi-kubernetes"), lambda _: KubernetesProvider())
