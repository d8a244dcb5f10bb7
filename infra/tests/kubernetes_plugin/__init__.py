"""A stand-in for the plugin of pulumi-kubernetes, for machines that cannot download that.

It serves plain resources of unchanged programs, with the real plugin's annotations. It has no
components (`yaml.v2`, `helm.v4`) and no `Patch` resources.
"""
