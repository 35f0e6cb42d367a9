// The page / of the trainer: what /status says, once a second or two, the report below it, and the
// buttons.
#pragma once

#include <string>

namespace taopd {

std::string LivePage();

// Lets the page run its own script, ask this server, show its report, and nothing else.
std::string LivePageSecurityPolicy();

}  // namespace taopd
