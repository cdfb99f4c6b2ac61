"""What runs in front of a Python agent on AgentCore; standard library only, Python 3.10 and newer."""
