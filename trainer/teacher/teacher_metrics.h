// What a run reports about its teachers, from the statistics of their client. All numbers count
// from the start of the process.
#pragma once

#include "common/metrics/sink.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Of the client: teacher/retries, failures, hedges and, with a cache, cache_hits, cache_misses,
// cache_damaged, cache_evicted. Of each endpoint, with E for host_port:
//   teacher/E/latency_s       mean of the attempts that succeeded
//   teacher/E/attempts, failures, bytes_sent, bytes_received
//   teacher/E/left_out_share  share of the time in which it got only probes
// With several teachers, the names of each begin with teacher/NAME/.
Metrics TeacherMetrics(const TeacherClientStats& stats);

}  // namespace taopd
