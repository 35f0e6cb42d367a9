// Starts the HTTP port of a run, for train and sft.
#pragma once

#include <memory>
#include <string>

#include "trainer/config/run_config.h"
#include "trainer/control/control_server.h"

namespace taopd {

// Listens as `config` says and logs the address. /report shows the run in `run_dir`; `pages` has
// the other pages, whose functions the server's threads call. All that these use must outlive the
// server, as must `control`. Returns kExitUsage if it cannot listen on the port or the environment
// lacks the token.
absl::StatusOr<std::unique_ptr<ControlServer>> StartControlServer(const ControlConfig& config,
                                                                  const std::string& run_dir,
                                                                  RunControl* control,
                                                                  ControlPages pages);

}  // namespace taopd
