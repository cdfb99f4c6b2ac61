"""How dates are written wherever Django formats them: its own locales would win over settings otherwise."""
