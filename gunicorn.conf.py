"""`gunicorn -c gunicorn.conf.py` in a checkout, which need not be installed."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from switchyard.server.conf import *  # noqa: F403
