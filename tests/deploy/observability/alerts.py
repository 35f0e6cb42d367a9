"""For each alert: series with which it fires, and series near it with which it does not. For whole lives of teachers and
experiments: all alerts that fire, at several times. Used by promtool test rules.

A series is written as promtool does: start+step x repetitions, one value every 30 s, `_` for none, `stale` where it ends.
`at` is when the alerts are looked for.
"""

from kubelet import job_action

POD = 'namespace="a",pod="p"'
RUN = 'namespace="a",experiment="e"'
WORKER = 'namespace="a",pod="w",service="rollout-worker-metrics"'  # a rollout worker, which is no teacher
HOURS_2 = 240  # values every 30 s


def constant(metric, labels, value, count=HOURS_2):
    return f"{metric}{{{labels}}}", f"{value}x{count}"


def rising(metric, labels, step, count=HOURS_2):
    return f"{metric}{{{labels}}}", f"0+{step}x{count}"


TAIL, TEACHER_TAIL = "taopd_trainer_policy_student_tail", "taopd_trainer_policy_teacher_tail"
REFUSED = "taopd_teacher_refused_requests_total"
# alert -> ([(series that make it fire, at)], [(series that do not, at)])
CASES = {
    "TeacherNotReady": (
        [([constant("taopd_teacher_ready", POD, 0)], "6m"),
         ([constant("taopd_teacher_ready", POD, 0), constant("taopd_teacher_ready", WORKER, 1)], "6m")],
        [([constant("taopd_teacher_ready", WORKER, 0)], "1h"),
         ([constant("taopd_teacher_ready", POD, 0)], "4m"),
         ([constant("taopd_teacher_ready", POD, 0), constant("taopd_teacher_ready", POD + ',x="1"', 1)], "1h")]),
    "TeacherStalled": (
        [([constant("taopd_teacher_engine_heartbeat_age_seconds", POD, 61)], "2m")],
        [([constant("taopd_teacher_engine_heartbeat_age_seconds", POD, 59)], "10m")]),
    "TeacherCanaryWrong": (
        [([constant("taopd_teacher_canary_ok", POD, 0)], "1m")],
        [([constant("taopd_teacher_canary_ok", POD, 1)], "1m")]),
    "TeacherRefusesWork": (
        [([rising(REFUSED, POD + ',reason="queue_full"', 30)], "20m")],
        [([rising(REFUSED, POD + ',reason="queue_full"', 30)], "8m"),
         ([rising(REFUSED, POD + ',reason="invalid"', 30)], "1h"),
         ([rising(REFUSED, WORKER + ',reason="queue_full"', 30)], "1h")]),
    "TeacherOutOfMessageMemory": (
        [([rising("taopd_teacher_refused_for_memory_total", POD, 1)], "10m")],
        [([constant("taopd_teacher_refused_for_memory_total", POD, 7)], "1h")]),
    "TeacherQueueLong": (
        [([constant("taopd_teacher_queued_tokens", POD, 90), constant("taopd_teacher_max_queued_tokens", POD, 100)],
          "11m")],
        [([constant("taopd_teacher_queued_tokens", POD, 79), constant("taopd_teacher_max_queued_tokens", POD, 100)],
          "1h")]),
    "TeachersDiffer": (
        [([constant("taopd_teacher_info", POD + ',revision="1"', 1),
           constant("taopd_teacher_info", POD + ',revision="2"', 1)], "31m")],
        [([constant("taopd_teacher_info", POD + ',revision="1"', 1),
           constant("taopd_teacher_info", 'namespace="a",pod="q",revision="1"', 1),
           constant("taopd_teacher_info", WORKER + ',revision="2"', 1)], "1h")]),
    "StudentTailAboveTeachers": (
        [([constant(TAIL, RUN, 0.11), constant(TEACHER_TAIL, RUN, 0.04)], "16m")],
        [([constant(TAIL, RUN, 0.11), constant(TEACHER_TAIL, RUN, 0.04)], "14m"),
         ([constant(TAIL, RUN, 0.09), constant(TEACHER_TAIL, RUN, 0.04)], "1h")]),
    "StudentEntropyLow": (
        [([constant("taopd_trainer_policy_entropy", RUN, 0.005)], "16m")],
        [([constant("taopd_trainer_policy_entropy", RUN, 0.3)], "1h")]),
    "TrainingStalled": (
        [([constant("taopd_trainer_step", RUN, 3)], "96m")],
        [([constant("taopd_trainer_step", RUN, 3)], "90m"),
         ([(f"taopd_trainer_step{{{RUN}}}", "0+1x240")], "110m")]),
    "UpdatesSkipped": (
        [([(f"taopd_trainer_optim_skipped_updates{{{RUN}}}", "0x3 1 0x30")], "8m")],
        [([constant("taopd_trainer_optim_skipped_updates", RUN, 0)], "1h")]),
    "TrainingWaitsForTeacher": (
        [([constant("taopd_trainer_time_teacher_wait_s", RUN, 6), constant("taopd_trainer_time_step_s", RUN, 10)], "31m")],
        [([constant("taopd_trainer_time_teacher_wait_s", RUN, 4), constant("taopd_trainer_time_step_s", RUN, 10)], "1h")]),
    "TeacherRetries": (
        [([rising("taopd_trainer_teacher_retries", RUN, 1)], "20m"),
         # The trainer is started again in between.
         ([(f"taopd_trainer_teacher_retries{{{RUN}}}", "0+1x15 0+1x15")], "16m")],
        [([constant("taopd_trainer_teacher_retries", RUN, 50)], "1h")]),
}

