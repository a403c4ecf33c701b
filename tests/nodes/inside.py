"""`python -m tests.nodes.inside PID MODULE …`: run a module in the box of a process."""

import runpy
import sys

from tests.nodes.boxes import enter

enter(sys.argv[1])
module, *sys.argv[1:] = sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
