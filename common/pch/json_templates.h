// Declares the code of nlohmann::json as compiled elsewhere (json_templates.cc). Otherwise every
// file that parses or writes JSON spends a fifth of its time compiling the parser and the writer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

// The names of the parts are those of 3.11; other versions compile them in each file.
#if NLOHMANN_JSON_VERSION_MAJOR == 3 && NLOHMANN_JSON_VERSION_MINOR == 11
// X is `extern template` or `template`.
#define TAOPD_JSON_TEMPLATES(X)                                            \
  X class nlohmann::basic_json<>;                                          \
  X class nlohmann::basic_json<nlohmann::ordered_map>;                     \
  X class nlohmann::detail::serializer<nlohmann::json>;                    \
  X class nlohmann::detail::serializer<nlohmann::ordered_json>;            \
  X class nlohmann::detail::lexer<nlohmann::json, TaopdJsonInput>;         \
  X class nlohmann::detail::lexer<nlohmann::ordered_json, TaopdJsonInput>; \
  X class nlohmann::detail::parser<nlohmann::json, TaopdJsonInput>;        \
  X class nlohmann::detail::parser<nlohmann::ordered_json, TaopdJsonInput>;
using TaopdJsonInput = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;
TAOPD_JSON_TEMPLATES(extern template)
#endif
