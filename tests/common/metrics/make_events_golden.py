"""Writes events_golden.tfevents with TensorBoard's own messages and record writer.

Versions: tensorboard 2.21.0, protobuf as it asks for; Python 3.11.
    pip install tensorboard==2.21.0
    python make_events_golden.py
"""

import pathlib

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

WALL_TIME = 1767225600.25


def main():
    events = [Event(wall_time=WALL_TIME, file_version="brain.Event:2")]
    start = SessionLog(status=SessionLog.START)
    events.append(Event(wall_time=WALL_TIME, step=300, session_log=start))
    scalars = [("loss/mean", 0.25), ("loss/grad_norm", float("inf")), ("optim/lr", 1e-6)]
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
    events.append(Event(wall_time=WALL_TIME, step=300, summary=Summary(value=values)))
    with open(pathlib.Path(__file__).parent / "events_golden.tfevents", "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