SERVICE = ('kube_service_info{namespace="a",service="teacher-grpc"}', "1x600")
READY, STEP = f"taopd_teacher_ready{{{POD}}}", f"taopd_trainer_step{{{RUN}}}"
WORKER_READY = constant("taopd_teacher_ready", WORKER, 1, 600)
STOP_CODE = f"taopd_trainer_stop_code{{{RUN}}}"


def deployment(available, wanted="1x600"):
    return [(f'kube_deployment_{name}{{namespace="a",deployment="teacher"}}', values) for name, values in
            (("status_replicas_available", available), ("spec_replicas", wanted))]


HEALTHY = [SERVICE, (READY, "1x600")] + deployment("1x600")


def job(active, failed="0x600", name="trainer-e"):
    return [(f'kube_job_status_active{{namespace="a",job_name="{name}"}}', active),
            (f'kube_job_failed{{namespace="a",job_name="{name}",condition="true"}}', failed)]


# The value of taopd_trainer_stop_code after a person's request or trainer.max_wall_time_s; after a signal it says 75.
STOPPED_BY_USER = 78

# Life -> (series, {time: alerts that fire then}).
LIVES = {
    "a run that is done after its last evaluation": (
        HEALTHY + job("1x240 0x360") + [(STEP, "0+1x200 200x39 stale")],
        {"110m": [], "125m": [], "200m": [], "290m": []}),
    "a run that never started": (HEALTHY + job("1x600"), {"85m": [], "95m": ["ExperimentNotRunning"]}),
    "a JobSet whose pods end again and again": (
        HEALTHY + job("1x600", name="trainer-e-trainer-0"), {"85m": [], "95m": ["ExperimentNotRunning"]}),
    "a run that waits in its queue": (HEALTHY + job("0x600"), {"3h": []}),
    "an evaluation of an hour": (
        HEALTHY + job("1x600") + [(STEP, "0+1x120 120x130 120+1x300")], {"119m": [], "125m": [], "3h": []}),
    "a run that hangs": (
        HEALTHY + job("1x600") + [(STEP, "0+1x120 120x400")], {"145m": [], "160m": ["TrainingStalled"]}),
    "a teacher that never starts": (
        [SERVICE] + deployment("0x600"), {"4m": [], "6m": ["TeacherNotReady"]}),
    "a teacher in a crash loop": (
        [SERVICE, (READY, "_x8 0 stale _x8 0 stale _x8 0 stale _x60"),
         ('kube_pod_container_status_restarts_total{namespace="a",pod="p",container="teacher"}', "0x9 1x9 2x9 3x9 4x60")] +
        deployment("0x600"), {"8m": ["TeacherNotReady"], "25m": ["TeacherNotReady", "TeacherRestarts"]}),
    "teachers that are all gone": (
        [SERVICE, (READY, "1x120 stale"), WORKER_READY] + deployment("1x120 0x480"),
        {"1h": [], "68m": ["TeacherNotReady"]}),
    "a teacher that is gone from a machine on which somebody trains": (
        [(READY, "1x120 stale"), (STEP, "0+1x600"), WORKER_READY], {"1h": [], "68m": ["TeacherNotReady"]}),
    "a teacher that somebody switched off": (
        [SERVICE, (READY, "1x120 stale")] + deployment("1x120 0x480", "1x120 0x480"), {"3h": []}),
    "a rollout of one teacher among two": (
        [SERVICE, (READY, "1x600"), ('taopd_teacher_ready{namespace="a",pod="q"}', "0x600")] + deployment("1x600", "2x600"),
        {"1h": []}),
    "a teacher that is slow": (
        HEALTHY + job("1x600") + [(STEP, "0+1x600"), constant("taopd_trainer_time_teacher_wait_s", RUN, 8),
                                  constant("taopd_trainer_time_step_s", RUN, 10)],
        {"25m": [], "35m": ["TrainingWaitsForTeacher"]}),
    "a disk that becomes full": (
        HEALTHY + job("1x600") + [
            (STEP, "0+1x600"), (f"taopd_trainer_disk_failed_saves{{{RUN}}}", "0x200 1+0.1x200"),
            ('kubelet_volume_stats_available_bytes{namespace="a",persistentvolumeclaim="runs-e"}', "200-1x200 0x300"),
            ('kubelet_volume_stats_capacity_bytes{namespace="a",persistentvolumeclaim="runs-e"}', "1000x600")],
        {"45m": [], "65m": ["VolumeNearlyFull"], "110m": ["CheckpointsFail", "VolumeNearlyFull"]}),
    "a run that fails and whose teacher is not a taopd-teacher": (
        [('kube_persistentvolumeclaim_info{namespace="a",persistentvolumeclaim="runs-e"}', "1x600"), (STEP, "0+1x120 stale")] +
        job("1x120 0x480", "0x120 1x480"), {"1h": [], "75m": ["ExperimentFailed"]}),
    "a run that a person stopped, and that failed when it was started again": (
        HEALTHY + job("1x120 0x120 1x120 0x240", "0x120 1x120 0x120 1x240") +
        [(STEP, "0+1x120 stale _x119 120+1x120 stale"), (STOP_CODE, "0x118 78x2 stale _x119 0x120 stale")],
        {"75m": [], "115m": [], "195m": ["ExperimentFailed"]}),
    "a run that was stopped by a signal and could not go on": (
        HEALTHY + job("1x120 0x480", "0x120 1x480") + [(STEP, "0+1x120 stale"), (STOP_CODE, "0x118 75x2 stale")],
        {"75m": ["ExperimentFailed"]}),
    "objects of the same names in another namespace": (
        HEALTHY + [(name.replace('namespace="a"', 'namespace="b"'), values)
                    for name, values in deployment("0x600") + job("1x600", "1x600")], {"3h": []}),
}


