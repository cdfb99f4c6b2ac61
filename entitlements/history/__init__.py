"""Reading the audit log: finding entries, what they changed, and what they are called."""
