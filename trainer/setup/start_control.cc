#include "trainer/setup/start_control.h"

#include <utility>

#include "common/base/log.h"
#include "common/wire/client_credentials.h"
#include "trainer/report/report.h"
#include "trainer/run/exit_status.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<ControlServer>> StartControlServer(const ControlConfig& config,
                                                                  const std::string& run_dir,
                                                                  RunControl* control,
                                                                  ControlPages pages) {
  ControlServerOptions options;
  options.host = config.host;
  options.http_port = config.http_port;
  options.allowed_hosts = config.allowed_hosts;
  if (!config.token_env.empty()) {
    TAOPD_ASSIGN_OR_RETURN(options.token,
                           BadUsage(ApiKeyFrom(config.token_env, "trainer.token_env")));
  }
  pages.report_html = [run_dir] { return report::MakeReport({run_dir}); };
  auto server = ControlServer::Start(options, control, std::move(pages));
  if (!server.ok()) return BadUsage(Annotate(server.status(), "trainer.http_port"));
  LogInfo("control", {{"http", Concat(config.host, ":", (*server)->http_port())}});
  return server;
}

}  // namespace taopd
