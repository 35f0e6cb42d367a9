"""For each alert: series with which it fires, and series near it with which it does not. Used by promtool test rules.

A series is written as promtool does: start+step x repetitions, one value every 30 s. `at` is when the alert is looked
for.
"""

POD = 'namespace="a",pod="p"'
RUN = 'namespace="a",experiment="e"'
MINUTES_30 = 60  # values every 30 s
HOURS_2 = 240


def constant(metric, labels, value, count=HOURS_2):
    return f"{metric}{{{labels}}}", f"{value}x{count}"


def rising(metric, labels, step, count=HOURS_2):
    return f"{metric}{{{labels}}}", f"0+{step}x{count}"


TAIL, TEACHER_TAIL = "taopd_trainer_policy_student_tail", "taopd_trainer_policy_teacher_tail"
REFUSED = "taopd_teacher_refused_requests_total"
# alert -> ([(series that make it fire, at)], [(series that do not, at)])
CASES = {
    "TeacherNotReady": (
        [([constant("taopd_teacher_ready", POD, 0)], "6m")],
        [([constant("taopd_teacher_ready", POD, 0)], "4m"),
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
         ([rising(REFUSED, POD + ',reason="invalid"', 30)], "1h")]),
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
           constant("taopd_teacher_info", 'namespace="a",pod="q",revision="1"', 1)], "1h")]),
    "StudentTailAboveTeachers": (
        [([constant(TAIL, RUN, 0.11), constant(TEACHER_TAIL, RUN, 0.04)], "16m")],
        [([constant(TAIL, RUN, 0.11), constant(TEACHER_TAIL, RUN, 0.04)], "14m"),
         ([constant(TAIL, RUN, 0.09), constant(TEACHER_TAIL, RUN, 0.04)], "1h")]),
    "StudentEntropyLow": (
        [([constant("taopd_trainer_policy_entropy", RUN, 0.005)], "16m")],
        [([constant("taopd_trainer_policy_entropy", RUN, 0.3)], "1h")]),
    "TrainingStalled": (
        [([constant("taopd_trainer_step", RUN, 3)], "70m")],
        [([constant("taopd_trainer_step", RUN, 3)], "50m"),
         ([(f"taopd_trainer_step{{{RUN}}}", "0+1x240")], "90m")]),
    "UpdatesSkipped": (
        [([(f"taopd_trainer_optim_skipped_updates{{{RUN}}}", "0x3 1 0x30")], "8m")],
        [([constant("taopd_trainer_optim_skipped_updates", RUN, 0)], "1h")]),
    "TrainingWaitsForTeacher": (
        [([constant("taopd_trainer_time_teacher_wait_s", RUN, 6), constant("taopd_trainer_time_step_s", RUN, 10)], "31m")],
        [([constant("taopd_trainer_time_teacher_wait_s", RUN, 4), constant("taopd_trainer_time_step_s", RUN, 10)], "1h")]),
    "TeacherRetries": (
        [([rising("taopd_trainer_teacher_retries", RUN, 1)], "20m")],
        [([constant("taopd_trainer_teacher_retries", RUN, 50)], "1h")]),
}


def test_file(rules, groups):
    """The text of a file for promtool test rules (JSON is YAML). Labels of alerts are not compared."""
    tests = []
    for alert, (firing, quiet) in CASES.items():
        for cases, expected in ((firing, 1), (quiet, 0)):
            for series, at in cases:
                tests.append({"interval": "30s", "name": f"{alert} at {at}",
                              "input_series": [{"series": name, "values": values} for name, values in series],
                              "promql_expr_test": [{
                                  "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                                  "eval_time": at, "exp_samples": [{"labels": "{}", "value": expected}]}]})
    return {"rule_files": [str(rules)], "evaluation_interval": "30s", "group_eval_order": groups, "tests": tests}
