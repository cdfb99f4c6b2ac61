"""The AWS that a laptop needs: Bedrock AgentCore of our own, and moto for S3, Secrets Manager, IAM and STS.

One address for all services. What it does as AWS does, because product code relies on it: requests are checked
against botocore's own model (names, types, ranges, patterns), signatures are checked, a role may do only what its
policies and its boundary allow at that moment, names are taken once, a clientToken answers the same again, things
become ready after a while, a new role is not trusted for a moment, a session is a process of its own with the code
of its version, an agent's 4xx and 5xx become a 424, streams pass through as they come.

What it does not: it is no sandbox (agents and interpreted code run as its own user, with its network), there is no
CPU or memory limit, Node is the one of this machine and not 22, arm64 is only looked for in ELF headers, policy
changes act at once (AWS says they may take minutes), quotas and rates are not enforced, a browser session has an
address that no browser answers, each run of an interpreter starts with nothing of the one before, memory keeps
events and extracts nothing. Conditions in policies are read for equality, likeness, ARNs and dates; any other denies
and never allows. Nothing can be updated. Stricter than AWS: unknown parameters are refused, code needs its versionId.
Runtimes, roles, secrets, tool sessions and events outlive a restart; running sessions and objects in S3 do not.
"""
