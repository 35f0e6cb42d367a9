// Encodes text and numbers for the page. Everything that a run recorded passes through one of these
// functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace taopd::report {

// Escapes text for element content and quoted attributes. Bytes that are not UTF-8 and control
// characters become U+FFFD.
std::string EscapeHtml(const std::string& text);

// EscapeHtml for a name, in which lines may break after '/' and ',' instead of inside words.
std::string NameHtml(const std::string& name);

// Returns JSON for the content of a <script type="application/json">. It has no '<', so that no
// text can end the element.
std::string ScriptJson(const nlohmann::ordered_json& value);

// Returns a coordinate with one decimal.
std::string Coordinate(double value);

}  // namespace taopd::report
