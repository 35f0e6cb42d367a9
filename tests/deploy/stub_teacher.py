"""Stands in for taopd-teacher in quickstart_test.py. $STUB_TEACHER: a number makes it end with that before it is ready."""

import argparse
import json
import os
import signal
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--ready-file")
args, _ = parser.parse_known_args()

if os.environ.get("STUB_TEACHER"):
    print("the weights are damaged")
    sys.exit(int(os.environ["STUB_TEACHER"]))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(os.environ["STUB_LOG"], "a", encoding="utf-8") as file:
    file.write(json.dumps({"command": "teacher", "pid": os.getpid(), "model": args.model}) + "\n")
with open(args.ready_file + ".tmp", "w", encoding="utf-8") as file:
    file.write(json.dumps({"http_port": 1, "grpc_port": 4242, "pid": os.getpid()}))
os.rename(args.ready_file + ".tmp", args.ready_file)
signal.sigwait([signal.SIGTERM])
with open(os.environ["STUB_LOG"], "a", encoding="utf-8") as file:
    file.write(json.dumps({"command": "teacher ended", "pid": os.getpid()}) + "\n")
