"""A laptop's Cloudflare: the REST calls that the adapter uses, and a real workerd per agent.

The real platform Worker stands in front of the real user Worker, in the real runtime. What it does not
enforce: CPU limits (an endless loop is ended by the clock, with its process), sub-request limits, and the
isolation between customers that Cloudflare's own sandbox adds; workerd alone is not a sandbox. All workers
of an agent share one process, so sessions survive a new deployment as they do on the real platform, and
only one deployment of an agent runs at a time.
"""
