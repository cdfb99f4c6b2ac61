"""Who may do what, and how much is left: accounts, tokens, tiers, overrides, the ledger."""
