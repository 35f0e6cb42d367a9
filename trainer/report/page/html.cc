#include "trainer/report/page/html.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace taopd::report {

std::string EscapeHtml(const std::string& text) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  const std::string utf8 =
      nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, replace)).get<std::string>();
  std::string out;
  out.reserve(utf8.size());
  for (const char c : utf8) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t' && c != '\r') || byte == 0x7f;
        if (control) {
          out += "\xef\xbf\xbd";
        } else {
          out += c;
        }
      }
    }
  }
  return out;
}

std::string NameHtml(const std::string& name) {
  std::string out;
  for (size_t start = 0; start < name.size();) {
    const size_t end = std::min(name.find_first_of("/,", start), name.size() - 1) + 1;
    out += (out.empty() ? "" : "<wbr>") + EscapeHtml(name.substr(start, end - start));
    start = end;
  }
  return out;
}

std::string ScriptJson(const nlohmann::ordered_json& value) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  std::string out;
  for (const char c : value.dump(-1, ' ', false, replace)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

}  // namespace taopd::report
