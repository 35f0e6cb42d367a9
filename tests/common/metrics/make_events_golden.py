"""Writes events_golden.tfevents with TensorBoard's own messages and record writer.

Versions: tensorboard 2.21.0, protobuf as it asks for; Python 3.11.
    pip install tensorboard==2.21.0
    python make_events_golden.py
"""

import pathlib

from tensorboard.compat.proto import summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata, plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

WALL_TIME = 1767225600.25


def plugin_value(tag, plugin, content, tensor):
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return Summary.Value(tag=tag, tensor=tensor,
                         metadata=summary_pb2.SummaryMetadata(plugin_data=data, data_class=summary_pb2.DATA_CLASS_TENSOR))


def hparams_value():
    session = plugin_data_pb2.SessionStartInfo(start_time_secs=WALL_TIME)
    session.hparams["objective.name"].string_value = "ta_opd"
    session.hparams["optimizer.lr"].number_value = 1e-6
    session.hparams["optimizer.offload"].bool_value = False
    session.hparams["trainer.eval_at_start"].bool_value = True
    data = plugin_data_pb2.HParamsPluginData(session_start_info=session)
    return plugin_value(metadata.SESSION_START_INFO_TAG, metadata.PLUGIN_NAME, data.SerializeToString(deterministic=True),
                        metadata.NULL_TENSOR)


def text_value():
    dims = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in (2, 2)]
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=dims),
                                    string_val=[b"prompt", b"response", b"    1+1=", b""])
    return plugin_value("samples/eval", "text", b"", tensor)


def main():
    events = [Event(wall_time=WALL_TIME, file_version="brain.Event:2")]
    start = SessionLog(status=SessionLog.START)
    events.append(Event(wall_time=WALL_TIME, step=300, session_log=start))
    scalars = [("loss/mean", 0.25), ("loss/grad_norm", float("inf")), ("optim/lr", 1e-6)]
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
    events.append(Event(wall_time=WALL_TIME, step=300, summary=Summary(value=values)))
    events.append(Event(wall_time=WALL_TIME, summary=Summary(value=[hparams_value()])))
    events.append(Event(wall_time=WALL_TIME, step=300, summary=Summary(value=[text_value()])))
    with open(pathlib.Path(__file__).parent / "events_golden.tfevents", "wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
