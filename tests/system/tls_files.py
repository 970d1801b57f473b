"""Certificates of the fixtures: what brokers show and clients trust."""

from pathlib import Path

FILES = Path(__file__).parents[1] / "fixtures" / "tls"
TRUST = FILES / "ca.pem"
SHOWN = {"grpc_tls_certificate": str(FILES / "first.pem"), "grpc_tls_key": str(FILES / "first.key")}
"""Options of a broker that takes plaintext, and TLS of clients that trust `TRUST`."""
