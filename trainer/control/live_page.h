// The page / of the trainer: what /status says, refreshed every two seconds, the buttons, and the
// report below them.
#pragma once

#include <string>

namespace taopd {

// `asks_for_token`: requests that change something need the run's token.
std::string LivePage(bool asks_for_token);

// Lets the page run its own script, ask this server, show its report, and nothing else.
std::string LivePageSecurityPolicy();

}  // namespace taopd
