"""The effect of a change on Clusters, before anyone makes the change."""