def lives_of_exit_codes(spec, codes):
    """The lives of a Job whose trainer ends after an hour, one for the codes after which the same happens. `spec`: of the Job,
    which has the rules."""
    steps, again = "0+1x120 stale", "_x9 120+1x300"
    alike = {}
    for code in codes:
        alike.setdefault((job_action(spec, code), code == STOPPED_BY_USER), []).append(code)
    for (action, by_user), codes_alike in alike.items():
        if action == "Complete":
            life = job("1x120 0x480") + [(STEP, steps)], {"70m": [], "3h": []}
        elif action == "FailJob":
            said, firing = (STOPPED_BY_USER, []) if by_user else (0, ["ExperimentFailed"])
            life = (job("1x120 0x480", "0x120 1x480") + [(STEP, steps), (STOP_CODE, f"0x118 {said}x2 stale")],
                    {"65m": [], "75m": firing, "3h": firing})
        elif action == "Ignore":  # another pod goes on
            life = job("1x600") + [(STEP, f"{steps} {again}")], {"65m": [], "75m": [], "3h": []}
        else:  # six more pods end before their first step
            life = job("1x180 0x420", "0x180 1x420") + [(STEP, steps)], {"85m": [], "105m": ["ExperimentFailed"]}
        yield f"exit codes {codes_alike}", (HEALTHY + life[0], life[1])


def test_file(rules, groups, lives, cases):
    """The text of a file for promtool test rules (JSON is YAML). Labels of alerts are not compared."""
    def test(name, series, questions):
        return {"interval": "30s", "name": name, "input_series": [{"series": key, "values": values} for key, values in series],
                "promql_expr_test": questions}
    tests = [test(name, series, [
        {"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": at,
         "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]}
        for at, alerts in times.items()]) for name, (series, times) in lives.items()]
    for alert, (firing, quiet) in cases.items():
        for examples, expected in ((firing, 1), (quiet, 0)):
            for series, at in examples:
                tests.append(test(f"{alert} at {at}", series, [{
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": at, "exp_samples": [{"labels": "{}", "value": expected}]}]))
    # The rules' own interval is a quarter of this, but the evaluations are what takes time.
    return {"rule_files": [str(rules)], "evaluation_interval": "2m", "group_eval_order": groups, "tests": tests}
