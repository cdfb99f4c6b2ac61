"""A laptop's Cloudflare: the REST calls that the adapter uses, and a real workerd per deployment.

The real platform Worker stands in front of the real user Worker, in the real runtime. Sessions and seen
invocation ids live in one more workerd, so they survive a new deployment, as they do on the real platform.
What it does not enforce: CPU limits (a watchdog ends a process that does not answer), memory and sub-request
limits, and the isolation between customers that Cloudflare's own sandbox adds; workerd alone is not a sandbox.
"""
