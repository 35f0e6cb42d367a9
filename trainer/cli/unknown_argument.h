// Names the word of a command line that taopd-trainer does not know. CLI11 itself reports missing
// arguments first: "A subcommand is required" for `trian`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace taopd {

// Returns a message such as: unknown command "trian" (did you mean "train"?). Returns an empty text
// if every word of the line was recognized. Call it after app.parse has thrown.
std::string DescribeUnknownArgument(const CLI::App& app);

}  // namespace taopd
