// The metrics of a run's teachers, from the statistics of their client. All numbers count from the
// start of the process.
#pragma once

#include "common/metrics/sink.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Returns the metrics of the group teacher/. In the names of the glossary, "endpoint" stands for an
// endpoint's host and port with "_" for "." and ":". With several teachers there are the sums over
// all of them, and the numbers of each under teacher/NAME/.
Metrics TeacherMetrics(const TeacherClientStats& stats);

}  // namespace taopd
