"""A web page for one user of this machine: all clusters of a management cluster, live."""
