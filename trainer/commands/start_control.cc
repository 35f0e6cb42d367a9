#include "trainer/commands/start_control.h"

#include <cstdlib>
#include <utility>

#include "common/base/log.h"
#include "trainer/report/report.h"
#include "trainer/run/exit_status.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<ControlServer>> StartControlServer(const ControlConfig& config,
                                                                  const std::string& run_dir,
                                                                  RunState* state,
                                                                  ControlPages pages) {
  ControlServerOptions options;
  options.host = config.host;
  options.http_port = config.http_port;
  options.allowed_hosts = config.allowed_hosts;
  if (const std::string& name = config.token_env; !name.empty()) {
    const char* token = std::getenv(name.c_str());
    if (token == nullptr || *token == '\0') {
      return BadUsage(FailedPrecondition("trainer.token_env = ", name,
                                         ": the environment has no such variable, or it is empty"));
    }
    options.token = token;
  }
  pages.report_html = [run_dir] { return report::MakeReport({run_dir}); };
  auto server = ControlServer::Start(options, state, std::move(pages));
  if (!server.ok()) return BadUsage(Annotate(server.status(), "trainer.http_port"));
  LogInfo("control", {{"http", Concat(config.host, ":", (*server)->http_port())}});
  return server;
}

}  // namespace taopd
