"""`python -m switchyard` runs the `switchyard` command. With gunicorn's arguments, or without
arguments, it runs a server.
"""

import signal
import sys


def run() -> None:
    arguments = sys.argv[1:]
    is_gunicorn = not arguments or (
        arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")
    )
    if is_gunicorn:
        # Until gunicorn handles signals, Ctrl-C ends the process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        from gunicorn.app import wsgiapp

        sys.argv[1:1] = ["-c", "python:switchyard.server.conf"]
        wsgiapp.run(prog="switchyard")
    else:
        from switchyard.cli import main

        main(prog_name="switchyard")


if __name__ == "__main__":
    run()
