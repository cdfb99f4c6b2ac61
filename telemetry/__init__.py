"""Signed usage reports: kept, verified, settled, rolled up and retained."""
