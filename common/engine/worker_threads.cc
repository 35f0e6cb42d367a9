#include "common/engine/worker_threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace taopd {

void ReleaseWorkerThreads() {
#ifdef _OPENMP
  omp_pause_resource_all(omp_pause_soft);
#endif
}

}  // namespace taopd
