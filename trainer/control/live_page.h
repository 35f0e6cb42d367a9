// The page / of the trainer: the values of /status, refreshed every two seconds, the buttons, and
// the report below them.
#pragma once

#include <string>

namespace taopd {

// With `asks_for_token` the page has a field for the run's token.
std::string LivePage(bool asks_for_token);

// Returns the Content-Security-Policy: the page may run its own script, ask this server, show its
// report, and nothing else.
std::string LivePageSecurityPolicy();

}  // namespace taopd
