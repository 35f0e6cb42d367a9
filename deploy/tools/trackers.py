"""The trackers that deploy/tools/track can send a run to: one class each, around the tracker's own Python package.

A tracker is used in this order, by one thread: open, log any number of times, then summary, table and artifact, close.
Each may raise Unreachable and then be called again with the same arguments.
"""

import os


class Unreachable(Exception):
    """The tracker does not answer at the moment."""


class Wandb:
    STEPS_MUST_GROW = True  # it drops what comes with an earlier step

    def __init__(self):
        import wandb  # only the package of the tracker that is used has to be there
        self.package, self.run, self.last_time = wandb, None, {}

    def open(self, project, name, run_id, origin, settings):
        """Begins a run, or continues the one with `run_id`. Returns its id. `origin` differs between runs."""
        try:
            self.run = self.package.init(project=project, name=name, id=run_id or origin, resume="allow",
                                         config=settings)
        except self.package.errors.CommError as error:
            raise Unreachable(error) from error
        return self.run.id

    def log(self, points):
        """`points`: (step, time in seconds or None, {metric: value}). The package sends them
        from a process of its own."""
        for step, time_s, values in points:
            self.last_time = {"_timestamp": time_s} if time_s else {}
            self.run.log({**values, **self.last_time}, step=step)

    def summary(self, values):
        self.run.summary.update(values)

    def table(self, name, columns, rows):
        table = self.package.Table(columns=list(columns), data=rows, allow_mixed_types=True)
        self.run.log({name: table, **self.last_time})

    def artifact(self, path):
        artifact = self.package.Artifact(f"report-{self.run.id}", type="report")
        artifact.add_file(str(path))
        self.run.log_artifact(artifact)

    def close(self):
        self.run.finish()


class Trackio(Wandb):
    """Its interface is W&B's, with small differences."""

    def __init__(self):
        import trackio
        self.package, self.run, self.step = trackio, None, 0

    def open(self, project, name, run_id, origin, settings):
        # It knows runs by their names.
        self.run = self.package.init(project=project, name=run_id or f"{name}-{origin[:4]}", resume="allow",
                                     config=settings, auto_log_cpu=False, auto_log_gpu=False)
        return self.run.name

    def log(self, points):
        for step, _, values in points:
            self.package.log(values, step=step)
            self.step = step

    def summary(self, values):
        if values:
            self.package.log({f"summary/{key}": value for key, value in values.items()}, step=self.step)

    def table(self, name, columns, rows):
        self.package.log({name: self.package.Table(columns=list(columns), data=rows, allow_mixed_types=True)},
                         step=self.step)

    def artifact(self, path):
        self.package.log_artifact(str(path), name="report", type="report")

    def close(self):
        self.package.finish()


class Mlflow:
    STEPS_MUST_GROW = False
    MAX_METRICS, MAX_PARAMS, MAX_PARAM_CHARS = 1000, 100, 6000  # of one request, by its REST interface

    def __init__(self):
        # The tool tries again by itself, and says so.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        import mlflow
        self.package, self.run_id = mlflow, None
        self.client = self.answered(mlflow.MlflowClient)

    def answered(self, call, *arguments, **named):
        try:
            return call(*arguments, **named)
        except self.package.exceptions.MlflowException as error:
            is_refusal = (isinstance(error, self.package.exceptions.RestException) and
                          error.get_http_status_code() < 500)
            if is_refusal:
                raise
            raise Unreachable(str(error).splitlines()[0]) from error

    def open(self, project, name, run_id, origin, settings):
        known = self.answered(self.client.get_experiment_by_name, project)
        experiment = known.experiment_id if known else self.answered(self.client.create_experiment, project)
        self.run_id = run_id
        if run_id is not None:
            return run_id
        # An earlier try may have made the run although its answer got lost.
        runs = self.answered(self.client.search_runs, [experiment], f"tags.taopd_origin = '{origin}'")
        run = runs[0] if runs else self.answered(self.client.create_run, experiment, run_name=name,
                                                 tags={"taopd_origin": origin})
        self.run_id = run.info.run_id
        params = [self.package.entities.Param(key, str(value)[:self.MAX_PARAM_CHARS])
                  for key, value in settings.items()]
        for begin in range(0, len(params), self.MAX_PARAMS):
            self.answered(self.client.log_batch, self.run_id, params=params[begin:begin + self.MAX_PARAMS])
        return self.run_id

    def log(self, points):
        metrics = [self.package.entities.Metric(name, value, int(1000 * (time_s or 0)), step)
                   for step, time_s, values in points for name, value in values.items()]
        for begin in range(0, len(metrics), self.MAX_METRICS):
            self.answered(self.client.log_batch, self.run_id, metrics=metrics[begin:begin + self.MAX_METRICS])

    def summary(self, values):
        for name, value in values.items():
            self.answered(self.client.log_metric, self.run_id, f"summary/{name}", value)

    def table(self, name, columns, rows):
        self.answered(self.client.log_table, self.run_id, dict(zip(columns, map(list, zip(*rows)))), f"{name}.json")

    def artifact(self, path):
        self.answered(self.client.log_artifact, self.run_id, str(path))

    def close(self):
        self.answered(self.client.set_terminated, self.run_id)


TRACKERS = {"mlflow": Mlflow, "trackio": Trackio, "wandb": Wandb}
