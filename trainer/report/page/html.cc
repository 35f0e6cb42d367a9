#include "trainer/report/page/html.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <algorithm>

#include "common/io/jsonl.h"

namespace taopd::report {

std::string EscapeHtml(const std::string& text) {
  // The JSON writer replaces the bytes that are not UTF-8.
  const std::string utf8 = nlohmann::json::parse(JsonText(text)).get<std::string>();
  std::string out;
  out.reserve(utf8.size());
  for (const char c : utf8) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = (byte < 0x20 && c != '\n' && c != '\t' && c != '\r') || byte == 0x7f;
    if (is_control) {
      out += "\xef\xbf\xbd";
    } else {
      out += c;
    }
  }
  return absl::StrReplaceAll(
      out, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
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
  return absl::StrReplaceAll(JsonText(value), {{"<", "\\u003c"}});
}

std::string Coordinate(double value) { return absl::StrFormat("%.1f", value); }

}  // namespace taopd::report
