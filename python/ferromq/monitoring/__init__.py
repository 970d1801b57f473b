"""Metrics and health checks of servers, over HTTP."""
