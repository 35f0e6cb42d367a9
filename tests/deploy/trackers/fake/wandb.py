"""Stands in for the wandb package: appends each call to $FAKE_LOG. While the file $FAKE_LOG.down exists, init fails."""

import json
import os
import types


class CommError(Exception):
    pass


errors = types.SimpleNamespace(CommError=CommError)


def record(**call):
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps(call) + "\n")


class Run:
    def __init__(self, run_id):
        self.id = run_id
        self.summary = types.SimpleNamespace(update=lambda values: record(summary=values))

    def log(self, values, step=None):
        record(step=step, values=values)

    def log_artifact(self, artifact):
        record(artifact=artifact.path)

    def finish(self):
        record(finish=True)


class Artifact:
    def __init__(self, name, type):
        self.path = None

    def add_file(self, path):
        self.path = path


def Table(columns, data, allow_mixed_types):
    return {"columns": columns, "data": data}


def init(project, name, id, resume, config):
    if os.path.exists(os.environ["FAKE_LOG"] + ".down"):
        record(down=True)
        raise CommError("no route")
    record(init=id, project=project, name=name, config=config)
    return Run(id)
