"""Become another program that does not outlive its parent. Run as a file, never imported.

A program between fork and exec, because `subprocess`' preexec_fn is not safe beside threads.

    python leash.py PARENT_PID DEATH_SIGNAL UID:GID|- PROGRAM ARGUMENT...
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Take the user's identity, ask the kernel for a signal at the parent's death, become the program."""
    parent, signal_number, identity, *command = sys.argv[1:]
    if identity != "-":
        uid, gid = map(int, identity.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the identity: a change of user clears the setting.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit("The parent died before this child was ready.")
    os.execv(command[0], command)  # noqa: S606 - becoming the program is the point


if __name__ == "__main__":
    main()
