"""Certificates, encryption keys, their Secrets and their rotation."""
