"""Verbs: receive, process, roll up, close, verify, forget."""
