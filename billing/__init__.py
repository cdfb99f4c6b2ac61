"""Stripe: checkout, portal, webhook inbox, and from a subscription to a tier."""
